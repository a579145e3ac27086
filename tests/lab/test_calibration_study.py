"""Study of calibration errors: what it fits and measures, how records are merged, and its table."""

import sys
from argparse import Namespace
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

import dygmamba as dm
from dygmamba.cli import app
from dygmamba.core.errors import FileError
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.lab import calibration_study
from dygmamba.lab.calibration_study import (
    ScoredPairs,
    ScoredRun,
    add_records,
    build_table,
    fit_single_curve,
    main,
    measure_errors,
    measure_job,
)
from dygmamba.report.result_records import ResultRecord, StudyResults
from raising import raises

PROVENANCE = ("visible", "batch", "negatives", "setting")
STUDY = ["--streams", "people", "--models", "trees", "--device", "cpu", "--epochs", "1"]


class RunHere:
    """Stands in for a pool of processes, each of which would import torch."""

    def __init__(self, jobs, mp_context):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def train_here(command, **how):
    """Run the training command in this process, which has imported torch already."""
    assert command[:4] == [sys.executable, "-m", "dygmamba", "train"]
    app(command[3:], standalone_mode=False)
    return SimpleNamespace(returncode=0, stderr="")


def draw_pairs(pairs, seed, shift=0.0, new_shift=0.0):
    """Pairs whose logits are too high by `shift`, and by `new_shift` more if their destination is new."""
    rng = torch.Generator().manual_seed(seed)
    logit = 2 * torch.randn(pairs, generator=rng).double()
    label = (torch.rand(pairs, generator=rng) < logit.sigmoid()).double()
    new_ends = torch.rand(pairs, 2, generator=rng) < torch.tensor([0.0, 0.3])
    order = torch.arange(pairs)
    return ScoredPairs(logit + shift + new_shift * new_ends[:, 1], label, order.double(), order, new_ends)


def test_errors_are_those_of_the_test_sets():
    """New destinations are off by two more: the single curve leaves them so, the fit with offsets does not."""
    sets = {("val", "transductive"): draw_pairs(20_000, 0, 1.0, 2.0)}
    sets["test", "transductive"] = draw_pairs(20_000, 1, 1.0, 2.0)
    rows = {row["population"]: row for row in measure_errors(sets, 1)}
    assert list(rows) == ["transductive", "new_ends"]
    assert rows["new_ends"]["pairs"] == int(sets["test", "transductive"].new_ends.any(dim=1).sum())
    for row in rows.values():
        assert row["raw"] > row["fitted"]
        assert not row["kept_raw"]
    assert rows["new_ends"]["fitted"] < 0.5 * rows["new_ends"]["single"]
    sets["test", "inductive"] = draw_pairs(2_000, 2, 1.0)  # without validation events of this setting
    (new_nodes,) = [row for row in measure_errors(sets, 1) if row["population"] == "inductive"]
    assert new_nodes["kept_raw"]
    assert new_nodes["raw"] == new_nodes["fitted"]


def test_the_single_curve_follows_the_last_blocks():
    """As in version 0.1: if the bias drifts from block to block only the end is fitted, otherwise everything."""
    pairs = draw_pairs(16_000, 3)
    assert fit_single_curve(pairs).stretch == 1
    drift = 3.0 * (pairs.order * 8 // len(pairs.order)) / 8
    found = fit_single_curve(
        ScoredPairs(pairs.logit - drift, pairs.label, pairs.time, pairs.order, pairs.new_ends)
    )
    assert found.stretch == 1 / 8


def test_records_are_merged_and_shown(tmp_path):
    """A record of the same stream, model and seed is replaced; the table has means over seeds."""

    def record(seed, error):
        errors = dict.fromkeys(calibration_study.METHODS, error)
        row = {"population": "transductive", "pairs": 2, "kept_raw": False, **errors}
        return ResultRecord("calibration", "uci", "trees", seed, {}, [row])

    add_records(tmp_path, "first", [record(0, 0.5)])
    add_records(tmp_path, "second", [record(1, 0.02), record(0, 0.04)])
    stored = StudyResults.read(tmp_path / "calibration.json")
    assert [one.seed for one in stored.records] == [0, 1]
    _, _, line, means = build_table(tmp_path).split("\n")
    assert line == "| uci | trees |" + " 3.0 |" * 4 + " - |" * 8
    assert means.startswith("| **mean** | | 3.0 |")


def test_a_run_is_trained_once_and_measured_like_its_rows(tmp_path, monkeypatch):
    """The command trains, stores and reuses the run; its errors are those of the run's own result rows."""
    made = dm.generate(nodes=40, events=900, communities=4).store
    columns = zip(made.src.tolist(), made.dst.tolist(), (made.time - made.time[0]).tolist(), strict=True)
    save_dataset(dm.read(list(columns), name="people"), tmp_path / "data")
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    monkeypatch.setattr(calibration_study.subprocess, "run", train_here)
    monkeypatch.setattr(calibration_study, "ProcessPoolExecutor", RunHere)
    main([*STUDY, *options])
    (record,) = StudyResults.read(tmp_path / "calibration.json").records
    (path,) = (tmp_path / "runs").rglob("config.toml")
    rows = {row["setting"]: row for row in dm.open(path.parent).results.to_pylist() if row["split"] == "test"}
    measured = {row["population"]: row for row in record.rows}
    assert record.settings["trees"] > 0
    for setting, row in rows.items():
        assert {name: measured[setting][name] for name in PROVENANCE} == {
            name: row[name] for name in PROVENANCE
        }
        assert measured[setting]["raw"] == pytest.approx(row["ece_raw"], abs=1e-6)
        assert measured[setting]["fitted"] == pytest.approx(row["ece"], abs=1e-6)
    monkeypatch.setattr(calibration_study.subprocess, "run", None)  # another training would fail
    main_options = Namespace(
        runs=tmp_path / "runs",
        data=tmp_path / "data",
        device="cpu",
        threads=1,
        epochs=None,
        first=1,
        logits=tmp_path / "logits",
    )
    assert measure_job("people", "trees", 0, main_options).rows == record.rows
    main_options.runs = main_options.data = None  # from now on the stored logits are read
    assert measure_job("people", "trees", 0, main_options).rows == record.rows


def test_a_run_of_the_first_events_reads_no_later_ones(tmp_path):
    """With --first 0.7, other events after 70 % of the stream change no logit; the record names the share."""
    made = dm.generate(nodes=40, events=900, communities=4).store
    columns = list(zip(made.src.tolist(), made.dst.tolist(), made.time.tolist(), strict=True))
    later = [(dst, src, time) for src, dst, time in columns[630:]]
    options = Namespace(runs=tmp_path, data=tmp_path, device="cpu", threads=1, epochs=1, first=0.7)
    options.logits = tmp_path / "logits"
    for name, events in (("one", columns), ("other", [*columns[:630], *later])):
        save_dataset(dm.read(events, name=name), tmp_path)
        assert measure_job(name, "trees", 0, options).about == {"first": 0.7}
    one, other = (
        ScoredRun.load(options.logits / f"{name}-trees-0-first-0.7.npz") for name in ("one", "other")
    )
    assert one.sets.keys() == other.sets.keys()
    for key, pairs in one.sets.items():
        torch.testing.assert_close(pairs.logit, other.sets[key].logit, rtol=0, atol=0)


def test_a_failed_training_is_named(tmp_path):
    options = Namespace(
        runs=tmp_path, data=tmp_path, device="cpu", threads=1, epochs=None, first=1, logits=None
    )
    with raises("missing-run", FileError) as caught:
        measure_job("nothing", "trees", 0, options)
    assert "trees on nothing" in str(caught.value)
