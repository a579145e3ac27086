"""A run that starts from another one: its weights, ids, calibration and settings are carried over, or it is refused."""

import shutil
from pathlib import Path

import pytest
import torch

import dygmamba as dm
from commands import error_code, invoke
from dygmamba.core.errors import DygError, Interrupted
from dygmamba.data.events.splits import TIME_SPLIT
from dygmamba.data.storage.extension import align_dataset
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.blending import (
    check_blendable,
    create_blend,
    find_best_weights,
    open_part,
    score_validation,
)
from dygmamba.runs.calibration import load_saved_calibration
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run, resume_training
from dygmamba.runs.provenance import StartOptions
from dygmamba.runs.recipes import build_link_stream
from dygmamba.runs.warm_start import open_warm_start
from dygmamba.tasks.link import build_link_set
from observers import StepCounter
from raising import raises

CPU = torch.device("cpu")
SETTINGS = {"epochs": 2, "trees": 8, "rounds": 4, "least": 5, "scales": 3, "neighbors": 4, "transitions": 0}
SMALL = {"epochs": 1, "neighbors": 3, "blocks": 1, "time_dim": 8}
EVENTS = 400  # of the earlier dataset


@pytest.fixture(scope="module")
def frame():
    """Events with ids that are sorted differently in a longer stream, and an amount."""
    table = dm.generate(nodes=40, events=900, communities=4).to_pandas()
    for side in ("src", "dst"):
        table[side] = [f"n{node * 7 % 41}" for node in table[side]]
    table["amount"] = [float(row % 5) for row in range(len(table))]
    table.loc[EVENTS + 250 :, "src"] = table.loc[EVENTS + 250 :, "src"].replace("n7", "a new one")
    return table


def read(frame):
    return dm.read(frame, name="mail", features="amount")


def fit_run(dataset, model, place, settings, start=None, seed=0):
    """Train a run without evaluating it."""
    options = StartOptions(TIME_SPLIT, start=start)
    fit = start_link_run(dataset, model, seed, settings, CPU, place, options)
    fit()
    return fit.run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def earlier(frame, place):
    (run,) = dm.train(read(frame[:EVENTS]), "trees", out=place, **SETTINGS)
    return run


@pytest.fixture(scope="module")
def later(frame, earlier, place):
    (run,) = dm.train(read(frame), start_from=earlier, out=place)
    return run


def tensors(run, which="best"):
    folder = RunDirectory(run.path)
    return read_checkpoint(folder, getattr(folder, which))[0]


def test_trees_are_added_to_the_trees_of_the_earlier_run(earlier, later):
    """The first trees, base and features are the earlier ones bit for bit, more follow, and `trees` counts these."""
    old, new = tensors(earlier), tensors(later)
    grown = int(old["model.grown"])
    assert int(new["model.grown"]) > grown == int(new["model.carried"])
    for name in ("feature", "threshold", "left", "right", "value"):
        assert torch.equal(new[f"model.{name}"][:grown], old[f"model.{name}"][:grown])
    assert torch.equal(old["model.base"], new["model.base"])
    assert torch.equal(old["model.asked"], new["model.asked"])
    assert later.config["model"] == earlier.config["model"]
    assert later.config["train"] == earlier.config["train"]


def test_the_number_of_negatives_follows_from_the_events_that_are_learned_from(earlier, later, monkeypatch):
    """Also where the other facts are those of the earlier run."""
    monkeypatch.setattr("dygmamba.models.configs.SHORT_STREAM", 100)
    assert [open_run(run.path, CPU).scorer.negatives for run in (earlier, later)] == [2, 2]


def test_a_node_keeps_its_number_and_its_scores_before_new_rounds(frame, earlier, later):
    """For all ids of the earlier dataset; the start weights on the new stream give the scores of the earlier run."""
    old, new = open_run(earlier.path, CPU), open_run(later.path, CPU)
    known = new.dataset.ids.to_node(old.dataset.ids.values, "src")
    assert known.tolist() == list(range(len(old.dataset.ids)))
    assert new.dataset.ids.to_user(new.dataset.store.src.numpy()).to_pylist() == frame["src"].tolist()
    assert new.dataset.ids.to_user(new.dataset.store.dst.numpy()).to_pylist() == frame["dst"].tolist()
    assert new.scorer.requests == old.scorer.requests  # the same time scales and columns
    assert "a new one" in new.dataset.ids.values.to_pylist()[len(old.dataset.ids) :]
    assert later.score([("n7", "a new one")]).num_rows == 1


