"""Training: exact resume, early stopping, checkpoints of the wrong run or model."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from dygmamba.core.deadline import Deadline
from dygmamba.core.errors import ConfigError, FileError, Interrupted, ScoreError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.runs.evaluation import evaluate_link_scorer
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run, resume_training
from dygmamba.runs.provenance import extend_run
from observers import StepCounter
from raising import raises

TINY = {"length": 5, "width": 4, "states": 2, "blocks": 1, "out": 8, "time_dim": 4, "epochs": 2, "batch": 100}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with one small dataset, `small`."""
    path = tmp_path_factory.mktemp("data")
    store = generate_stream(GeneratorConfig(seed=3, nodes=40, events=900))
    save_dataset(
        Dataset.from_events("small", store, NodeIds.identity(store.num_nodes), Origin(format="generated")),
        path,
    )
    return path


@pytest.fixture
def dataset(folder):
    from dygmamba.data.storage.library import open_dataset

    return open_dataset("small", folder)


def plain_metrics(run):
    return [{key: value for key, value in entry.items() if "seconds" not in key} for entry in run.metrics()]


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    """A run that was not interrupted."""
    from dygmamba.data.storage.library import open_dataset

    dataset = open_dataset("small", folder)
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY, CPU, tmp_path_factory.mktemp("runs"))
    fit()
    return fit.run


@pytest.mark.parametrize("stop_after", [1, 4, 6, 9])
def test_a_resumed_run_equals_an_uninterrupted_one(finished, dataset, folder, tmp_path, stop_after):
    """For all steps k: stop after k, resume, finish: weights, optimizer and metrics are bit-identical."""
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY, CPU, tmp_path)
    counter = StepCounter()
    with raises("interrupted", Interrupted) as error:
        fit(counter, stop=lambda: counter.steps >= stop_after)
    assert f"dygmamba.resume({str(fit.run.path)!r})" in str(error.value)
    torch.manual_seed(12345)  # the state of the process must not matter
    again = resume_training(fit.run.path, CPU, folder)
    again()
    for name in ("last", "best"):
        ours, whole = load_file(getattr(again.run, name)), load_file(getattr(finished, name))
        assert ours.keys() == whole.keys()
        assert all(torch.equal(ours[key], whole[key]) for key in whole)
    assert plain_metrics(again.run) == plain_metrics(finished)


@pytest.mark.parametrize("over_after", [1, 7, 12])
def test_a_run_that_ends_at_a_deadline_is_the_run_of_its_complete_epochs(
    finished, dataset, folder, tmp_path, over_after
):
    """For all steps at which time is up: at least one epoch, the weights of a run with so many epochs, and it extends.

    Two epochs of six steps were trained without a deadline, so the longer run must pass through the same weights.
    """
    fit, counter = start_link_run(dataset, "dyg-mamba", 0, TINY | {"epochs": 9}, CPU, tmp_path), StepCounter()
    fit(counter, deadline=Deadline(over_after, clock=lambda: counter.steps))
    epochs = max(1, over_after // fit.steps_per_epoch)
    assert fit.state.finished
    assert fit.run.config()["train"]["epochs"] == len(fit.run.metrics()) == epochs
    assert plain_metrics(fit.run) == plain_metrics(finished)[:epochs]
    assert resume_training(fit.run.path, CPU, folder).state.finished
    extend_run(fit.run, {"epochs": 2})
    again = resume_training(fit.run.path, CPU, folder)
    again()
    ours, whole = load_file(again.run.best), load_file(finished.best)
    assert all(torch.equal(ours[key], whole[key]) for key in whole)


def test_resuming_a_finished_run_changes_nothing(finished, folder):
    """A finished run stays unchanged."""
    before = finished.last.read_bytes()
    resume_training(finished.path, CPU, folder)()
    assert finished.last.read_bytes() == before


def test_a_trained_run_evaluates_to_its_own_validation(finished, folder):
    """The best weights give the validation AP that was recorded for the best epoch."""
    run = open_run(finished.path, CPU, folder)
    chosen = [("random", "val", "transductive")]
    (row,) = evaluate_link_scorer(run.scorer, run.stream, {"seed": 0}, chosen, run.rule)
    assert row["ap"] == max(entry["val_ap"] for entry in finished.metrics())


def test_a_stream_without_new_nodes_has_transductive_results_only(tmp_path):
    """If all nodes occur in training, the run has transductive rows only."""
    from dygmamba.core.choices import SCOPES, SPLITS
    from dygmamba.data.events.event_store import EventStore

    count = torch.arange(200)
    store = EventStore.from_columns(count % 3, (count + 1) % 3, count.double())
    dataset = Dataset.from_events("three", store, NodeIds.identity(3), Origin())
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY, CPU, tmp_path)
    chosen = [("random", name, setting) for name in SPLITS for setting in SCOPES]
    rows = evaluate_link_scorer(fit.scorer, fit.stream, {"seed": 0}, chosen, VisibilityRule())
    assert [(row["split"], row["setting"]) for row in rows] == [
        ("val", "transductive"),
        ("test", "transductive"),
    ]


