"""The pool of worker processes: GPUs are shared, and every job ends with a result or a reported failure."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from acting_worker import ActingWorker, wait_for
from dygmamba.core.errors import Interrupted
from dygmamba.core.interrupts import Interrupts
from dygmamba.studies import pool
from dygmamba.studies.job import Job, ResultCache
from dygmamba.studies.pool import Pool, assign_gpu, raise_if_failed
from raising import raises


def job(model, needs=None, work="link", seed=0):
    return Job(work, "uci", "digest", model, seed, {}, about={"model": model}, needs=needs)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The result cache of a pool whose workers do what the models of the jobs say."""
    monkeypatch.setattr(pool, "Worker", ActingWorker)
    return ResultCache(tmp_path / "out")


class Recorder(list):
    """A callback that keeps model and kind of every event."""

    def __call__(self, event):
        self.append((event.job.model, event.what))


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_ends_done_or_failed(results, workers, capfd):
    """Jobs that fail, raise, kill their worker, lose their result, or need one of these; others are done."""
    models = ("good", "fails", "dies", "exits", "raises", "crowds", "forgets", "fine")
    jobs = [job(model) for model in models]
    jobs += [job("follows", jobs[0].key), job("follows-failure", jobs[1].key), job("orphan", "no such key")]
    recorder = Recorder()
    failed = Pool(results, "cpu", workers)(jobs, recorder)
    by_model = {one.model: failed.get(one.key) for one in jobs}
    done = {"good", "fine", "follows"}
    assert {model for model, why in by_model.items() if why is None} == done
    assert all(results.load(one.key) is not None for one in jobs if one.model in done)
    assert by_model["fails"] == "diverged"
    assert "its process ended" in by_model["dies"]
    assert "early" in by_model["exits"]
    assert "ZeroDivisionError" in by_model["raises"]
    assert "no memory" in by_model["crowds"]
    reported = {model for model, what in recorder if what == "failed"}
    assert reported == set(by_model) - done - {"forgets"}  # its worker claims that it is done
    assert recorder.index(("good", "epoch")) < recorder.index(("good", "done"))
    assert recorder.index(("good", "done")) < recorder.index(("follows", "started"))
    with raises("study-runs-failed") as caught:
        raise_if_failed(failed, jobs)
    assert f"{len(failed)} of {len(jobs)} runs" in str(caught.value)
    logs = "".join(path.read_text() for path in results.root.glob("worker-*.log"))
    assert all(f"printed by a {what}" in logs for what in ("library", "program"))
    assert "Traceback" in logs
    assert capfd.readouterr() == ("", "")


def test_jobs_start_in_the_given_order(results):
    jobs = [job(name) for name in "fedcba"]
    recorder = Recorder()
    assert Pool(results, "cpu", 2)(jobs, recorder) == {}
    assert [model for model, what in recorder if what == "started"] == list("fedcba")


def test_a_job_without_memory_is_tried_again_with_fewer_at_once(results):
    """It starts again when the other one is done."""
    recorder = Recorder()
    assert Pool(results, "cpu", 2)([job("crowds_once"), job("long")], recorder) == {}
    again = ["started", "crowded", "started", "epoch", "done"]
    assert [what for model, what in recorder if model == "crowds_once"] == again
    assert recorder.index(("long", "done")) < len(recorder) - 1 - recorder[::-1].index(
        ("crowds_once", "started")
    )


@pytest.mark.parametrize("cause", ["no such program", "too many processes"])
def test_a_worker_that_cannot_start_fails_its_jobs(results, monkeypatch, cause):
    """Every job has a reason; a process that could not be started leaves nothing that a later one runs."""

    def refuse(process):
        raise BlockingIOError(errno.EAGAIN, cause)

    if cause == "no such program":
        monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: b"/nonexistent/python")
    else:
        monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", refuse)
    jobs, recorder = [job("a"), job("b"), job("c")], Recorder()
    failed = Pool(results, "cpu", 2)(jobs, recorder)
    assert set(failed) == {one.key for one in jobs}
    assert dict(recorder) == dict.fromkeys("abc", "failed")
    assert cause == "no such program" or all(cause in why for why in failed.values())


@pytest.mark.parametrize("moment", ["started", "epoch", "done"])
def test_an_exception_of_the_callback_reaches_the_caller(results, moment):
    """It stops the pool, whose workers end; jobs that were not run have no result and can be run again."""
    jobs = [job(str(number)) for number in range(6)]

    def callback(event):
        if event.what == moment:
            raise ZeroDivisionError(event.job.model)

    with pytest.raises(ZeroDivisionError):
        Pool(results, "cpu", 2)(jobs, callback)
    assert multiprocessing.active_children() == []
    assert Pool(results, "cpu", 2)(jobs, Recorder()) == {}


@pytest.mark.parametrize(("model", "number"), [("trains", signal.SIGINT), ("hangs", signal.SIGTERM)])
def test_a_signal_lets_trainings_save_and_ends_the_pool(results, model, number):
    """Those that do not stop within the time for saving are ended."""

    def send() -> None:
        wait_for(results.root / "training")
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with Interrupts(), pytest.raises(Interrupted):
        Pool(results, "cpu", 1)([job(model)], Recorder())
    sender.join()
    assert (results.root / "saved").exists() == (model == "trains")
    assert multiprocessing.active_children() == []


SCRIPT = """
import sys
from pathlib import Path
from acting_worker import ActingWorker
from dygmamba.studies import pool
from dygmamba.studies.job import Job, ResultCache

pool.Worker = ActingWorker
jobs = [Job("link", "uci", "digest", model, 0, {}) for model in sys.argv[2:]]
print(pool.Pool(ResultCache(Path(sys.argv[1])), "cpu", 2)(jobs, lambda event: None))
"""


@pytest.fixture
def script(tmp_path):
    """Command line of a script without a guard, which runs a pool in the folder that follows."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)], os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


def test_workers_of_a_killed_pool_save_and_exit(script, tmp_path):
    """The idle one too."""
    command, environment = script
    out = tmp_path / "out"
    parent = subprocess.Popen([*command, str(out), "idle", "trains"], env=environment)
    wait_for(out / "training")
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    ids = [int(word) for word in children.read_text().split()] if children.exists() else []
    parent.kill()
    parent.wait()
    wait_for(out / "saved")
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{one}").exists() for one in ids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_script_without_a_guard_is_not_run_again_by_the_workers(script, tmp_path):
    command, environment = script
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "a", "b"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{}\n", "")


def test_a_measurement_on_the_cpu_has_a_process_of_its_own(results):
    """Other jobs share one. Its number of threads is set before torch is imported."""
    for work in ("cost", "link"):
        jobs = [job("a", work=work), job("b", work=work)]
        assert Pool(results, "cpu", 1)(jobs, Recorder()) == {}
        stored = [json.loads((results.folder(one.key) / "result.json").read_text()) for one in jobs]
        assert len({one["process"] for one in stored}) == (2 if work == "cost" else 1)
        assert all(one["threads"] == str(os.cpu_count()) for one in stored)
        assert not any(one["imported"] for one in stored)


def test_workers_take_the_gpus_in_turn(monkeypatch):
    """Each worker gets one of several GPUs, by CUDA's name; a single GPU is shared by all workers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert [assign_gpu("cuda", number).get("CUDA_VISIBLE_DEVICES") for number in range(3)] == [
        "3",
        "GPU-5",
        "3",
    ]
    assert assign_gpu("cpu", 1) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert assign_gpu("cuda", 1) == {}
