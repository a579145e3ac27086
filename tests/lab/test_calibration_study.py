"""Study of calibration errors: what it fits and measures, how records are merged, and its table."""

from argparse import Namespace
from concurrent.futures import Future

import pytest
import torch

import dygmamba as dm
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


def draw_pairs(pairs, seed, shift=0.0, new_shift=0.0):
    """Pairs whose logits are too high by `shift`, and by `new_shift` more if their destination is new."""
    rng = torch.Generator().manual_seed(seed)
    logit = 2 * torch.randn(pairs, generator=rng).double()
    label = (torch.rand(pairs, generator=rng) < logit.sigmoid()).double()
    new_ends = torch.rand(pairs, 2, generator=rng) < torch.tensor([0.0, 0.3])
    order = torch.arange(pairs)
    return ScoredPairs(logit + shift + new_shift * new_ends[:, 1], label, order, new_ends)


def test_errors_are_those_of_the_test_sets():
    """New destinations are off by two more: the single curve leaves them so, the fit with offsets does not."""
    sets = {("val", "transductive"): draw_pairs(20_000, 0, 1.0, 2.0)}
    sets["test", "transductive"] = draw_pairs(20_000, 1, 1.0, 2.0)
    rows = {row["population"]: row for row in measure_errors(sets, 1)}
    assert list(rows) == ["transductive", "new_ends"]
    assert rows["new_ends"]["pairs"] == int(sets["test", "transductive"].new_ends.any(dim=1).sum())
    for row in rows.values():
        assert row["raw"] > row["fitted"]
        assert not row["is_unfitted"]
    assert rows["new_ends"]["fitted"] < 0.5 * rows["new_ends"]["single"]
    sets["test", "inductive"] = draw_pairs(2_000, 2, 1.0)  # without validation events of this setting
    (new_nodes,) = [row for row in measure_errors(sets, 1) if row["population"] == "inductive"]
    assert new_nodes["is_unfitted"]
    assert new_nodes["raw"] == new_nodes["fitted"]


def test_the_single_curve_follows_the_last_blocks():
    """If the bias drifts from block to block only the end is fitted, otherwise everything."""
    pairs = draw_pairs(16_000, 3)
    assert fit_single_curve(pairs).stretch == 1
    drift = 3.0 * (pairs.order * 8 // len(pairs.order)) / 8
    found = fit_single_curve(ScoredPairs(pairs.logit - drift, pairs.label, pairs.order, pairs.new_ends))
    assert found.stretch == 1 / 8


def test_records_are_merged_and_shown(tmp_path):
    """A record of the same stream, model and seed is replaced; the table has means over seeds."""

    def record(seed, error):
        errors = dict.fromkeys(calibration_study.METHODS, error)
        row = {"population": "transductive", "pairs": 2, "is_unfitted": False, **errors}
        return ResultRecord("calibration", "uci", "trees", seed, {}, [row])

    add_records(tmp_path, "first", [record(0, 0.5)])
    add_records(tmp_path, "second", [record(1, 0.02), record(0, 0.04)])
    stored = StudyResults.read(tmp_path / "calibration.json")
    assert [one.seed for one in stored.records] == [0, 1]
    _, _, line, means = build_table(tmp_path).split("\n")
    assert line == "| UCI (messages) | trees |" + " 3.0 |" * 4 + " - |" * 8
    assert means.startswith("| **mean** | | 3.0 |")


def test_a_finished_run_is_measured_like_its_rows(tmp_path, monkeypatch):
    """The errors of a finished run are those of its own result rows, also from stored logits; else one is trained."""
    made = dm.generate(nodes=40, events=900, communities=4).store
    columns = zip(made.src.tolist(), made.dst.tolist(), (made.time - made.time[0]).tolist(), strict=True)
    data = dm.read(list(columns), name="people")
    save_dataset(data, tmp_path / "data")
    folder = tmp_path / "runs" / "people-trees-0"
    (run,) = dm.train(data, "trees", seeds=0, protocol="benchmark", out=folder, device="cpu", epochs=1)
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    options += ["--logits", str(tmp_path / "logits")]
    monkeypatch.setattr(calibration_study, "ProcessPoolExecutor", RunHere)
    main([*STUDY, *options, "--seeds", "0,1"])
    record, trained = StudyResults.read(tmp_path / "calibration.json").records
    rows = {row["setting"]: row for row in run.results.to_pylist() if row["split"] == "test"}
    measured = {row["population"]: row for row in record.rows}
    assert record.settings["trees"] > 0
    for setting, row in rows.items():
        assert {name: measured[setting][name] for name in PROVENANCE} == {
            name: row[name] for name in PROVENANCE
        }
        assert measured[setting]["raw"] == pytest.approx(row["ece_raw"], abs=1e-6)
        assert measured[setting]["fitted"] == pytest.approx(row["ece"], abs=1e-6)
    assert (trained.seed, trained.settings) == (1, record.settings)
    monkeypatch.setattr(calibration_study, "score_run", None)  # from now on logits are read
    main([*STUDY, *options])
    assert StudyResults.read(tmp_path / "calibration.json").records[0].rows == record.rows


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
