"""Checkpoints: one point of commit, the previous generation, and the files derived from them."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dygmamba.core.errors import DygWarning, FileError
from dygmamba.engine.checkpoint import CheckpointManager, TrainingState, load_best, load_newest
from dygmamba.engine.run_directory import RunDirectory
from raising import raises


@pytest.fixture
def kept(tmp_path):
    """A run after two checkpoints, the first with the better weights."""
    run = RunDirectory(tmp_path)
    run.write_config({"run": {"seed": 0}})
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    keeper = CheckpointManager(run, model, optimizer)
    for epoch in (1, 2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        entries = [{"epoch": number, "val_ap": 0.5} for number in range(epoch)]
        keeper.save(TrainingState(epoch=epoch, best_epoch=0, entries=entries), better=epoch == 1)
    return keeper


def again(kept) -> CheckpointManager:
    model = nn.Linear(2, 2)
    return CheckpointManager(RunDirectory(kept.run.path), model, torch.optim.Adam(model.parameters()))


def test_derived_files_are_rewritten_on_restore(kept):
    """Killed after writing `last`: `best` and metrics.jsonl may be missing, old, torn or of another run."""
    run, best = kept.run, kept.run.best.read_bytes()
    for spoil in (
        run.best.unlink,
        lambda: run.best.write_bytes(best[:-1]),
        lambda: run.best.write_bytes(b""),
    ):
        spoil()
        (run.path / "metrics.jsonl").write_text('{"epoch": 7}\n{"ep')
        fresh = again(kept)
        assert fresh.restore().epoch == 2
        assert load_file(run.best).keys() == {"model.weight", "model.bias"}
        assert [entry["epoch"] for entry in run.metrics()] == [0, 1]
        load_best(run, fresh.model)
        assert not torch.equal(fresh.model.weight, kept.model.weight)  # the first epoch's, not the second's


def test_an_outdated_best_is_replaced(kept):
    """A `best` of another epoch than `last` says is rewritten."""
    kept.save(TrainingState(epoch=3, best_epoch=2), better=True)
    newer = kept.run.best.read_bytes()
    kept.run.last.unlink()  # as if the last commit was lost
    with pytest.warns(DygWarning, match="previous one at epoch 2"):
        again(kept).restore()
    assert kept.run.best.read_bytes() != newer
    assert load_best(kept.run, kept.model).best_epoch == 0


def test_a_valid_checkpoint_is_never_replaced_by_a_damaged_one(kept):
    """After falling back to the previous checkpoint, the next save keeps it."""
    before = kept.run.previous.read_bytes()
    kept.run.last.write_bytes(b"x" * 100)
    fresh = again(kept)
    with pytest.warns(DygWarning, match="damaged"):
        assert fresh.restore().epoch == 1
    fresh.save(TrainingState(epoch=5))
    assert kept.run.previous.read_bytes() == before
    fresh.save(TrainingState(epoch=6))
    assert load_newest(kept.run, kept.model).epoch == 6
    kept.run.last.unlink()
    with pytest.warns(DygWarning, match="at epoch 5"):
        load_newest(kept.run, kept.model)


def test_checkpoints_of_other_runs_are_an_error(kept, tmp_path):
    """The same settings in another directory, or other settings in the same one."""
    other = RunDirectory(tmp_path / "other")
    (other.path / "checkpoint").mkdir(parents=True)
    other.write_config({"run": {"seed": 0}})
    for name in ("last", "best"):
        getattr(other, name).write_bytes(getattr(kept.run, name).read_bytes())
    for load in (load_best, load_newest):
        with raises("wrong-checkpoint", FileError):
            load(other, nn.Linear(2, 2))
    kept.run.write_config({"run": {"seed": 1}})
    with raises("wrong-checkpoint", FileError):
        again(kept).restore()


def test_last_and_best_are_not_interchangeable(kept):
    """A copy of `last` named `best`, and of `best` named `last`, are errors."""
    last, best = kept.run.last.read_bytes(), kept.run.best.read_bytes()
    kept.run.best.write_bytes(last)
    with raises("wrong-checkpoint", FileError):
        load_best(kept.run, kept.model)
    kept.run.last.write_bytes(best)
    with raises("wrong-checkpoint", FileError):
        again(kept).restore()


def test_a_run_without_checkpoint_starts_at_the_beginning(tmp_path):
    """Without a checkpoint: epoch 0, step 0, no metrics."""
    run = RunDirectory(tmp_path)
    run.write_metrics([{"epoch": 0}])
    model = nn.Linear(2, 2)
    assert CheckpointManager(run, model, torch.optim.Adam(model.parameters())).restore() == TrainingState()
    assert run.metrics() == []


def test_metrics_survive_unchanged(kept):
    """Even NaN, the AUC of a period without positives."""
    kept.save(TrainingState(epoch=3, entries=[{"auc": float("nan"), "ap": 0.1 + 0.2}]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (entry,) = again(kept).restore().entries
    assert json.dumps(entry) == '{"auc": NaN, "ap": 0.30000000000000004}'
