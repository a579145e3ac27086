"""Training in several processes: whatever happens to one of them, the error is its own and nothing is left running."""

import os
import signal
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import PContext

import dygmamba as dm
from dygmamba.api.processes import run_in_processes
from dygmamba.api.requests.training import TrainRequest
from dygmamba.core.errors import ConfigError, DygError, DygWarning, Interrupted
from dygmamba.core.progress import SILENT
from dygmamba.engine.launcher import ProcessesFailed, launch_workers
from raising import raises
from torture_cases import SECONDS

MODEL = "graphmixer"
SMALL = {"neighbors": 4, "time_dim": 4, "blocks": 1, "dropout": 0.0, "batch": 60}
LONG = {**SMALL, "epochs": 1000, "patience": 1000, "save_every": 0.0, "device": "cpu"}
WATCHED = ("loss", "val_ap", "val_auc")


@pytest.fixture(scope="module")
def data():
    """A small stream."""
    return dm.generate(nodes=30, events=400, communities=3)


def run_script(script: str, processes: int = 2) -> list[str]:
    """Run a Python script in several workers and return the lines of the first one."""
    command = [sys.executable, "-c", "import os, signal, sys, time\n" + textwrap.dedent(script)]
    with closing(launch_workers(command, processes)) as lines:
        return list(lines)


def find_worker(rank: int) -> int | None:
    """Return the process id of a worker of this process."""
    for children in Path("/proc/self/task").glob("*/children"):
        for number in children.read_text().split():
            if f"RANK={rank}".encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
                return int(number)
    return None


def test_a_run_that_lost_a_process_resumes_with_any_number_of_them(tmp_path, data):
    """Two processes, one is killed: the error names it; resumed with one, the curve is that of one process."""

    def kill_second(entry: dict) -> None:
        if number := find_worker(1):
            os.kill(number, signal.SIGKILL)

    with raises("process-failed", ProcessesFailed) as error:
        dm.train(data, MODEL, processes=2, out=tmp_path / "two", progress=kill_second, **LONG)
    assert "process 2 of 2 was ended by SIGKILL" in str(error.value)
    assert error.value.exit_code == 1

    (run,) = (tmp_path / "two").glob("*/*/*-seed0")
    epochs = len((run / "metrics.jsonl").read_text().splitlines()) + 1
    with pytest.warns(DygWarning, match="processes"):
        rest = dm.resume(run, epochs=epochs, device="cpu")
    (whole,) = dm.train(data, MODEL, out=tmp_path / "one", **LONG | {"epochs": epochs})
    assert rest.metrics.num_rows == epochs
    for there, here in zip(rest.metrics.to_pylist(), whole.metrics.to_pylist(), strict=True):
        assert [there[name] for name in WATCHED] == pytest.approx([here[name] for name in WATCHED], abs=1e-5)
    for name in ("ap", "auc", "mrr"):
        there, here = (run.results.column(name).to_pylist() for run in (rest, whole))
        assert [value or 0 for value in there] == pytest.approx([value or 0 for value in here], abs=1e-5)


