"""Node classification as a user runs it: on a backbone trained first, on a finished run, on an own CSV."""

import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from commands import error_code
from dygmamba.cli import app
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from node_cases import labelled_stream

SMALL = ["length=5", "width=4", "states=2", "blocks=1", "out=8", "time_dim=4"]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]
QUICK = ["--device", "cpu", "--epochs", "2"]
COLUMNS = {
    *("dataset", "model", "task", "seed", "run", "backbone", "finetune", "balance"),
    *("split", "visible", "batch", "auc", "ap", "n", "positives", "ece", "ece_raw"),
    "protocol",
}

pytestmark = pytest.mark.e2e


def save(name, store, folder):
    save_dataset(
        Dataset.from_events(name, store, NodeIds.identity(store.num_nodes), Origin(format="test")), folder
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Datasets: a labelled one, another, one without labels, one whose validation has no positive."""
    path = tmp_path_factory.mktemp("data")
    store = labelled_stream(events=600, sources=20)
    save("small", store, path)
    save("other", labelled_stream(events=600, sources=20, seed=5), path)
    save("bare", replace(store, label=None), path)
    save("late", replace(store, label=store.label * (torch.arange(600) < 400)), path)
    return path


@pytest.fixture
def call(folder, tmp_path, monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def run(*words):
        from dygmamba.cli import main

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dygmamba", *map(str, words)])
        monkeypatch.setenv("DYGMAMBA_DATA", str(folder))
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def backbone(folder, tmp_path_factory):
    """A finished link run."""
    out = tmp_path_factory.mktemp("runs")
    words = ["train", "small", *QUICK, *SETTINGS, "--out", str(out), "--data-dir", str(folder)]
    app(words, standalone_mode=False)
    (path,) = out.glob("*/*/*")
    return path


def results(answer):
    code, out, errors = answer
    assert code == 0, errors
    return json.loads(out)["results"]


def test_a_backbone_is_trained_first_where_none_is_given(call):
    """`--task node --model tgn`: a link run with the task's presets, then a classifier in its own folder."""
    small = ["--set", "out=8", "--set", "time_dim=4"]
    rows = results(call("train", "small", "--task", "node", "--model", "tgn", *QUICK, *small, "--json"))
    assert [row["split"] for row in rows] == ["val", "test"]
    assert all(set(row) == COLUMNS for row in rows)
    link, node = (
        tomllib.loads((Path(rows[0][key]) / "config.toml").read_text()) for key in ("backbone", "run")
    )
    assert link["run"]["model"] == node["run"]["model"] == "tgn"
    assert node["run"] | {"task": "node", "finetune": False, "balance": False} == node["run"]
    assert link["train"]["epochs"] == node["train"]["epochs"] == 2
    assert rows[0]["run"].startswith("runs/small/tgn-node/")


def test_dyg_mamba_gets_the_tasks_preset(call):
    """No co-occurrence, no mixer, 64 tokens unless told otherwise."""
    words = [part for setting in SMALL[1:] for part in ("--set", setting)]
    rows = results(call("train", "small", "--task", "node", "--preset", "paper", *QUICK, *words, "--json"))
    model = tomllib.loads((Path(rows[0]["backbone"]) / "config.toml").read_text())["model"]
    assert (model["channels"], model["mixer"], model["length"]) == (["node", "edge", "time"], "none", 64)


def test_a_finished_run_carries_classifiers_of_several_seeds(call, backbone):
    """`--backbone RUN --seeds 0,1`: a table of mean ± std; the backbone's folder stays as it was."""
    before = {path: path.read_bytes() for path in backbone.rglob("*") if path.is_file()}
    words = ["train", "small", "--task", "node", "--backbone", backbone, *QUICK, "--seeds", "0,1"]
    code, out, errors = call(*words)
    assert code == 0, errors
    assert "mean ± std of 2" in out
    assert out.count("±") == 7
    assert before == {path: path.read_bytes() for path in backbone.rglob("*") if path.is_file()}


def test_frozen_weights_are_the_backbones_and_fine_tuned_ones_are_not(call, backbone):
    """best.safetensors of a classifier holds encoder and head; frozen, the encoder is the link run's."""

    def weights(path):
        with safe_open(Path(path) / "checkpoint" / "best.safetensors", framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict

    link = {key: value for key, value in weights(backbone).items() if ".encoder." in key}
    for flags in ([], ["--finetune", "--balance"]):
        words = ["train", "small", "--task", "node", "--backbone", backbone, *QUICK, *flags, "--json"]
        rows = results(call(*words))
        own = weights(rows[0]["run"])
        assert {key.split(".")[1] for key in own} == {"encoder", "head"}
        assert all(torch.equal(own[key], link[key]) for key in link) is (not flags)
        assert (rows[0]["finetune"], rows[0]["balance"]) == (bool(flags), bool(flags))


@pytest.mark.parametrize("flags", [[], ["--finetune"]])
def test_evaluating_a_classifier_gives_its_own_numbers(call, backbone, tmp_path, flags):
    """`evaluate RUN` = the rows training wrote, from the folder alone; splits can be chosen."""
    rows = results(call("train", "small", "--task", "node", "--backbone", backbone, *QUICK, *flags, "--json"))
    again = results(call("evaluate", rows[0]["run"], "--split", "val,test", "--device", "cpu", "--json"))
    assert again == rows == json.loads((Path(rows[0]["run"]) / "results.json").read_text())["results"]
    code, out, _ = call("evaluate", rows[0]["run"], "--device", "cpu")
    assert code == 0
    assert "test" in out
    assert not re.search(r"\bval\b", out)
    code, _, _ = call("report", rows[0]["run"], "--out", "page.html")
    assert code == 0
    assert "Test AUC" in (tmp_path / "page.html").read_text()
    for words, expected in (
        (["evaluate", rows[0]["run"], "--negatives", "random"], "option-of-link-task"),
        (["train", "small", "--task", "node", "--backbone", rows[0]["run"]], "not-a-link-run"),
    ):
        code, out, errors = call(*words, "--json")
        assert (code, error_code(out), errors.count("\n")) == (2, expected, 1), errors
    config = tmp_path / rows[0]["run"] / "config.toml"
    config.write_text(config.read_text().replace("balance = ", "other = "))
    code, out, errors = call("evaluate", rows[0]["run"], "--json")
    assert (code, error_code(out), errors.count("\n")) == (2, "damaged-config", 1), errors


def test_an_own_csv_with_names_and_a_label_column(call, tmp_path):
    """String ids, a label column: imported, then classified through the same commands."""
    store = labelled_stream(events=300)
    columns = (store.src.tolist(), store.dst.tolist(), store.time.tolist(), store.label.tolist())
    lines = [f"user {u},page {v},{t:.0f},{int(y)}" for u, v, t, y in zip(*columns, strict=True)]
    (tmp_path / "edits.csv").write_text("user,item,time,banned\n" + "\n".join(lines) + "\n")
    code, _, errors = call("data", "import", "edits.csv", "--label", "banned", "--data-dir", tmp_path)
    assert code == 0, errors
    words = ["--model", "graphmixer", *QUICK, "--set", "out=8", "--set", "time_dim=4", "--data-dir", tmp_path]
    rows = results(call("train", "edits", "--task", "node", *words, "--json"))
    assert [(row["dataset"], row["split"]) for row in rows] == [("edits", "val"), ("edits", "test")]
    assert sum(row["n"] for row in rows) == pytest.approx(0.3 * 300, abs=5)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bare"], "no-labels"),
        (["late"], "one-class"),
        (["small", "--backbone", "RUN", "--model", "tgn"], "backbone-other-model"),
        (["small", "--backbone", "RUN", "--set", "length=3"], "unknown-setting"),
        (["other", "--backbone", "RUN"], "backbone-other-dataset"),
    ],
)
def test_data_or_a_backbone_that_does_not_fit(call, backbone, tmp_path, words, expected):
    """No traceback, one line on stderr, exit code 2, and no run folder."""
    words = [str(backbone) if word == "RUN" else word for word in words]
    code, out, errors = call("train", *words, "--task", "node", "--json")
    assert (code, error_code(out), errors.count("\n")) == (2, expected, 1), errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda run: (run / "results.json").unlink(), "unfinished-run"),
        (lambda run: (run / "checkpoint" / "best.safetensors").unlink(), "no-checkpoint"),
        (
            lambda run: (run / "config.toml").write_text(
                (run / "config.toml").read_text().replace('"dyg-mamba"', '"popularity"').split("[model]")[0]
                + "[model]\n"
            ),
            "damaged-config",
        ),
    ],
)
def test_a_run_that_is_no_backbone_is_refused(call, backbone, tmp_path, edit, expected):
    """Not finished, without weights, or of a model that has none: one sentence, exit code 2."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(backbone, copy)
    edit(copy)
    code, out, errors = call("train", "small", "--task", "node", "--backbone", copy, *QUICK, "--json")
    assert (code, error_code(out), errors.count("\n")) == (2, expected, 1), errors
