"""What a run keeps: one commit point, the generation before it, and files made of them."""

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
    """A run after two commits, the first of them the better."""
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


def test_what_is_made_of_a_commit_is_made_anew(kept):
    """Killed between the commit and what follows it: `best` and metrics.jsonl are missing, old, torn or foreign."""
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


def test_an_older_best_than_the_commit_says_is_replaced(kept):
    """`best` of another epoch than `last` knows of is of a time that never was."""
    kept.save(TrainingState(epoch=3, best_epoch=2), better=True)
    newer = kept.run.best.read_bytes()
    kept.run.last.unlink()  # as if the last commit was lost
    with pytest.warns(DygWarning, match="previous one at epoch 2"):
        again(kept).restore()
    assert kept.run.best.read_bytes() != newer
    assert load_best(kept.run, kept.model).best_epoch == 0


def test_a_good_generation_is_never_replaced_by_a_damaged_one(kept):
    """After a fall-back the next commit leaves the good one where it is."""
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


def test_other_runs_checkpoints_and_other_settings_are_refused(kept, tmp_path):
    """The same settings in another folder, or other settings in the same: not the run's own."""
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


def test_one_kind_of_checkpoint_is_never_taken_for_the_other(kept):
    """`last` under the name of `best` has other weights, `best` under that of `last` lacks half of the state."""
    last, best = kept.run.last.read_bytes(), kept.run.best.read_bytes()
    kept.run.best.write_bytes(last)
    with raises("wrong-checkpoint", FileError):
        load_best(kept.run, kept.model)
    kept.run.last.write_bytes(best)
    with raises("wrong-checkpoint", FileError):
        again(kept).restore()


def test_a_run_that_saved_nothing_starts_anew(tmp_path):
    """No checkpoint: the first position, and no epochs."""
    run = RunDirectory(tmp_path)
    run.write_metrics([{"epoch": 0}])
    model = nn.Linear(2, 2)
    assert CheckpointManager(run, model, torch.optim.Adam(model.parameters())).restore() == TrainingState()
    assert run.metrics() == []


def test_numbers_of_entries_survive_as_they_are(kept):
    """NaN among them: a period without positives has no AUC."""
    kept.save(TrainingState(epoch=3, entries=[{"auc": float("nan"), "ap": 0.1 + 0.2}]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (entry,) = again(kept).restore().entries
    assert json.dumps(entry) == '{"auc": NaN, "ap": 0.30000000000000004}'
