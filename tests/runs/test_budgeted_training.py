"""Training within a time budget: which candidates are tried, which one is chosen, and how it goes on after a stop.

Clocks are fake where time decides: a clock of these tests moves by one with every step of a training.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import dygmamba as dm
from commands import invoke
from dygmamba.api.requests.training import parse_budget
from dygmamba.config import SIZE_PRESETS
from dygmamba.core.deadline import Deadline
from dygmamba.core.errors import ConfigError, FileError, Interrupted
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.checkpoint import read_newest
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.html import render_document
from dygmamba.report.run_report import build_report_document
from dygmamba.runs import budgeted_training
from dygmamba.runs.budgeted_training import train_within_budget
from dygmamba.runs.candidates import CANDIDATES, Candidate, find_refused, list_candidates
from dygmamba.runs.evaluation import Queries, Scored
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.pipeline import TrainingPlan
from dygmamba.runs.selection import compare_blend, describe_choice, load_selection
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.statistics import Difference
from letters import COLUMNS, make_letters
from observers import StepCounter
from raising import raises

CPU = torch.device("cpu")
TREES = {"trees": 6, "rounds": 3, "epochs": 2, "least": 5, "scales": 2, "neighbors": 2}
OPTIONS = [word for name, value in TREES.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def data():
    return dm.read(pd.DataFrame(make_letters()), **COLUMNS, name="letters")


@pytest.fixture(scope="module")
def chosen(data, tmp_path_factory):
    """The run that was chosen with time enough; settings of trees refuse the networks."""
    (run,) = dm.train(data, budget="1h", device="cpu", out=tmp_path_factory.mktemp("runs"), **TREES)
    return run


def plan(out, **more):
    return TrainingPlan(TREES, CPU, out, **more)


def test_a_budget_is_a_time_with_a_unit():
    """Minutes, hours, seconds, fractions and plain numbers; anything else is an error."""
    given = {"10m": 600, "1h": 3600, "90s": 90, "1.5 h": 5400, "2min": 120, "45": 45, 30: 30, 0.5: 0.5}
    assert {text: parse_budget(text) for text in given} == given
    for text in ("", "soon", "0m", "-1h", "10 weeks", "1h30m", "nan", "2000d"):
        with raises("invalid-budget", ConfigError):
            parse_budget(text)


def test_the_machine_and_the_user_decide_the_candidates():
    """Trees come first on any machine, the flagship before another network on a GPU; a model or preset narrows it."""
    cpu, gpu = ([one.model for one in list_candidates(kind, None, None)] for kind in ("cpu", "cuda"))
    assert cpu[:2] == gpu[:2] == ["trees", "walk-trees"]
    assert gpu[2:] == ["dyg-mamba-counts", "dygformer"]
    assert list_candidates("cpu", "tgn", None) == (Candidate("tgn"),)
    for preset in SIZE_PRESETS:
        assert list_candidates("cpu", None, preset) == (Candidate("dyg-mamba", preset),)
    assert [one.model for one in list_candidates("cpu", None, "paper")] == [*cpu[:2], "dyg-mamba-counts"]
    refused = find_refused(list_candidates("cpu", None, None), {"leaves": 5})
    assert [one.model for one in refused] == ["dyg-mamba-counts", "dyg-mamba-counts"]
    with raises("unknown-setting", ConfigError):
        find_refused(list_candidates("cpu", None, None), {"leafs": 5})


def test_the_best_by_validation_is_chosen_and_says_so(chosen):
    """The record has a row per candidate; the others are trained and not evaluated; the report shows the table."""
    record = chosen.selection
    rows = {row["model"]: row for row in record["candidates"]}
    trained = {name: row for name, row in rows.items() if row["state"] == "trained"}
    assert list(trained) == ["trees", "walk-trees"]
    assert (
        record["chosen"]
        == max(trained, key=lambda name: trained[name]["val_ap"])
        == chosen.config["run"]["model"]
    )
    assert record["reason"].startswith(f"{record['chosen']} has the best validation AP")
    assert "unknown setting 'trees'" in rows["dyg-mamba-counts"]["reason"]
    assert "too few events" in rows["blend"]["reason"]
    for row in trained.values():
        run = RunDirectory(chosen.path.parent.parent.parent / row["run"])
        assert row["val_ap"] == run.metrics()[row["best_epoch"] - 1]["val_ap"]
        assert run.finished == (run.path == chosen.path)
        assert row["epochs"] == run.config()["train"]["epochs"] == 2
        assert (row["ended"], row["seconds"] > 0, row["peak_mb"] > 50) == ("epochs", True, True)
    page = render_document(build_report_document(RunDirectory(chosen.path)))
    assert "Models tried" in page
    assert "skipped: unknown setting" in page


def test_a_candidate_that_was_not_chosen_is_not_unfinished(chosen, tmp_path, monkeypatch, capsys):
    """In the list of runs the chosen one is finished, the others are rejected; one that was stopped is neither."""
    root = chosen.path.parents[2]
    listed = dm.list_runs(folder=root).to_pylist()
    assert {Path(row["path"]) == chosen.path: (row["finished"], row["rejected"]) for row in listed} == {
        True: (True, False),
        False: (False, True),
    }
    code, out, _ = invoke(monkeypatch, capsys, "runs", "--runs", str(root))
    assert (code, out.count("not chosen"), out.count("not finished")) == (0, len(listed) - 1, 0)
    shutil.copytree(root, tmp_path / "runs")
    for record in (tmp_path / "runs").glob("*/*/*/selection.json"):  # the choice was stopped before its end
        record.write_text(json.dumps(json.loads(record.read_text()) | {"chosen": None, "run": None}))
    assert not any(row["rejected"] for row in dm.list_runs(folder=tmp_path / "runs").to_pylist())


def test_a_chosen_run_is_the_run_that_is_trained_alone(data, chosen, tmp_path):
    """The same weights to the bit: neither the clock nor the other candidates are part of a run."""
    (alone,) = dm.train(data, chosen.config["run"]["model"], device="cpu", out=tmp_path, **TREES)
    ours, whole = (load_file(RunDirectory(run.path).best) for run in (chosen, alone))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    assert alone.selection == {}


@pytest.mark.parametrize("stopped_in", ["training", "evaluation"])
def test_a_stopped_choice_continues_where_it_was(data, chosen, tmp_path, monkeypatch, stopped_in):
    """For a stop in the second training or in the final evaluation: nothing is trained again, the choice is equal."""
    target = "train_without_evaluation" if stopped_in == "training" else "finish_run"
    original, calls = getattr(budgeted_training, target), []

    def stop_at_walks(fit, *others):
        calls.append(fit)
        if stopped_in == "evaluation" or len(calls) == 2:
            raise Interrupted("stopped")
        return original(fit, *others)

    with monkeypatch.context() as patched, raises("interrupted", Interrupted):
        patched.setattr(budgeted_training, target, stop_at_walks)
        dm.train(data, budget="1h", device="cpu", out=tmp_path, **TREES)
    (first,), (second,) = (list(tmp_path.glob(f"letters/{model}/*")) for model in ("trees", "walk-trees"))
    before = RunDirectory(first).best.stat().st_mtime_ns
    run = dm.resume(second if stopped_in == "training" else first, device="cpu")
    assert RunDirectory(first).best.stat().st_mtime_ns == before
    assert run.selection["chosen"] == chosen.selection["chosen"]
    assert run.path in (first, second)
    assert len(list(tmp_path.glob("letters/*/*/config.toml"))) == 2
    loser = first if run.path == second else second
    assert (
        dm.resume(loser, device="cpu").path == loser
    )  # a complete choice is left alone: the run is evaluated
    assert RunDirectory(loser).finished


@pytest.mark.parametrize("outside", ["../elsewhere", "letters/../../elsewhere", "/elsewhere", ""])
def test_a_record_names_runs_of_its_folder_only(chosen, tmp_path, outside):
    """For all paths that lead elsewhere: the record is refused before anything is written there."""
    root = tmp_path / "runs"
    shutil.copytree(chosen.path.parent.parent.parent, root)
    run = root / chosen.path.relative_to(chosen.path.parent.parent.parent)
    file = run / "selection.json"
    content = json.loads(file.read_text())
    content["candidates"][0]["run"] = str(tmp_path / "elsewhere") if outside == "/elsewhere" else outside
    for change in (content, content | {"candidates": [], "run": "../elsewhere"}):
        file.write_text(json.dumps(change))
        with raises("path-outside-folder", FileError):
            dm.resume(run, device="cpu")
    assert not (tmp_path / "elsewhere").exists()
    content["candidates"][0]["run"] = 3
    file.write_text(json.dumps(content))
    with raises("damaged-selection", FileError):
        dm.resume(run, device="cpu")


@pytest.fixture
def untested(monkeypatch):
    """The chosen run is not evaluated, which takes longer than these trainings."""
    monkeypatch.setattr(budgeted_training, "finish_run", lambda fit, *_: fit)


@pytest.mark.parametrize(("seconds", "epochs"), [(1, 1), (7, 2)])
@pytest.mark.usefixtures("untested")
def test_the_clock_decides_what_is_tried_and_not_what_a_run_is(data, tmp_path, monkeypatch, seconds, epochs):
    """A step takes a second. The first candidate has at least one epoch, an epoch that is not complete does not count.

    The others are skipped with a reason. Without a clock, as many epochs give the same bits.
    """
    monkeypatch.setattr(budgeted_training, "START_SECONDS", 1.0)
    counter, settings = StepCounter(), TREES | {"epochs": 4, "trees": 12}
    deadline = Deadline(seconds, clock=lambda: float(counter.steps))
    fit = train_within_budget(data, replace(plan(tmp_path), settings=settings), 0, deadline, counter)
    first, second, *_ = load_selection(fit.run).candidates
    assert (first.model, first.epochs, first.ended) == ("trees", epochs, "time")
    assert "the time is used up" in second.reason
    assert fit.run.config()["train"]["epochs"] == epochs
    alone = start_link_run(data, "trees", 0, settings | {"epochs": epochs}, CPU, tmp_path / "alone")
    alone()
    ours, whole = (load_file(one.run.best) for one in (fit, alone))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.usefixtures("untested")
def test_a_candidate_that_is_too_slow_ends_in_its_first_epoch(data, tmp_path, monkeypatch):
    """A network whose first epoch would not end in time is skipped after a few steps, whatever was expected."""
    monkeypatch.setattr(budgeted_training, "estimate_seconds", lambda *_, **__: 1.0)
    monkeypatch.setitem(CANDIDATES, "cpu", (Candidate("trees"), Candidate("graphmixer")))
    counter = StepCounter()
    deadline = Deadline(45, clock=lambda: float(counter.steps))
    few = replace(plan(tmp_path), settings={"epochs": 1, "batch": 4})
    fit = train_within_budget(data, few, 0, deadline, counter)
    first, second, *_ = load_selection(fit.run).candidates
    assert fit.run.config()["run"]["model"] == first.model == "trees"
    assert second.state == "skipped"
    assert read_newest(RunDirectory(tmp_path / second.run))[1].step < 12
    assert "its first epoch would not end" in second.reason


@pytest.fixture(scope="module")
def longer():
    """A stream with enough validation events to compare candidates by blocks."""
    return dm.generate(nodes=40, events=1_000, communities=4)


@pytest.mark.parametrize(
    "changed", [{"loss": "ranking", "train_candidates": 2}, {"train_negatives": "mixed"}]
)
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.usefixtures("untested")
def test_candidates_are_compared_on_the_same_pairs(longer, tmp_path, monkeypatch, changed, is_stopped):
    """For trees, which also rank their validation, and a network; also after a stop, when scores are computed again."""
    monkeypatch.setitem(CANDIDATES, "cpu", (Candidate("trees"), Candidate("graphmixer")))
    monkeypatch.setattr(budgeted_training.Selector, "_fits_again", lambda *_: False)
    monkeypatch.setattr(budgeted_training, "compare_blend", lambda *_: Difference(0.02, 0.001))
    original, whole = budgeted_training.train_without_evaluation, plan(tmp_path)
    whole = replace(whole, settings={"epochs": 1, "neighbors": 2, "batch": 200, **changed})
    runs = []

    def stop(fit, *others):
        runs.append(fit.run.path)
        if is_stopped and len(runs) == 2:
            raise Interrupted("stopped")
        return original(fit, *others)

    monkeypatch.setattr(budgeted_training, "train_without_evaluation", stop)
    try:
        fit = train_within_budget(longer, whole, 0, Deadline.after(600), StepCounter())
    except Interrupted:
        folder = save_dataset(longer, tmp_path / "data").parent
        record = budgeted_training.find_unfinished_selection(runs[0])
        fit = budgeted_training.resume_selection(
            runs[0], record, whole, folder, Deadline.after(600), StepCounter()
        )
    trees, network, *_ = load_selection(fit.run).candidates
    for row in (trees, network):
        assert row.state == "trained"
        assert row.val_ap == max(entry["val_ap"] for entry in RunDirectory(tmp_path / row.run).metrics())


@pytest.mark.parametrize("expected", [30.0, 1e6])
@pytest.mark.usefixtures("untested")
def test_an_estimate_does_not_leave_most_of_the_budget_unused(data, tmp_path, monkeypatch, expected):
    """A step takes a second. Neither a first training that is all start nor a wrong estimate keeps the second out."""
    monkeypatch.setattr(
        budgeted_training, "estimate_seconds", lambda one, *_, **__: 0.1 if one.model == "trees" else expected
    )
    monkeypatch.setitem(CANDIDATES, "cpu", (Candidate("trees"), Candidate("graphmixer")))
    counter = StepCounter()
    few = replace(plan(tmp_path), settings={"epochs": 1, "batch": 20, "neighbors": 2})
    deadline = Deadline(200, clock=lambda: float(counter.steps))
    fit = train_within_budget(data, few, 0, deadline, counter)
    assert deadline.left > 100
    assert [row.state for row in load_selection(fit.run).candidates[:2]] == ["trained", "trained"]


def test_a_candidate_that_cannot_be_trained_does_not_end_the_choice(data, tmp_path, monkeypatch):
    """Its error is the reason why it was skipped; if no candidate can be trained, the first error is raised."""
    original = budgeted_training.start_or_restart

    def refuse(models):
        def start(dataset, plan, *others):
            if plan.model in models:
                raise ConfigError(f"{plan.model} is too large", code="out-of-memory")
            return original(dataset, plan, *others)

        return start

    monkeypatch.setattr(budgeted_training, "start_or_restart", refuse(["trees"]))
    (run,) = dm.train(data, budget="1h", device="cpu", out=tmp_path, **TREES)
    assert run.config["run"]["model"] == "walk-trees"
    assert run.selection["candidates"][0]["reason"] == "trees is too large"
    monkeypatch.setattr(budgeted_training, "start_or_restart", refuse(["trees", "walk-trees"]))
    with raises("out-of-memory", ConfigError):
        dm.train(data, budget="1h", device="cpu", out=tmp_path / "none", **TREES)


@pytest.fixture(scope="module")
def validation():
    """Validation pairs of a stream, and two scores of them that are wrong in different places."""
    store = generate_stream(GeneratorConfig(seed=1, nodes=40, events=3000))
    evaluation_set = build_link_set(store, chronological_split(store), "val")
    label, draw = evaluation_set.pairs.label.double(), np.random.default_rng(0)
    first, second = (label + torch.from_numpy(draw.normal(0, 1, len(label))) for _ in range(2))
    return evaluation_set, first, second


def test_a_blend_is_chosen_if_it_is_better_by_more_than_chance(validation):
    """Independent errors average out; with itself, or with noise, a score gains nothing."""
    evaluation_set, first, second = validation
    first, second, noise = (
        Scored(Queries(evaluation_set), score)
        for score in (first, second, torch.from_numpy(np.random.default_rng(5).normal(0, 1, len(first))))
    )
    assert compare_blend([first, second]).is_significant
    assert compare_blend([first, first]) == Difference(0.0, 0.0)
    assert not compare_blend([first, noise]).is_significant
    assert first.difference(noise).is_significant
    assert first.difference(second).value == pytest.approx(-second.difference(first).value)
    assert "within chance" in describe_choice(["a", "b"], [0.8, 0.7], [None, Difference(0.01, 0.02)], 0)
    assert "1.00 ± 0.40 above b" in describe_choice(
        ["a", "b"], [0.8, 0.7], [None, Difference(0.01, 0.002)], 0
    )


def test_a_chosen_blend_is_a_run_with_the_record(data, tmp_path, monkeypatch, capsys):
    """The command prints the table and the reason; `compare` and `open` take the run like any other."""
    monkeypatch.setattr(budgeted_training, "compare_blend", lambda *_: Difference(0.02, 0.001))
    # on these few events the best weights may leave one run
    monkeypatch.setattr(
        budgeted_training, "find_best_weights", lambda *_: ((0.5, 0.5), {"ap": 0.7, "auc": 0.7})
    )
    monkeypatch.chdir(tmp_path)
    save_dataset(data, tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "140")
    words = ("train", "letters", "--budget", "1h", "--device", "cpu", *OPTIONS)
    code, out, errors = invoke(monkeypatch, capsys, *words)
    assert code == 0, errors
    assert "models tried within 60 min" in out
    assert "Chosen: the blend " in out
    assert "2.00 ± 0.20 above" in out
    assert re.search(r"dyg-mamba-counts \(preset small\) +skipped: unknown setting", out)
    (path,) = Path("runs/letters/blend").iterdir()
    run = dm.open(path, device="cpu")
    assert run.selection["chosen"] == "blend"
    assert [row["model"] for row in run.selection["candidates"] if row["run"]] == [
        "trees",
        "walk-trees",
        "blend",
    ]
    assert run.rank(["ann"], k=2).num_rows == 2
    assert dm.compare([path]).sections
    assert json.loads((path / "results.json").read_text())["selection"]["run"] == str(
        path.relative_to("runs")
    )


@pytest.fixture
def networks(monkeypatch):
    """Two quick networks as the candidates of a CPU; the chosen run is evaluated like any other."""
    monkeypatch.setitem(CANDIDATES, "cpu", (Candidate("graphmixer"), Candidate("tcl")))
    return {"epochs": 1, "batch": 100, "neighbors": 2, "out": 8}


def list_trained(rows):
    return [(row.model, row.seed) for row in rows if row.state == "trained" and row.model != "blend"]


@pytest.mark.usefixtures("untested")
def test_time_that_is_left_goes_into_further_seeds_of_the_best_network(data, tmp_path, networks):
    """Two more trainings of it, each a run that has its own seed; the blend is of the four best."""
    plans = replace(plan(tmp_path), settings=networks)
    fit = train_within_budget(data, plans, 3, Deadline.after(600), StepCounter())
    rows = load_selection(fit.run).candidates
    (first, _), (second, _), *seeds = list_trained(rows)
    best = max(rows[:2], key=lambda row: row.val_ap).model
    assert {first, second} == {"graphmixer", "tcl"}
    assert seeds[0] == (best, 4)
    assert len(seeds) == 2
    for row in rows[2:4]:
        run = RunDirectory(tmp_path / row.run)
        assert run.config()["run"]["seed"] == row.seed
        alone = start_link_run(data, row.model, row.seed, networks, CPU, tmp_path / "alone")
        alone()
        ours, whole = load_file(run.best), load_file(alone.run.best)
        assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.usefixtures("untested")
def test_a_further_seed_needs_the_time_of_a_whole_training(data, tmp_path, networks, monkeypatch):
    """A model that the user named is trained once."""
    monkeypatch.setattr(budgeted_training.Selector, "_fits_again", lambda *_: False)
    fit = train_within_budget(
        data, replace(plan(tmp_path), settings=networks), 0, Deadline.after(600), StepCounter()
    )
    assert [seed for _, seed in list_trained(load_selection(fit.run).candidates)] == [None, None]
    monkeypatch.undo()
    named = replace(plan(tmp_path / "named"), settings=networks, model="graphmixer")
    monkeypatch.setattr(budgeted_training, "finish_run", lambda fit, *_: fit)
    fit = train_within_budget(data, named, 0, Deadline.after(600), StepCounter())
    assert list_trained(load_selection(fit.run).candidates) == [("graphmixer", None)]


@pytest.mark.parametrize("given", [0, 2])
@pytest.mark.usefixtures("untested")
def test_a_choice_that_is_stopped_in_a_further_seed_continues_there(
    data, tmp_path, networks, monkeypatch, given
):
    """The first two trainings are not repeated, and the choice ends with the same runs, whichever run is given."""
    original, calls = budgeted_training.train_without_evaluation, []

    def stop(fit, *others):
        calls.append(fit.run.path)
        if len(calls) == 3:
            raise Interrupted("stopped")
        return original(fit, *others)

    monkeypatch.setattr(budgeted_training, "train_without_evaluation", stop)
    whole = replace(plan(tmp_path), settings=networks)
    with raises("interrupted", Interrupted):
        train_within_budget(data, whole, 0, Deadline.after(600), StepCounter())
    record = budgeted_training.find_unfinished_selection(calls[given])
    folder = save_dataset(data, tmp_path / "data").parent
    fit = budgeted_training.resume_selection(
        calls[given], record, whole, folder, Deadline.after(600), StepCounter()
    )
    assert len(calls) == 5
    assert calls[3] == calls[2]
    assert [seed for _, seed in list_trained(load_selection(fit.run).candidates)] == [None, None, 1, 2]
