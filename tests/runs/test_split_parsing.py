"""Splits by share or by time, and their protocol: parsing, and the split in config, results and a reopened run."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.progress import Progress
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import (
    PUBLISHED_SPLIT,
    TIME_SPLIT,
    TRAIN_ON_ALL,
    SplitRule,
    chronological_split,
)
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import parse_split
from dygmamba.runs.run_config import read_split
from letters import COLUMNS, make_letters
from raising import raises


class Messages(Progress):
    """Collects the messages of a training."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def message(self, text: str) -> None:
        self.texts.append(text)


TREES = {"trees": 6, "rounds": 3, "epochs": 1, "least": 5, "scales": 2, "neighbors": 2}


@pytest.fixture(scope="module")
def data():
    return dm.read(pd.DataFrame(make_letters()), **COLUMNS, name="letters")


@pytest.fixture(scope="module")
def crowd():
    """A stream in which held-out nodes have training events, and the last nodes have none."""
    return dm.generate(nodes=60, events=900, communities=4)


def test_the_published_shares_are_the_published_split(crowd):
    """Given or by default, with the protocol of benchmarks."""
    for given in (None, "0.7,0.15,0.15", (0.7, 0.15, 0.15)):
        by = parse_split(crowd, given, "benchmark")
        assert by == PUBLISHED_SPLIT
        assert by.split(crowd.store).digest == chronological_split(crowd.store).digest


def dataset_of_size(name: str, nodes: int, events: int) -> Dataset:
    """Return a stream with these numbers of nodes and events."""
    src = torch.arange(events) % nodes
    store = EventStore.from_columns(src, (src + 1) % nodes, torch.arange(events, dtype=torch.float64))
    return Dataset.from_events(name, store, NodeIds.identity(store.num_nodes))


@pytest.mark.parametrize(
    ("name", "nodes", "events", "protocol"),
    [
        ("uci", 1_899, 59_835, "benchmark"),
        ("UCI", 1_899, 59_835, "benchmark"),
        ("us-legis", 225, 60_396, "benchmark"),
        ("Contacts", 692, 2_426_279, "benchmark"),
        ("contact", 694, 2_426_280, "benchmark"),
        ("flights", 13_169, 1_927_145, "benchmark"),
        ("uci_mails", 1_899, 59_835, "time"),
        ("uci", 1_899, 50_000, "time"),
        ("uci", 1_898, 59_835, "time"),
        ("contacts", 300, 4_000, "time"),
        ("flights", 300, 4_000, "time"),
        ("mooc", 500, 20_000, "time"),
    ],
)
def test_the_name_and_size_of_a_dataset_decide_its_protocol(name, nodes, events, protocol):
    """Benchmarks in any spelling; own data under their names, and parts of them, keep every training event."""
    named = dataset_of_size(name, nodes, events)
    assert parse_split(named, None).protocol == get_default_split(named).protocol == protocol
    assert parse_split(named, "0.6,0.2,0.2").protocol == protocol


@pytest.mark.parametrize("name", ["uci", "enron", "wikipedia", "mooc", "CanParl", "USLegis"])
def test_the_real_streams_have_the_benchmark_protocol(name, real_data):
    assert get_default_split(open_dataset(name, real_data)).protocol == "benchmark"


@pytest.mark.parametrize(
    "name", ["uci", "UCI", "us-legis", "Contacts", "x_bitcoin_otc", "generated", "uci_mails"]
)
def test_a_given_protocol_is_that_of_any_dataset(crowd, name):
    """Whoever gives a protocol gets it; a generated stream has "time" under any name."""
    named, protocol = replace(crowd, name=name), "time"
    assert parse_split(named, None).protocol == get_default_split(named).protocol == protocol
    assert parse_split(named, "0.6,0.2,0.2").protocol == protocol
    for given in ("benchmark", "time"):
        assert parse_split(named, None, given).protocol == given
        assert parse_split(named, "0.6,0.2,0.2", given).protocol == given
    with raises("unknown-protocol", ConfigError):
        parse_split(named, None, "paper")


