"""The pool of worker processes: GPUs are shared, and every job ends with a result or a reported failure."""

import sys
import threading

import pytest

from dygmamba.lab import pool
from dygmamba.lab.job import Job, ResultCache
from dygmamba.lab.pool import Pool, assign_gpu, raise_if_failed
from raising import raises

# stands in for dygmamba.lab.worker: does what the name of the model says
WORKER = """
import json, sys
from pathlib import Path
from dygmamba.lab.job import Job, ResultCache

results = ResultCache(Path(sys.argv[1]))
print(json.dumps({"event": "ready"}), flush=True)
for line in sys.stdin:
    job = Job.from_json(line)
    if job.model == "dies":
        sys.exit(3)
    if job.model == "garbage":
        print("{ not json", flush=True)
        continue
    if job.model == "odd":
        print(json.dumps(["no", "event"]), flush=True)
        continue
    if job.model == "fails":
        print(json.dumps({"event": "failed", "why": "diverged"}), flush=True)
        continue
    if job.model != "forgets":
        results.save(job, {"rows": []})
    print(json.dumps({"event": "epoch", "epoch": 1, "loss": 0.5, "val_ap": 0.5}), flush=True)
    print(json.dumps({"event": "done"}), flush=True)
"""


def job(model, needs=None):
    return Job("link", "uci", "digest", model, 0, {}, about={"model": model}, needs=needs)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The result cache of a pool whose workers are the script above."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(pool, "WORKER_COMMAND", (sys.executable, str(script)))
    return ResultCache(tmp_path / "out")


class Recorder:
    """A callback that keeps the last event of every model."""

    def __init__(self):
        self.last, self.lock = {}, threading.Lock()

    def __call__(self, event):
        with self.lock:
            self.last[event.job.model] = event.what


@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_ends_done_or_failed(results, workers):
    """Jobs that fail, kill their worker, answer nonsense, lose their result, or need one of these; others are done."""
    jobs = [job(model) for model in ("good", "fails", "dies", "garbage", "odd", "forgets", "fine")]
    jobs += [job("follows", jobs[0].key), job("follows-failure", jobs[1].key), job("orphan", "no such key")]
    recorder = Recorder()
    failed = Pool(results, "cpu", workers)(jobs, recorder)
    by_model = {one.model: failed.get(one.key) for one in jobs}
    done = {"good", "fine", "follows"}
    assert {model for model, why in by_model.items() if why is None} == done
    assert all(results.load(one.key) is not None for one in jobs if one.model in done)
    assert by_model["fails"] == "diverged"
    assert "exit code 3" in by_model["dies"]
    assert "TypeError" in by_model["odd"]
    reported = {model for model, what in recorder.last.items() if what == "failed"}
    assert reported == set(by_model) - done - {"forgets"}  # its worker claims that it is done
    with raises("study-runs-failed") as caught:
        raise_if_failed(failed, jobs)
    assert f"{len(failed)} of {len(jobs)} runs" in str(caught.value)


def test_a_worker_that_cannot_start_fails_its_jobs(results, monkeypatch):
    """An exception in a thread of the pool is a failure with a reason, not a study without failures."""
    monkeypatch.setattr(pool, "WORKER_COMMAND", ("/nonexistent/python",))
    jobs, recorder = [job("a"), job("b"), job("c")], Recorder()
    failed = Pool(results, "cpu", 2)(jobs, recorder)
    assert set(failed) == {one.key for one in jobs}
    assert all("FileNotFoundError" in why for why in failed.values())
    assert recorder.last == dict.fromkeys("abc", "failed")


@pytest.mark.parametrize("moment", ["started", "epoch", "done"])
def test_an_exception_of_the_callback_reaches_the_caller(results, moment):
    """It stops the pool, whose workers end; jobs that were not run have no result and can be run again."""
    jobs = [job(str(number)) for number in range(6)]

    def callback(event):
        if event.what == moment:
            raise ZeroDivisionError(event.job.model)

    used = Pool(results, "cpu", 2)
    with pytest.raises(ZeroDivisionError):
        used(jobs, callback)
    assert all(process.wait(10) is not None for process in used._processes)
    assert Pool(results, "cpu", 2)(jobs, Recorder()) == {}


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
