"""Processes that train together: a run that loses one ends, keeps what it had, and goes on with any number of them."""

import os
import signal
import sys
from pathlib import Path

import pytest

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.engine.launcher import Launcher, ProcessesFailed

MODEL = "graphmixer"
SMALL = {"neighbors": 4, "time_dim": 4, "blocks": 1, "dropout": 0.0, "batch": 60}
WATCHED = ("loss", "val_ap", "val_auc")


def test_a_killed_process_ends_the_others_and_one_process_goes_on(tmp_path, monkeypatch):
    """Two processes, one killed: a sentence that names it; resumed with one, the curve is that of one process."""
    monkeypatch.setattr("dygmamba.runs.calibration.MAX_RANKED_EVENTS", 5)  # events that are ranked
    data = dm.generate(nodes=30, events=400, communities=3)
    long = {**SMALL, "epochs": 1000, "patience": 1000, "save_every": 0.0, "device": "cpu"}
    with pytest.raises(ProcessesFailed, match="process 2 of 2 was ended by SIGKILL") as ended:
        dm.train(data, MODEL, processes=2, out=tmp_path / "two", progress=kill_the_second, **long)
    assert ended.value.exit_code == 1

    (run,) = (tmp_path / "two").glob("*/*/*-seed0")
    epochs = len((run / "metrics.jsonl").read_text().splitlines()) + 1
    with pytest.warns(DygWarning, match="begun with processes 2"):
        rest = dm.resume(run, epochs=epochs, device="cpu")
    (whole,) = dm.train(data, MODEL, out=tmp_path / "one", **long | {"epochs": epochs})
    assert rest.metrics.num_rows == epochs
    for there, here in zip(rest.metrics.to_pylist(), whole.metrics.to_pylist(), strict=True):
        assert [there[name] for name in WATCHED] == pytest.approx([here[name] for name in WATCHED], abs=1e-5)
    for name in ("ap", "auc", "mrr"):
        there, here = (run.results.column(name).to_pylist() for run in (rest, whole))
        assert [value or 0 for value in there] == pytest.approx([value or 0 for value in here], abs=1e-5)


def kill_the_second(entry: dict) -> None:
    """Of the processes that this one started."""
    for children in Path("/proc/self/task").glob("*/children"):
        for number in children.read_text().split():
            if b"RANK=1" in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
                os.kill(int(number), signal.SIGKILL)


@pytest.mark.parametrize("given", [("--processes", "3"), ("--processes=3",)])
def test_the_command_line_is_given_once_more_without_its_processes(given, monkeypatch, capsys):
    """All other words stay as they are; what is wrong with them is said before anything is started."""
    calls = []
    monkeypatch.setattr(
        "dygmamba.cli.training.launch_command", lambda words, count: calls.append((words, count))
    )
    assert (
        invoke(monkeypatch, capsys, "train", "generated", *given, "--model", "tgn", "--epochs", "2")[0] == 0
    )
    assert calls == [(["train", "generated", "--model", "tgn", "--epochs", "2"], 3)]
    assert invoke(monkeypatch, capsys, "train", "generated", *given, "--model", "tgm")[0] == 2
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        (
            "import os, sys; sys.exit(75 if os.environ['RANK'] != '1' else print('error: why', file=sys.stderr) or 3)",
            3,
            "why",
        ),
        (
            "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(.1)",
            1,
            "SIGKILL",
        ),
    ],
)
def test_the_one_to_blame_is_named(script, code, sentence):
    """Whoever ended for a reason of its own gives the sentence and the exit code, not who only missed it."""
    with (
        pytest.raises(ProcessesFailed, match=sentence) as ended,
        Launcher([sys.executable, "-c", script], 2).started() as all_,
    ):
        all_.wait()
    assert ended.value.exit_code == code


def test_who_is_told_to_end_is_not_left(monkeypatch):
    """One fails and another neither notices nor obeys: it is ended all the same."""
    monkeypatch.setattr("dygmamba.engine.launcher.GRACE_SECONDS", 0.2)
    monkeypatch.setattr("dygmamba.engine.launcher.SAVE_SECONDS", 0.2)
    script = "import os, signal, sys, time; os.environ['RANK'] == '1' and sys.exit(2); "
    script += "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with pytest.raises(ProcessesFailed), Launcher([sys.executable, "-c", script], 2).started() as all_:
        all_.wait()
    assert all(member.process.returncode is not None for member in all_.members)


def test_what_cannot_be_is_refused(monkeypatch, tmp_path):
    """No processes, and processes of processes."""
    data = dm.generate(nodes=30, events=400, communities=3)
    with pytest.raises(ConfigError, match="`processes` must be 1 or more"):
        dm.train(data, MODEL, processes=0, out=tmp_path, device="cpu")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match="one of several processes already"):
        dm.train(data, MODEL, processes=2, out=tmp_path, device="cpu")
