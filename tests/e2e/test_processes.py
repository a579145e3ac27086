"""Processes that train together: a run that loses one ends, keeps what it had, and goes on with any number of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dygmamba as dm
from dygmamba.errors import ConfigError, DygWarning
from dygmamba.launching import Ended, Launch

MODEL = "graphmixer"
SMALL = {"neighbors": 4, "time_dim": 4, "dropout": 0.0, "batch": 60}
WATCHED = ("loss", "val_ap", "val_auc")
LONG = 120  # seconds after which a process that should have ended is a failure


def test_a_killed_process_ends_the_others_and_one_process_goes_on(tmp_path):
    """Two processes, one killed: exit code 1 and one sentence; resumed with one, the curve is that of one process."""
    data = dm.generate(nodes=30, events=400, communities=3)
    path = dm.save(data, data_dir=tmp_path)
    settings = {**SMALL, "epochs": 1000, "patience": 1000, "save_every": 0}
    command = [
        sys.executable,
        "-m",
        "dygmamba",
        "train",
        str(path),
        "--model",
        MODEL,
        "--device",
        "cpu",
    ]
    command += [f"--set={name}={value}" for name, value in settings.items()]
    job = subprocess.Popen(
        [*command, "--processes=2", "--out", str(tmp_path / "runs")], stderr=subprocess.PIPE, text=True
    )
    run = killed(job, tmp_path / "runs")
    said = job.communicate(timeout=LONG)[1]
    assert job.returncode == 1
    assert "error: process 2 of 2 was ended by SIGKILL" in said
    assert "Traceback" not in said

    epochs = len((run / "metrics.jsonl").read_text().splitlines()) + 1
    with pytest.warns(DygWarning, match="begun with processes 2"):
        rest = dm.resume(run, epochs=epochs, device="cpu")
    (whole,) = dm.train(
        data, MODEL, epochs=epochs, patience=1000, out=tmp_path / "one", device="cpu", **SMALL
    )
    assert rest.metrics.num_rows == epochs
    for there, here in zip(rest.metrics.to_pylist(), whole.metrics.to_pylist(), strict=True):
        assert [there[name] for name in WATCHED] == pytest.approx([here[name] for name in WATCHED], abs=1e-5)
    for name in ("ap", "auc", "mrr"):
        expected = [value or 0 for value in whole.results.column(name).to_pylist()]
        assert [value or 0 for value in rest.results.column(name).to_pylist()] == pytest.approx(
            expected, abs=1e-5
        )


def killed(job: subprocess.Popen, runs: Path) -> Path:
    """The run of a job whose second process was killed after its first epoch."""
    until = time.monotonic() + LONG
    while not (found := [path for path in runs.glob("*/*/*/metrics.jsonl") if path.stat().st_size]):
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    (second,) = (
        number
        for number in children
        if b"RANK=1" in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    )
    os.kill(int(second), signal.SIGKILL)
    return found[0].parent


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
        pytest.raises(Ended, match=sentence) as ended,
        Launch([sys.executable, "-c", script], 2).started() as all_,
    ):
        all_.wait()
    assert ended.value.exit_code == code


def test_who_is_told_to_end_is_not_left(monkeypatch):
    """One fails and another neither notices nor obeys: it is ended all the same."""
    monkeypatch.setattr("dygmamba.launching.NOTICE", 0.2)
    monkeypatch.setattr("dygmamba.launching.PATIENCE", 0.2)
    script = "import os, signal, sys, time; os.environ['RANK'] == '1' and sys.exit(2); "
    script += "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with pytest.raises(Ended), Launch([sys.executable, "-c", script], 2).started() as all_:
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