@pytest.mark.skipif(not SECONDS, reason="two processes that train; `make torture` runs it")
def test_ctrl_c_saves_the_run_and_keeps_its_exit_code(tmp_path, data):
    """SIGINT in the parent: the workers save, the error is `Interrupted`, and handlers are what they were."""
    before = signal.getsignal(signal.SIGINT)
    with raises("interrupted", Interrupted) as error:
        dm.train(
            data,
            MODEL,
            processes=2,
            out=tmp_path,
            progress=lambda entry: os.kill(os.getpid(), signal.SIGINT),
            **LONG,
        )
    assert error.value.exit_code == 130
    (run,) = tmp_path.glob("*/*/*-seed0")
    assert f"dygmamba.resume({str(run)!r})" in str(error.value)
    assert (run / "checkpoint" / "last.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is before
    assert find_worker(0) is find_worker(1) is None


def test_the_error_of_any_process_reaches_the_caller(tmp_path, data, monkeypatch):
    """The second process fails while the first waits for it to join: its own error, at once and with its exit code."""
    script = tmp_path / "python"
    report = '{"error": "the disk is full", "kind": "WriteError", "code": "write-failed", "exit_code": 7}'
    script.write_text(
        f"""#!/bin/sh\n[ "$RANK" = 1 ] && echo '{report}' && exit 7\nexec {sys.executable} "$@"\n"""
    )
    script.chmod(0o755)
    monkeypatch.setattr("dygmamba.api.processes.sys.executable", str(script))
    with raises("write-failed", DygError) as error:
        dm.train(data, MODEL, processes=2, out=tmp_path, **LONG)
    assert str(error.value) == "the disk is full"
    assert error.value.exit_code == 7


def test_workers_get_plain_values():
    """The settings of another package's model are checked where it is built, and must get there first."""
    request = TrainRequest(data="generated", model="theirs", settings={"table": object()}, processes=2)
    with raises("argument-not-plain", ConfigError):
        run_in_processes("train", request, SILENT)


def test_a_caller_that_stops_reading_leaves_no_process():
    """Whoever closes the lines after the first one: the workers are gone."""
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
    with closing(launch_workers(command, 2)) as lines:
        assert next(iter(lines)) == "begun"
        assert find_worker(0)
    assert find_worker(0) is find_worker(1) is None


@pytest.mark.skipif(not SECONDS, reason="two processes that train; `make torture` runs it")
def test_an_error_of_the_caller_leaves_no_process(tmp_path, data):
    """A progress function that raises: its error, and the workers are gone."""

    def fail(entry: dict) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        dm.train(data, MODEL, processes=2, out=tmp_path, progress=fail, **LONG)
    assert find_worker(0) is find_worker(1) is None


@pytest.mark.parametrize(
    ("script", "code", "message", "report"),
    [
        pytest.param(
            """
            if os.environ["RANK"] == "0":
                sys.exit(75)
            time.sleep(1)
            print("the last line", flush=True)
            print("why", file=sys.stderr)
            sys.exit(3)
            """,
            3,
            "process 2 of 2 failed: why",
            "the last line",
            id="the first only lost its peer",
        ),
        pytest.param(
            """
            if os.environ["RANK"] == "0":
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
                time.sleep(600)
            time.sleep(0.5)
            sys.exit(3)
            """,
            3,
            "process 2 of 2 failed: exit code 3",
            "",
            id="the first was stopped afterwards",
        ),
        pytest.param(
            """
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
            """,
            1,
            "process 2 of 2 was ended by SIGKILL",
            "",
            id="the second was killed and the first waits",
        ),
    ],
)
def test_the_process_that_failed_first_is_named(script, code, message, report):
    """The error has the exit code and the words of the process that failed, not of one that followed."""
    with raises("process-failed", ProcessesFailed) as error:
        run_script(script)
    assert message in str(error.value)
    assert (error.value.exit_code, error.value.report) == (code, report)


def test_a_process_that_ignores_signals_is_ended(monkeypatch, tmp_path):
    """One fails, another neither notices nor obeys: it is killed, and what it printed has arrived."""
    monkeypatch.setattr(PContext.close, "__defaults__", (None, 0.2))  # seconds before torch kills
    number = tmp_path / "number"
    script = f"""
        ready = {str(number)!r}
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(ready, "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists(ready) or not os.path.getsize(ready):
            time.sleep(0.01)
        sys.exit(2)
    """
    with raises("process-failed", ProcessesFailed):
        run_script(script)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_the_lines_of_the_first_process_arrive_in_order():
    """Only those of the first, all of them, whatever is in them."""
    script = """
        for number in range(1000):
            print(os.environ["RANK"], number, "\\u00e9")
    """
    assert run_script(script, 3) == [f"0 {number} é" for number in range(1000)]


def test_processes_inside_of_a_process_are_an_error(monkeypatch, tmp_path, data):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    with raises("nested-processes", ConfigError):
        dm.train(data, MODEL, processes=2, out=tmp_path, device="cpu")