def test_a_rule_in_a_config_is_read_back():
    """Every rule says its protocol; a row of results says it where the published code has another."""
    for rule in (
        PUBLISHED_SPLIT,
        TIME_SPLIT,
        TRAIN_ON_ALL,
        SplitRule((0.6, 0.2, 0.2), "0.6,0.2,0.2", protocol="time"),
        SplitRule((50.0, 20.0, 9.0), "board tgb", counted=True, protocol="time"),
    ):
        assert rule.section["protocol"] == rule.protocol
        assert SplitRule.read(rule.section) == rule
    assert (PUBLISHED_SPLIT.stamp, TIME_SPLIT.stamp) == ({}, {"protocol": "time"})


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ({}, PUBLISHED_SPLIT),
        ({"split_by": "0.6,0.2,0.2", "split_at": [0.6, 0.2, 0.2]}, SplitRule((0.6, 0.2, 0.2), "0.6,0.2,0.2")),
        ({"split_by": "all", "split_at": []}, TRAIN_ON_ALL),
        (
            {"split_by": "board tgb", "split_at": [9.0, 2.0, 1.0], "split_counted": True},
            SplitRule((9.0, 2.0, 1.0), "board tgb", counted=True, protocol="time"),
        ),
    ],
)
def test_a_config_without_a_protocol_has_the_split_of_its_time(section, rule):
    """Shares and times held nodes out of training then; a leaderboard and `all` did not."""
    assert SplitRule.read(section) == rule
    assert rule.protocol == ("time" if rule.counted or not rule.numbers else "benchmark")


def test_an_old_run_opens_to_the_same_split(crowd, tmp_path, monkeypatch):
    """A run whose config has no entry for the published split, as before there was a choice: same split and results."""
    with monkeypatch.context() as old:
        old.setattr(SplitRule, "section", {})
        (run,) = dm.train(crowd, "trees", protocol="benchmark", out=tmp_path, **TREES)
    assert not {"protocol", "split_by"} & set(run.config["run"])
    assert read_split(RunDirectory(run.path)).split(crowd.store).digest == run.config["run"]["split"]
    again = dm.open(run.path).evaluate("random", ["val", "test"]).to_pylist()
    assert [row["ap"] for row in again] == [row["ap"] for row in run.results.to_pylist()]


def test_an_unknown_protocol_in_a_config_is_refused(tmp_path):
    """It may be one of a later version."""
    folder = RunDirectory(tmp_path)
    folder.write_config({"run": PUBLISHED_SPLIT.section | {"protocol": "spatial"}})
    with raises("damaged-config", FileError):
        read_split(folder)


def test_a_run_on_own_data_trains_on_every_event_of_its_period(crowd, tmp_path):
    """By default; the message, the config and the rows say so, and a new node has no training event."""
    messages = []
    (run,) = dm.train(crowd, "trees", out=tmp_path, progress=Messages(messages), **TREES)
    split = TIME_SPLIT.split(crowd.store)
    assert run.config["run"]["protocol"] == "time"
    assert run.config["run"]["split"] == split.digest
    assert {row["protocol"] for row in run.results.to_pylist()} == {"time"}
    (line,) = [text for text in messages if text.startswith("split by ")]
    assert f"train {int(split.val[0]):,}, " in line
    assert "none removed" in line


def test_a_leaderboard_split_has_no_benchmark_protocol(crowd):
    """The two contradict each other."""
    with raises("protocol-of-leaderboard", ConfigError):
        parse_split(crowd, "board", "benchmark")


def test_times_begin_their_periods(data):
    """For all events: training is strictly before the first time, the test begins with the second."""
    by = parse_split(data, "2024-05-05, 2024-05-08T12:00")
    split, time = by.split(data.store), data.store.time
    assert time[split.train].max() < by.numbers[0] <= time[split.val].min()
    assert time[split.val].max() < by.numbers[1] <= time[split.test].min()
    assert len(split.val) + len(split.test) == int((time >= by.numbers[0]).sum())
    assert SplitRule.read(by.section) == by


def test_without_a_split_all_events_are_trained_on(data):
    """No validation, no test, no new nodes."""
    split = TRAIN_ON_ALL.split(data.store)
    assert (len(split.train), len(split.val), len(split.test)) == (len(data), 0, 0)
    assert not split.new_nodes.any()


def test_a_run_keeps_its_split(data, tmp_path):
    """In config.toml, in each row of the results, and when it is opened, evaluated and resumed."""
    (run,) = dm.train(data, "trees", split="2024-05-05,2024-05-08", out=tmp_path, **TREES)
    by = parse_split(data, "2024-05-05,2024-05-08")
    assert run.config["run"]["split_by"] == by.description
    assert run.config["run"]["split"] == by.split(data.store).digest
    rows = run.results.to_pylist()
    assert {row["split_by"] for row in rows} == {by.description}
    assert rows[0]["n"] == len(by.split(data.store).val)
    again = dm.open(run.path).evaluate("random", ["val", "test"]).to_pylist()
    assert [row["ap"] for row in again] == [row["ap"] for row in rows]
    assert dm.resume(run.path).results == run.results
