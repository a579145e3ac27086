"""Splits by share or by time: parsing, and the split in config, results and a reopened run."""

import pandas as pd
import pytest

import dygmamba as dm
from door_cases import COLUMNS, letters
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.splits import PUBLISHED_SPLIT, TRAIN_ON_ALL, SplitRule, chronological_split
from dygmamba.runs.opening import parse_split
from raising import raises

TREES = {"trees": 6, "rounds": 3, "epochs": 1, "least": 5, "scales": 2, "neighbors": 2}


@pytest.fixture(scope="module")
def data():
    return dm.read(pd.DataFrame(letters()), **COLUMNS, name="letters")


def test_the_published_shares_are_the_published_split(data):
    """Given or by default; it has no entry in a config."""
    for given in (None, "0.7,0.15,0.15", (0.7, 0.15, 0.15)):
        by = parse_split(data, given)
        assert by.split(data.store).digest == chronological_split(data.store).digest
    assert PUBLISHED_SPLIT.section == {}
    assert SplitRule.read({}) == PUBLISHED_SPLIT


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


@pytest.mark.parametrize(
    "given",
    [
        "0.7",
        "0.7,0.2,0.2",
        "0.5,x,0.1",
        "1,0,0",
        "0.2,0.2,0.2,0.4",
        "2024-05-05,soon",
        "",
        "2024-05-08,2024-05-05",
    ],
)
def test_an_invalid_split_is_refused(data, given):
    """Wrong numbers, wrong sums, wrong times, the wrong order."""
    with raises("split-order" if given.startswith("2024-05-08") else "invalid-split", ConfigError):
        parse_split(data, given)


def test_times_outside_of_the_stream_are_refused(data):
    """Dates before it and after it; dates of a stream of plain numbers."""
    for given in ("2020-01-01,2024-05-05", "2024-05-05,2031-01-01"):
        with raises("split-outside-stream", ConfigError):
            parse_split(data, given)
    numbers = dm.read({"src": [1, 2, 3], "dst": [2, 3, 1], "time": [1, 2, 3]})
    with raises("dates-for-plain-times", FileError):
        parse_split(numbers, "2024-05-05,2024-05-06")


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