@pytest.mark.parametrize("step", [0, 5])
def test_a_stopped_run_ends_with_the_same_bits(frame, earlier, later, tmp_path, step):
    """For all rounds after which it is stopped; also if it is killed before its first checkpoint (0)."""
    start = open_warm_start(earlier.path)
    dataset = align_dataset(read(frame), start.dataset)
    fit = start_link_run(dataset, "trees", 0, {}, CPU, tmp_path, StartOptions(start.rule, start=start))
    if step:
        counter = StepCounter()
        with pytest.raises(Interrupted):
            fit(counter, stop=lambda: counter.steps >= step)
    else:
        shutil.rmtree(fit.run.last.parent)
    fit.run.unlock()
    again = resume_training(fit.run.path, CPU, dataset=dataset)
    again()
    whole, parts = tensors(later), read_checkpoint(again.run, again.run.best)[0]
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_run_without_checkpoint_needs_the_weights_that_it_recorded(frame, earlier, tmp_path):
    """If they are gone there is no way to the same bits, so it is an error and not another training."""
    copy = shutil.copytree(earlier.path, tmp_path / "mail" / "trees" / "copy")
    start = open_warm_start(copy, dataset=open_run(earlier.path, CPU).dataset)
    dataset = align_dataset(read(frame), start.dataset)
    fit = start_link_run(dataset, "trees", 0, {}, CPU, tmp_path, StartOptions(start.rule, start=start))
    shutil.rmtree(fit.run.last.parent)
    shutil.rmtree(copy)
    fit.run.unlock()
    with raises("start-weights-changed"):
        resume_training(fit.run.path, CPU, dataset=dataset)


def test_a_network_starts_with_the_best_weights_and_a_new_optimizer(frame, place):
    """The first checkpoint has the weights of the earlier run, no moment of Adam, and no epoch."""
    old_data = read(frame[:EVENTS])
    run = fit_run(old_data, "graphmixer", place, SMALL)
    start = open_warm_start(run.path, dataset=old_data)
    dataset = align_dataset(read(frame), start.dataset)
    fit = start_link_run(
        dataset, "graphmixer", 1, {"lr": 0.01}, CPU, place, StartOptions(start.rule, start=start)
    )
    assert fit.config.lr == 0.01
    assert fit.config.epochs == 1
    old, (new, state) = tensors(run), read_checkpoint(fit.run, fit.run.last)
    assert (state.epoch, state.step) == (0, 0)
    assert not [name for name in new if name.startswith("optimizer")]
    assert all(torch.equal(new[name], old[name]) for name in old)
    fit()
    trained = read_checkpoint(fit.run, fit.run.best)[0]
    assert not torch.equal(trained["model.head.out.weight"], old["model.head.out.weight"])


def test_a_network_keeps_the_statistics_of_its_inputs(frame, place):
    """They belong to the weights: those of the earlier training period, bit for bit, before and after training."""
    settings = {
        "epochs": 1, "length": 4, "width": 4, "blocks": 1, "time_dim": 4, "states": 2, "out": 8, "order": "random",
        "pair_features": ("history",),
    }  # fmt: skip
    old_data = read(frame[:EVENTS])
    run = fit_run(old_data, "dyg-mamba-counts", place, settings)
    start = open_warm_start(run.path, dataset=old_data)
    dataset = align_dataset(read(frame), start.dataset)
    fit = start_link_run(
        dataset, "dyg-mamba-counts", 1, {}, CPU, place, StartOptions(start.rule, start=start)
    )
    assert fit.config.order == "random"
    assert fit.scorer.is_fitted
    fit()
    old, new = tensors(run), tensors(fit.run)
    statistics = [name for name in old if ".standardise." in name]
    assert len(statistics) == 3
    assert all(torch.equal(new[name], old[name]) for name in statistics)
    fresh = start_link_run(dataset, "dyg-mamba-counts", 1, settings, CPU, place, StartOptions(TIME_SPLIT))
    fresh()
    own = tensors(fresh.run)
    assert not all(torch.equal(own[name], old[name]) for name in statistics)


def test_it_is_recorded_and_reported(earlier, later):
    """Configuration, report and calibration name the run that it started from; refit starts there again."""
    assert later.config["run"]["start_from"] == str(earlier.path)
    assert "1 of 41 nodes are new" in later.config["chosen"]["start_from"]
    assert "it started from" in (later.path / "report.html").read_text()
    assert "it started from" not in (earlier.path / "report.html").read_text()
    everything = dm.refit(later.path)
    assert int(tensors(everything)["model.carried"]) == int(tensors(earlier)["model.grown"])


