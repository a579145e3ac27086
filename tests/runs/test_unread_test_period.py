"""Nothing after the end of validation decides anything before it: the same stream with two test periods."""

import json

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file

import dygmamba as dm
from dygmamba.data.events import splits

NODES, EVENTS, LATE_NODES = 40, 600, 10
PERIODS = (420, 510)  # times at which validation and test begin
MAMBA = {"length": 6, "width": 8, "time_dim": 8, "states": 4}
TREES = {"trees": 6, "rounds": 3}
CASES = {
    "trees": ("trees", TREES),
    "trees, query columns": ("trees", TREES | {"query_columns": True}),
    "trees, best MRR": ("trees", TREES | {"loss": "ranking", "train_candidates": 4}),
    "walk-trees": ("walk-trees", TREES),
    "tgn": ("tgn", {"neighbors": 4, "time_dim": 8}),
    "dyg-mamba": ("dyg-mamba", MAMBA),
    "dyg-mamba, activity": ("dyg-mamba", MAMBA | {"train_negatives": "mixed", "activity": True}),
    "dyg-mamba-counts": ("dyg-mamba-counts", MAMBA | {"walk_dim": 16}),
}


def make_stream(seed: int) -> dm.Dataset:
    """Events that differ between seeds in the test period alone, which brings ten more nodes and larger amounts."""
    rng, other = np.random.default_rng(0), np.random.default_rng(seed)
    time = np.arange(EVENTS)
    late, last = time >= PERIODS[0], time >= PERIODS[1]
    # six nodes are new in validation; with seed 0 the test period brings none
    known = np.where(late, NODES, NODES - 6)
    src, dst = rng.integers(0, known // 2), rng.integers(known // 2, known)
    later = NODES + (LATE_NODES if seed else 0)
    src = np.where(last, other.integers(0, later, EVENTS), src)
    dst = np.where(last, other.integers(0, later, EVENTS), dst)
    amount = np.where(last, other.random(EVENTS) * (1 + 99 * seed), rng.random(EVENTS)).round(3)
    table = pa.table({"src": src, "dst": dst, "time": time, "amount": amount})
    return dm.read(table, features=["amount"], name="two-tests")


def train_on(stream, folder, case, protocol, epochs):
    """Train; what the run holds of the time before the test period."""
    model, settings = CASES[case]
    preset = folder.with_suffix(".toml")
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in (settings | {"epochs": epochs, "batch": 100}).items()
    ]
    preset.write_text("\n".join(["[preset]", f'model = "{model}"', "[settings]", *lines]) + "\n")
    (run,) = dm.train(
        stream, preset=str(preset), out=folder, split=PERIODS, protocol=protocol, device="cpu",
        negatives="random,historical,inductive",
    )  # fmt: skip
    calibration = json.loads((run.path / "calibration.json").read_text())
    rows = run.results.to_pylist() + run.evaluate(split="val", metrics="mrr").to_pylist()
    return {
        "weights": load_file(run.path / "checkpoint" / "best.safetensors"),
        "epochs": [{k: v for k, v in row.items() if "seconds" not in k} for row in run.metrics.to_pylist()],
        "calibration": (calibration["calibration"], calibration["new_nodes"]),
        "rows": [{**row, "run": None} for row in rows if row["split"] == "val"],
    }


def assert_same_weights(one, two):
    """All tensors but those with a row per node, of which there are more."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        if value.shape == two[name].shape and not name.endswith(".mark"):
            assert value.equal(two[name]), name


@pytest.mark.parametrize("case", CASES)
def test_the_test_period_changes_nothing_before_it(case, tmp_path):
    """Protocol "time": weights, the choice of the epoch, calibration and every validation row are the same bits."""
    one, two = (train_on(make_stream(k), tmp_path / f"runs{k}", case, "time", 2) for k in (0, 1))
    assert_same_weights(one["weights"], two["weights"])
    assert len(one["rows"]) == 2 * (3 + 1)
    assert {row["drawn_from"] for row in one["rows"]} == {"earlier events"}
    for name in ("epochs", "calibration", "rows"):
        assert one[name] == two[name]


@pytest.mark.parametrize("case", ["trees", "tgn"])
def test_the_test_period_does_not_change_the_calibration_of_a_benchmark_run(case, tmp_path, monkeypatch):
    """Validation negatives are DyGLib's, of the whole stream, and say so; the calibration has its own."""
    # under this protocol the test period chooses held-out nodes and the best epoch, so both are fixed here
    monkeypatch.setattr(splits, "_sample_held_out_nodes", lambda store, *_: np.arange(store.num_nodes) < 3)
    one, two = (train_on(make_stream(k), tmp_path / f"runs{k}", case, "benchmark", 1) for k in (0, 1))
    assert one["calibration"] == two["calibration"]
    whole = [row for row in one["rows"] if row["setting"] == "transductive"]
    assert {row["drawn_from"] for row in whole} == {"whole stream"}
    assert one["rows"] != two["rows"]
