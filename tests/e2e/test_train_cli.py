"""Training as a user runs it: killed, interrupted, resumed, evaluated."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from commands import invoke
from dygmamba.cli import app
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset

SMALL = ["length=5", "width=4", "states=2", "blocks=1", "out=8", "time_dim=4", "batch=50", "save_every=0.05"]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]
BENCHMARK = ["--protocol", "benchmark"]  # so that there are new nodes

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    store = generate_stream(GeneratorConfig(seed=3, nodes=60, events=1500))
    save_dataset(Dataset.from_events("small", store, NodeIds.identity(60), Origin(format="generated")), path)
    return path


def command(folder, *words):
    return [sys.executable, "-m", "dygmamba", *words, "--data-dir", str(folder)]


TRAINING = ("train", "small", *BENCHMARK, "--epochs", "2", *SETTINGS)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The results of a run nobody disturbed."""
    out = tmp_path_factory.mktemp("runs")
    words = [*TRAINING, "--out", str(out), "--device", "cpu", "--data-dir", str(folder)]
    app(words, standalone_mode=False)
    (path,) = out.glob("*/*/*")
    return json.loads((path / "results.json").read_text())["results"]


def disturbed(folder, out, signal_number):
    """A run that gets a signal in its first epoch, after its first checkpoint."""
    words = (*TRAINING, "--device", "cpu", "--out", str(out))
    process = subprocess.Popen(
        command(folder, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not list(out.glob("*/*/*/checkpoint/last.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=120)
    (path,) = out.glob("*/*/*")
    assert not (path / "results.json").exists()
    return path, process.returncode, errors


def answer(folder, monkeypatch, capsys, *words):
    """The results of a command in this process."""
    code, out, errors = invoke(
        monkeypatch, capsys, *words, "--device", "cpu", "--data-dir", str(folder), "--json"
    )
    assert code == 0, errors
    return json.loads(out)["results"]


def same(ours, whole):
    keys = ("split", "setting", "negatives", "ap", "auc", "ap_pooled", "auc_pooled", "n")
    assert [[row[key] for key in keys] for row in ours] == [[row[key] for key in keys] for row in whole]
    for name in ("last", "best"):
        files = [load_file(f"{rows[0]['run']}/checkpoint/{name}.safetensors") for rows in (ours, whole)]
        assert all(torch.equal(files[0][key], files[1][key]) for key in files[1])


def test_a_killed_run_resumes_to_identical_weights_and_metrics(whole, folder, tmp_path, monkeypatch, capsys):
    """SIGKILL in the middle of an epoch, then --resume: bit for bit the undisturbed run."""
    path, code, _ = disturbed(folder, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    same(answer(folder, monkeypatch, capsys, "train", "--resume", str(path)), whole)


def test_ctrl_c_saves_says_how_to_go_on_and_exits_130(whole, folder, tmp_path, monkeypatch, capsys):
    """Ctrl-C: one sentence with the command to resume, which then ends as the undisturbed run."""
    path, code, errors = disturbed(folder, tmp_path, signal.SIGINT)
    assert code == 130
    assert f"dygmamba train --resume {path}" in errors
    assert "Traceback" not in errors
    same(answer(folder, monkeypatch, capsys, "train", "--resume", str(path)), whole)


def test_evaluating_a_run_gives_all_settings_and_its_own_numbers(whole, folder, monkeypatch, capsys):
    """`evaluate RUN`: three negatives, two settings; the random rows are those training wrote."""
    rows = answer(folder, monkeypatch, capsys, "evaluate", whole[0]["run"])
    assert {(row["negatives"], row["setting"]) for row in rows} == {
        (negatives, setting)
        for negatives in ("random", "historical", "inductive")
        for setting in ("transductive", "inductive")
    }
    random = {row["setting"]: row["ap"] for row in rows if row["negatives"] == "random"}
    assert random == {row["setting"]: row["ap"] for row in whole if row["split"] == "test"}


def test_a_run_that_diverges_is_one_sentence_and_has_no_results(folder, tmp_path, monkeypatch, capsys):
    """One step too large: exit code 2, no results, no best weights."""
    words = ["train", "small", "--epochs", "1", *SETTINGS, "--set", "lr=1e4", "--set", "batch=100000"]
    code, errors = in_process(folder, tmp_path, monkeypatch, capsys, words)
    assert code == 2
    assert "Traceback" not in errors
    assert "lr" in errors.splitlines()[-1]
    (path,) = tmp_path.glob("*/*/*")
    assert not (path / "results.json").exists()
    assert not (path / "checkpoint" / "best.safetensors").exists()


def test_a_damaged_checkpoint_is_a_note_and_the_one_before_is_taken(
    whole, folder, tmp_path, monkeypatch, capsys
):
    """On stderr, in one line; the run ends as it had ended."""
    path = shutil.copytree(whole[0]["run"], tmp_path / "run")
    last = path / "checkpoint" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    code, errors = in_process(folder, tmp_path, monkeypatch, capsys, ["train", "--resume", str(path)])
    assert code == 0, errors
    assert errors.count("note: ") == 1
    assert "last checkpoint cannot be read" in errors
    same(
        [row | {"run": str(path)} for row in json.loads((path / "results.json").read_text())["results"]],
        whole,
    )


def in_process(folder, tmp_path, monkeypatch, capsys, words):
    from dygmamba.cli import main

    out = ["--out", str(tmp_path)] if words[:2] == ["train", "small"] else []
    monkeypatch.setattr(sys, "argv", ["dygmamba", *words, *out, "--device", "cpu", "--data-dir", str(folder)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0), capsys.readouterr().err