def test_a_setting_without_validation_events_keeps_its_calibration(frame, earlier, place):
    """Where no new node occurs in validation, the calibration of new nodes is the earlier one."""
    (run,) = dm.train(read(frame[: EVENTS + 200]), start_from=earlier.path, out=place, epochs=1)
    old, new = (load_saved_calibration(RunDirectory(one.path)) for one in (earlier, run))
    assert old is not None
    assert new is not None
    assert new.new_nodes == old.new_nodes
    assert new.calibration != old.calibration


def test_runs_of_one_start_can_be_blended(frame, earlier, later, place):
    """The blend has their time scales, and is no start itself; a run that was trained anew has other scales."""
    start = open_warm_start(earlier.path)
    dataset = open_run(later.path, CPU).dataset
    other, anew = (
        fit_run(dataset, "trees", place, {"epochs": 1} if one else SETTINGS, one, seed=1)
        for one in (start, None)
    )
    stream = build_link_stream(dataset, CPU, TIME_SPLIT)
    first = RunDirectory(later.path)
    check_blendable([first, other], is_evaluated=False)
    parts = [open_part(folder, dataset, stream) for folder in (first, other)]
    evaluation_set = build_link_set(stream.store, stream.split, "val")
    scores = [score_validation(part, evaluation_set) for part in parts]
    chosen = find_best_weights(scores, evaluation_set)
    blend = create_blend(parts, *chosen, place)
    assert blend.run.config()["facts"] == later.config["facts"]
    with raises("blend-other-start"):
        check_blendable([first, anew], is_evaluated=False)
    with raises("start-from-blend"):
        open_warm_start(blend.run.path, dataset=dataset)


REFUSED = {
    "start-other-model": {"model": "tgn"},
    "start-and-preset": {"preset": "small"},
    "start-of-node-task": {"task": "node"},
    "start-other-settings": {"scales": 4},
    "start-knows-evaluation": {"split": (0.2, 0.4, 0.4)},
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_carried_over_is_refused(frame, earlier, tmp_path, code):
    """Before a run directory is made."""
    with raises(code, DygError):
        dm.train(read(frame), start_from=earlier, out=tmp_path, **REFUSED[code])
    assert not list(tmp_path.glob("mail/trees/*"))


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("other-columns", lambda frame: frame.rename(columns={"amount": "price"})),
        ("other-times", lambda frame: frame.assign(time=frame["time"] - 1.7e9)),
    ],
)
def test_other_columns_and_times_are_refused(frame, earlier, tmp_path, code, change):
    """The features of the earlier run would mean something else."""
    with raises(code):
        changed = change(frame)
        dm.train(dm.read(changed, features=changed.columns[-1]), start_from=earlier, out=tmp_path)


def test_a_memory_takes_no_unknown_nodes(frame, place):
    """Its tables have a row per node of the earlier dataset; with the same nodes it starts."""
    few = {"epochs": 1, "time_dim": 8, "neighbors": 2, "heads": 1, "out": 8}
    old = read(frame[:EVENTS])
    start = open_warm_start(fit_run(old, "tgn", place, few).path, dataset=old)
    with raises("start-unknown-nodes"):
        fit_run(align_dataset(read(frame), old), "tgn", place, {}, start)
    known = align_dataset(read(frame[: EVENTS + 200]), old)
    assert fit_run(known, "tgn", place, {}, start).best.exists()


def test_the_command_starts_from_a_run(frame, earlier, tmp_path, monkeypatch, capsys):
    """`--from RUN` trains, a mistake is one sentence and exit code 2, and `--resume` takes no `--from`."""
    monkeypatch.chdir(tmp_path)
    frame.drop(columns="label").to_csv("mail.csv", index=False)
    words = ("train", "mail.csv", "--from", str(earlier.path), "--json")
    code, out, err = invoke(monkeypatch, capsys, *words, "--epochs", "1")
    assert code == 0, err
    (made,) = Path("runs").glob("mail/trees/*-seed0")
    assert RunDirectory(made).config()["run"]["start_from"] == str(earlier.path)
    code, out, err = invoke(monkeypatch, capsys, *words, "--model", "tgn")
    assert (code, error_code(out)) == (2, "start-other-model")
    assert "--from" not in err
