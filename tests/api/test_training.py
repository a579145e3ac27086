"""What a user gets who names no model, stops at a bad moment, or wants a run for use."""

import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.cli.progress import LineProgress, ProgressTask, show_progress
from dygmamba.config import SIZE_PRESETS, check_settings, find_preset, find_size_preset, load_presets
from dygmamba.core import memory_budget
from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.core.progress import ForwardingProgress
from dygmamba.data.events.times import format_rough_duration
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.default_model import choose_model
from dygmamba.runs.link_training import TableSize, start_link_run
from dygmamba.runs.opening import store_run_dataset
from dygmamba.runs.pipeline import FinishOptions, TimeEstimate, TrainingPlan, resume_run, train_link_run
from dygmamba.runs.provenance import StartOptions
from letters import COLUMNS, make_letters
from raising import raises

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TREES = {"trees": 6, "rounds": 3, "epochs": 2, "least": 5, "scales": 2, "neighbors": 2}
OPTIONS = [word for name, value in TREES.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def data():
    return dm.read(pd.DataFrame(make_letters()), **COLUMNS, name="letters")


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    save_dataset(data, path)
    return path


@pytest.fixture
def command(folder, tmp_path, monkeypatch, capsys):
    """`dygmamba` in this process, its datasets and run folders apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(folder))
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: invoke(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("device", "task", "settings", "size", "model", "found"),
    [
        (GPU, "link", {}, None, "dyg-mamba-counts", None),
        (GPU, "link", {"length": 16}, None, "dyg-mamba-counts", None),
        (GPU, "link", {}, "small", "dyg-mamba", "small"),
        (CPU, "link", {}, None, "trees", None),
        (CPU, "link", {"epochs": 3, "leaves": 7}, None, "trees", None),
        (CPU, "link", {"length": 16}, None, "dyg-mamba", None),
        (CPU, "link", {"lenght": 16}, None, "dyg-mamba", None),
        (CPU, "link", {}, "small", "dyg-mamba", "small"),
        (GPU, "node", {}, None, "dyg-mamba", None),
        (CPU, "node", {}, None, "trees", None),
        (CPU, "node", {"values": 3, "balance": True}, None, "trees", None),
        (CPU, "node", {"length": 16}, None, "dyg-mamba", "small"),
        (CPU, "node", {}, "paper", "dyg-mamba", "paper"),
    ],
)
def test_the_model_suits_the_machine_unless_a_setting_says_otherwise(
    device, task, settings, size, model, found
):
    """Trees without a GPU, a network with one or where only that can do it; a sentence names the other way.

    With a GPU the network for links reads decayed counts, and the sentence names the paper's.
    """
    pick = choose_model(device.type, task, settings, size)
    assert (pick.model, pick.preset) == (model, found)
    assert "trees" in pick.sentence
    assert task == "link" or "budget" not in pick.sentence
    assert f"model {model}," in pick.sentence
    assert model != "dyg-mamba-counts" or ("`model='dyg-mamba'`" in pick.sentence and pick.surprising)


@pytest.mark.parametrize("preset", SIZE_PRESETS)
def test_a_size_preset_has_settings_of_its_models(preset):
    """And reads at most 32 events per sequence, in at most 20 epochs."""
    assert len(load_presets(f"{preset}.toml")) > 1
    for model in load_presets(f"{preset}.toml"):
        sized = find_size_preset(preset, model)
        check_settings(model, sized, "link")
        assert sized["length"] <= 32
        assert sized["epochs"] <= 20


def test_the_small_preset_goes_before_the_published_one_and_after_the_user(data, tmp_path):
    """And each choice is in config.toml with its reason."""
    assert find_size_preset("paper", "trees") == {}
    fit = start_link_run(data, "dyg-mamba", 0, {"width": 4}, CPU, tmp_path, StartOptions(preset="small"))
    sections, small = fit.run.config(), find_size_preset("small", "dyg-mamba")
    assert sections["model"]["length"] == small["length"] != find_preset("dyg-mamba", "uci").get("length", 32)
    assert sections["model"]["width"] == 4
    assert sections["chosen"]["length"].startswith(f"{small['length']} (preset small); half of the nodes")
    assert sections["chosen"]["batch"] == "200 (default)"
    assert "float32" in sections["chosen"]["precision"]


def test_python_is_told_of_the_trees(data, tmp_path, monkeypatch):
    """A warning; the folder says it too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(DygWarning, match=r"no GPU in use: model trees.*`model='dyg-mamba'`"):
        (run,) = dm.train(data, out=tmp_path, **TREES)
    assert run.config["run"]["model"] == "trees"
    assert run.config["chosen"]["time_scales"].startswith("2 from ")


def test_the_command_says_what_it_chose_where_it_is_and_how_it_stands(command):
    """On stderr the model, the folder and the choices; on stdout the rules below the run's own test rows."""
    code, out, errors = command("train", "letters", *OPTIONS, "--device", "cpu")
    assert code == 0, errors
    lines = errors.splitlines()
    assert "--model dyg-mamba" in lines[0]
    assert "--preset small" in lines[0]
    assert lines[1].startswith("run: runs/letters/trees/")
    assert lines[2].startswith("trees on cpu: neighbors=2 (set)")
    table = re.search(
        r"training table: ([\d,]+) rows of (\d+) features; about 0.0\d GB of memory, about \d+ s", errors
    )
    rows, features = (int(number.replace(",", "")) for number in table.groups())
    assert (rows, features > 20) == (21 * 168, True)  # each of the 168 events and twenty negatives
    assert "pair-recency" in out
    assert "baseline" in out.splitlines()[-1]


def test_a_table_that_memory_does_not_hold_is_an_error_before_the_run(data, tmp_path, monkeypatch):
    """With half of the bytes that building it takes at least, nothing is written."""
    fit = start_link_run(data, "trees", 0, TREES, CPU, tmp_path / "fits")
    size = TableSize.of(fit.scorer, len(fit.stream.split.train))
    assert size.rows == fit.executor.pending_queries
    monkeypatch.setattr(memory_budget, "get_free_memory", lambda: 4 * size.rows * size.features)
    with raises("out-of-memory", ConfigError):
        start_link_run(data, "trees", 0, TREES, CPU, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_resumed_run_takes_more_epochs(command):
    assert command("train", "letters", *OPTIONS, "--split", "0.6,0.2,0.2", "--device", "cpu")[0] == 0
    (path,) = Path("runs/letters/trees").iterdir()
    code, out, errors = command("train", "--resume", str(path), "--epochs", "3", "--refit", "all", "--json")
    assert code == 0, errors
    (refit,) = json.loads(out)["refits"]
    assert Path(refit).parent == path.resolve().parent
    assert len(RunDirectory(path).metrics()) == 3
    assert {row["split_by"] for row in RunDirectory(path).results()} == {"0.6,0.2,0.2"}


def test_a_refit_knows_every_event_and_has_no_test(data, tmp_path):
    """As many epochs as were best; it ranks and scores; what would judge it is refused with the run that can be."""
    (run,) = dm.train(data, "trees", out=tmp_path, **TREES)
    made = dm.refit(run.path)
    assert made.finished
    assert made.results.num_rows == 0
    assert made.metrics.num_rows <= run.metrics.num_rows
    assert made.config["run"]["refit_of"] == str(run.path)
    assert "none: every event was trained on" in (made.path / "results.json").read_text()
    again = dm.open(made.path)
    assert again.rank(["ann"], k=2).num_rows == 2
    assert (
        again.score([("ann", "bob")])["score"].to_pylist() != run.score([("ann", "bob")])["score"].to_pylist()
    )
    for ask in (again.evaluate, again.report):
        with raises("run-without-test", ConfigError) as error:
            ask()
        assert run.path.name in str(error.value)
    with raises("already-refitted", ConfigError):
        dm.refit(made.path)


class Stopping(ForwardingProgress):
    """Sends this process Ctrl-C as soon as a stage of that name has done something."""

    def __init__(self, inner, at):
        super().__init__(inner)
        self.at, self.is_struck = at, False

    @contextmanager
    def stage(self, name, total=None, *, done=0, unit=""):
        with super().stage(name, total, done=done, unit=unit) as child:
            child.is_struck = name.startswith(self.at)
            yield child

    def advance(self, count=1):
        if self.is_struck:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", ["training table", "validation", "val ", "test ", "page"])
def test_ctrl_c_is_heard_in_every_stage_and_the_run_ends_as_if_nothing_had_been(data, tmp_path, at):
    """For all stages: one sentence with the command to go on, and then the results of an undisturbed run."""
    store_run_dataset(data, tmp_path)
    before = signal.getsignal(signal.SIGINT)
    interrupt = FinishOptions(write_page=lambda *_: os.kill(os.getpid(), signal.SIGINT))
    plan = TrainingPlan(TREES, CPU, tmp_path, "trees", finish=interrupt if at == "page" else FinishOptions())
    with raises("interrupted") as said, show_progress(save_on_interrupt=True) as progress:
        train_link_run(data, plan, 0, Stopping(progress, at))
    assert signal.getsignal(signal.SIGINT) is before
    (path,) = tmp_path.glob("letters/trees/*")
    assert str(path) in str(said.value)
    with show_progress(save_on_interrupt=True) as progress:
        fit = resume_run(path, CPU, FinishOptions(), progress, None)
    (whole,) = dm.train(data, "trees", out=tmp_path / "whole", **TREES)
    found = [[row["ap"] for row in rows] for rows in (fit.run.results(), whole.results.to_pylist())]
    assert found[0] == found[1]


def test_an_unfinished_run_says_so_before_it_answers(data, tmp_path):
    """Stopped in its first epoch it is refused, stopped later a warning comes with the answer."""
    store_run_dataset(data, tmp_path)
    with raises("interrupted"), show_progress(save_on_interrupt=True) as progress:
        train_link_run(data, TrainingPlan(TREES, CPU, tmp_path, "trees"), 0, Stopping(progress, "validation"))
    (path,) = tmp_path.glob("letters/trees/*")
    with raises("run-without-weights", ConfigError):
        dm.open(path)
    with raises("interrupted"), show_progress(save_on_interrupt=True) as progress:
        resume_run(path, CPU, FinishOptions(), Stopping(progress, "val "), None)
    with pytest.warns(DygWarning, match=r"not finished \(trained, but not evaluated\)"):
        run = dm.open(path)
    assert not run.finished
    assert run.rank(["ann"], k=1).num_rows == 1
    assert dm.resume(path).finished


def test_lines_tell_of_work_where_there_is_no_terminal():
    """Soon after the start, then every so often; nothing after the end."""
    heard, twice = [], threading.Event()

    def say(line):
        heard.append(line)
        if len(heard) == 2:
            twice.set()

    with LineProgress(say, first=0.01, interval=0.01) as lines:
        task = lines.add_task("seed 0 on cpu", total=30)
        lines.advance(task, 10)
        lines.advance(task, 5)
        assert twice.wait(20)
        lines.remove_task(task)
    assert any("seed 0 on cpu: 15 of 30, about " in line for line in heard)


def test_time_left_is_that_of_what_is_left():
    """Work that was done before the start does not count as speed; without an end nothing is foretold."""
    work = ProgressTask("x", total=100, completed=60, before=50)
    work.start -= 20
    assert work.line == "x: 60 of 100, about 80 s left"
    assert ProgressTask("x", None, 7).line == "x: 7"


def test_time_left_of_a_study_is_that_of_its_plan():
    """From the start, and by the cost of what is done, not by its number: a quarter took twice as long as planned."""
    work = ProgressTask("12 runs", total=400, is_planned=True)
    assert work.line == f"12 runs: about {format_rough_duration(400)} left"
    work.reach(100)
    work.start -= 200
    assert work.line == f"12 runs: about {format_rough_duration(600)} left"


def test_a_slow_training_says_what_would_be_faster(data, tmp_path):
    """After a few steps, once: how long, and for a network on a CPU which options end sooner."""
    fit = start_link_run(data, "dyg-mamba", 0, {"epochs": 100}, CPU, tmp_path)
    pace = TimeEstimate(fit)
    assert pace.step() is None
    pace.marks = [pace.marks[0] - 100.0 + k for k in range(3)]
    said = pace.step()
    assert said is not None
    assert "on this CPU (100 more epochs" in said
    assert "`model='trees'` in about 1 s, `preset='small'` in about 3 s" in said
    assert pace.step() is None


@pytest.mark.parametrize("model", ["trees", "graphmixer"])
def test_a_refused_training_leaves_nothing_behind(model, tmp_path):
    """No run directory and no copy of the dataset; a copy that was there before stays, and so do other runs."""
    data = dm.read([(k % 5, 9, k) for k in range(200)], name="one")
    out = tmp_path / "runs"
    with raises("one-destination"):
        dm.train(data, model, loss="ranking", out=out, epochs=1)
    assert not out.exists()
    dm.train(data, "trees", out=out, epochs=1, trees=1, rounds=1)
    before = sorted(out.rglob("*"))
    with raises("one-destination"):
        dm.train(data, model, loss="ranking", out=out, epochs=1)
    assert sorted(out.rglob("*")) == before