def test_negatives_are_a_function_of_seed_and_epoch(dataset):
    """Equal (seed, epoch) give equal destinations, different ones do not."""
    from dygmamba.data.events.splits import chronological_split
    from dygmamba.tasks.link import LinkTask

    task = LinkTask.create(dataset.store, chronological_split(dataset.store), CPU)
    assert torch.equal(task.draw_negatives(0, 1), task.draw_negatives(0, 1))
    assert not torch.equal(task.draw_negatives(0, 1), task.draw_negatives(0, 2))
    assert not torch.equal(task.draw_negatives(0, 1), task.draw_negatives(1, 1))


def test_early_stopping_needs_both_metrics(finished, dataset, tmp_path):
    """As published: an epoch counts as better only if AP and AUC both reach their best."""
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY | {"patience": 2, "epochs": 50}, CPU, tmp_path)
    for ap, auc in ((0.7, 0.7), (0.8, 0.6), (0.6, 0.8)):
        fit.finish_epoch({"ap": ap, "auc": auc})
    assert fit.state.best_epoch == 0
    assert fit.state.finished


def test_a_diverging_run_stops_and_keeps_its_last_finite_checkpoint(dataset, folder, tmp_path):
    """For all steps whose loss or weights are not finite: an error, and neither `last` nor `best` holds them."""
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY | {"batch": 5, "epochs": 9}, CPU, tmp_path)
    fit.train_epoch()
    fit.finish_epoch(fit.validate())
    kept, counter = fit.run.last.read_bytes(), StepCounter()
    with torch.no_grad():
        fit.scorer.head.out.weight.fill_(torch.nan)
    with raises("diverged", ScoreError) as error:
        fit(counter)
    assert "nan in epoch 1" in str(error.value)
    assert "lr below 0.0001" in str(error.value)
    assert counter.steps <= 32 < fit.steps_per_epoch
    with raises("diverged", ScoreError):
        fit.finish_epoch({"ap": 1.0, "auc": 1.0})
    with raises("not-finite", ScoreError):
        fit.validate()
    assert fit.run.last.read_bytes() == kept
    again = resume_training(fit.run.path, CPU, folder)
    assert all(bool(value.isfinite().all()) for value in again.scorer.parameters())


