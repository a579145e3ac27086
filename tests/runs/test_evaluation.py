"""Scores with the activity of the source: recorded in rows, weighed on the validation period, off by default."""

import json

import pytest
import torch

import dygmamba as dm
from dygmamba.data.events.splits import chronological_split
from dygmamba.engine.stream import Stream
from dygmamba.runs.evaluation import ActivityFactor
from dygmamba.tasks.link import build_link_set

SETTINGS = {"epochs": 2, "trees": 8, "rounds": 4, "least": 5, "scales": 3, "neighbors": 4}
EVERY = "random,historical,inductive"


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=900, communities=4)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """The same run without and with the rate of the source."""
    out = tmp_path_factory.mktemp("runs")
    return [
        dm.train(data, "trees", out=out, negatives=EVERY, **SETTINGS, **more)[0]
        for more in ({}, {"activity": True})
    ]


def by_exam(rows):
    return {(row["negatives"], row["split"], row["setting"]): row for row in rows}


def test_rows_have_the_weight_and_random_negatives_keep_their_figures(runs):
    """Every row has its weight; with random negatives it is 0 and nothing changes; validation AP never falls."""
    plain, factored = (by_exam(run.results.to_pylist()) for run in runs)
    assert plain.keys() == factored.keys()
    assert not any("activity_weight" in row for row in plain.values())
    for (kind, split, setting), row in factored.items():
        before = plain[kind, split, setting]
        if kind == "random":
            assert row["activity_weight"] == 0
            assert (row["ap"], row["auc"], row["mrr"]) == (before["ap"], before["auc"], before["mrr"])
        assert row["activity_weight"] == factored[kind, "val", "transductive"]["activity_weight"]
    for kind in ("historical", "inductive"):
        assert factored[kind, "val", "transductive"]["ap"] >= plain[kind, "val", "transductive"]["ap"]
    kept = json.loads((runs[1].path / "results.json").read_text())["activity"]
    assert len(kept["weights"]) == len(kept["scales"]) + 2 < 20
    assert set(kept["weight"]) == {"historical", "inductive"}


def test_activity_can_be_set_in_training_or_in_evaluation(runs):
    """Both give the figures of the final evaluation."""
    kept = by_exam(runs[1].results.to_pylist())
    for table in (runs[0].evaluate("historical", activity=True), runs[1].evaluate("historical")):
        for key, row in by_exam(table.to_pylist()).items():
            assert (row["ap"], row["activity_weight"]) == (kept[key]["ap"], kept[key]["activity_weight"])
    assert "activity_weight" not in runs[0].evaluate("historical").column_names


def test_heuristics_can_use_activity_too(data):
    """The same column; nothing changes with random negatives."""
    plain, factored = (
        by_exam(
            dm.evaluate(
                data, "recency", negatives="random,historical", split="val,test", activity=on
            ).to_pylist()
        )
        for on in (False, True)
    )
    chosen = ("historical", "val", "transductive")
    assert factored[chosen]["ap"] >= plain[chosen]["ap"]
    assert (
        factored["historical", "test", "transductive"]["activity_weight"]
        == factored[chosen]["activity_weight"]
    )
    assert factored["random", "test", "transductive"]["ap"] == plain["random", "test", "transductive"]["ap"]


def test_the_test_period_chooses_nothing(data):
    """With another test period, rate and weight are the same to the last bit."""
    store = data.store
    split = chronological_split(store)
    first = int(split.test[0])
    other = store.src.clone()
    other[first:] = other[first:].flip(0)
    found = []
    for src in (store.src, other):
        stream = Stream(
            type(store).from_columns(src, store.dst, store.time, num_nodes=store.num_nodes),
            split,
            torch.device("cpu"),
        )
        factored = ActivityFactor.from_stream(stream)
        evaluation_set = build_link_set(stream.store, split, "val", strategy="historical")
        factored(
            evaluation_set,
            evaluation_set.pairs.dst.double(),
            lambda evaluation_set: evaluation_set.pairs.dst.double(),
        )
        found.append((factored.rate, factored.weights))
    assert found[0] == found[1]
