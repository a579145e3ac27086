"""Opening a run reads each thing once: its config is parsed once, its events are checked once."""

import os
import time
from collections import Counter

import pytest

import dygmamba as dm
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine import run_directory
from dygmamba.engine.run_directory import RunDirectory
from trained import copy_run


@pytest.fixture
def run(trees_run, tmp_path):
    copy = copy_run(trees_run, tmp_path)
    set_age(copy.path / "config.toml", 10)
    return copy


def set_age(path, seconds):
    """Let a file have been written some time ago: younger files are always read again."""
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def calls(monkeypatch):
    """Counts parsed config files and checks of event values."""
    counter, loads, check = Counter(), run_directory.tomllib.loads, EventStore._check_values

    def count_parse(text):
        counter["parse"] += 1
        return loads(text)

    def count_check(store):
        counter["check"] += 1
        check(store)

    monkeypatch.setattr(run_directory.tomllib, "loads", count_parse)
    monkeypatch.setattr(EventStore, "_check_values", count_check)
    return counter


def test_open_and_score_read_config_and_events_once(run, calls):
    """One parse and one check, however many methods are called."""
    opened = dm.open(run.path)
    opened.score([(1, 2), (3, 4)])
    opened.rank([1], k=2)
    assert opened.config["run"]["model"] == opened.config["run"]["model"] == "trees"
    assert calls == {"parse": 1, "check": 1}


def test_observed_events_are_checked_alone(run, calls):
    """New events are checked when they are read; the stream that they extend is not checked again."""
    opened = dm.open(run.path)
    later = float(opened.data.store.time[-1]) + 10
    before = calls["check"]
    extended = opened.observe([(1, 2, later), (3, 2, later - 20)])
    assert calls["check"] == before + 1
    assert len(extended.data) == len(opened.data) + 2
    assert bool((extended.data.store.time.diff() >= 0).all())


def test_a_config_that_was_changed_is_read_again(tmp_path, calls):
    """After an extension, and after a rewrite of the same length within a tick of the clock."""
    folder = RunDirectory(tmp_path)
    folder.write_config({"run": {"model": "trees"}, "train": {"epochs": 1}})
    set_age(tmp_path / "config.toml", 10)
    assert folder.config()["train"] == {"epochs": 1}
    folder.config()["train"]["epochs"] = 5
    assert folder.config()["train"] == {"epochs": 1}
    assert calls["parse"] == 1
    folder.extend({"epochs": 2})
    assert folder.config()["train"] == {"epochs": 2}
    folder.extend({"epochs": 3})
    assert folder.config()["train"] == {"epochs": 3}
    folder.write_config({"run": {"model": "shrub"}, "train": {"epochs": 1}})
    (tmp_path / "extended.toml").unlink()
    assert folder.config()["run"] == {"model": "shrub"}