def test_wrong_checkpoints_are_an_error(finished, dataset, folder, tmp_path):
    """Checkpoints of another model or seed, cut, foreign or missing ones have their own error codes."""
    other = start_link_run(dataset, "dyg-mamba", 0, TINY | {"width": 8}, CPU, tmp_path)
    with raises("wrong-model", FileError):
        load_best(finished, other.scorer)
    with raises("no-checkpoint", FileError):
        load_best(other.run, other.scorer)
    run = RunDirectory(shutil.copytree(finished.path, tmp_path / "copy"))
    whole, cut = finished.best.read_bytes(), finished.best.read_bytes()[:100]
    seed = start_link_run(dataset, "dyg-mamba", 1, TINY, CPU, tmp_path)
    seed()
    foreign = save({"weight": torch.zeros(2)})
    for content, code in (
        (cut, "damaged-checkpoint"),
        (foreign, "damaged-checkpoint"),
        (seed.run.best.read_bytes(), "wrong-checkpoint"),
    ):
        run.best.write_bytes(content)
        with raises(code, FileError):
            open_run(run.path, CPU, folder)
    run.last.write_bytes(seed.run.last.read_bytes())
    with raises("wrong-checkpoint", FileError):
        resume_training(run.path, CPU, folder)
    run.last.write_bytes(finished.last.read_bytes())
    resume_training(run.path, CPU, folder)
    assert run.best.read_bytes() == whole  # made anew of what `last` holds
    with raises("not-a-run", FileError):
        open_run(tmp_path / "elsewhere", CPU, folder)


def test_a_run_does_not_open_with_other_data(finished, tmp_path):
    """A dataset of the same name with other events: the original file is used, else it is an error."""
    store = generate_stream(GeneratorConfig(seed=4, nodes=40, events=900))
    save_dataset(
        Dataset.from_events("small", store, NodeIds.identity(40), Origin(format="generated")), tmp_path
    )
    about = finished.config()["run"]
    assert open_run(finished.path, CPU, tmp_path).dataset.digest == about["digest"]
    own, away = Path(about["file"]), tmp_path / "away"
    own.rename(away)
    try:
        with raises("dataset-changed", FileError):
            open_run(finished.path, CPU, tmp_path)
    finally:
        away.rename(own)


def test_the_run_directory_holds_what_is_needed_to_repeat_the_run(finished):
    """config.toml holds the dataset's digest, the seed and every setting; metrics.jsonl one line per epoch."""
    sections = finished.config()
    rule = {"split", "split_by", "split_at", "protocol"}
    assert set(sections["run"]) == {"data", "digest", "version", "file", "model", "seed"} | rule
    assert set(sections["train"]) == {field.name for field in dataclasses.fields(LinkFitConfig)}
    assert [
        json.loads(line)["epoch"] for line in (finished.path / "metrics.jsonl").read_text().splitlines()
    ] == [0, 1]


def test_random_order_visits_every_batch_once(dataset, tmp_path):
    """Batches of the epoch are those of the time order in another order; its own one in each epoch."""
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY | {"order": "random"}, CPU, tmp_path)
    train, size = fit.stream.train, 100
    orders = [fit.epoch(number).events for number in range(2)]
    assert not torch.equal(*orders)
    for events in orders:
        assert torch.equal(events.sort().values, train)
        found = {tuple(part.tolist()) for part in events.split(size)}
        assert found == {tuple(part.tolist()) for part in train.split(size)}
        assert torch.equal(events[-(len(train) % size) :], train[-(len(train) % size) :])
    assert torch.equal(fit.epoch(0).events, orders[0])


def test_random_order_and_fitted_inputs_resume_exactly(dataset, tmp_path):
    """A run that was interrupted within its first epoch ends with the weights of one that was not."""
    settings = TINY | {"order": "random", "pair_features": ("history",)}
    whole = start_link_run(dataset, "dyg-mamba-counts", 0, settings, CPU, tmp_path / "whole")
    whole()
    counter = StepCounter()
    cut = start_link_run(dataset, "dyg-mamba-counts", 0, settings, CPU, tmp_path / "cut")
    with pytest.raises(Interrupted):
        cut(counter, stop=lambda: counter.steps == 3)
    resumed = resume_training(cut.run.path, CPU, dataset=dataset)
    assert resumed.scorer.is_fitted
    resumed()
    for (name, expected), found in zip(
        whole.scorer.state_dict().items(), resumed.scorer.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, found), name


def test_a_memory_needs_the_order_of_time(dataset, tmp_path):
    with raises("memory-needs-time-order", ConfigError):
        start_link_run(dataset, "tgn", 0, {"order": "random"}, CPU, tmp_path)
