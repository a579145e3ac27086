"""Pool of worker processes that run the jobs of a study, the most expensive first, each after the job it needs."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, FileError, Interrupted, first_line
from dygmamba.core.files.writing import make_folder
from dygmamba.lab.job import Job, ResultCache

GPU_WORKERS = 18  # trainings that share one GPU well (docs/research/log.md)
STOP_TIMEOUT = 30.0  # seconds that a terminated worker has to save its run
WORKER_COMMAND = (sys.executable, "-m", "dygmamba.lab.worker")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """State change of a job, as passed to progress callbacks.

    `what` is "started", "epoch", "done", "failed" or "crowded" (out of memory; the job is tried again later). `more`
    holds the numbers of an epoch, or the reason under "why".
    """

    job: Job
    what: str
    more: dict[str, Any] = field(default_factory=dict)


JobCallback = Callable[[JobEvent], None]


def list_visible_gpus() -> list[str]:
    """Return the CUDA names of the GPUs that this process may use."""
    import torch

    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(index) for index in range(torch.cuda.device_count())]


def assign_gpu(device: str, number: int) -> dict[str, str]:
    """Return the environment that gives worker `number` one of several GPUs, in turn; empty for a single one."""
    gpus = list_visible_gpus() if device == "cuda" else []
    return {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {}


def choose_worker_count(device: str, requested: int | None, exclusive: bool) -> int:
    """Return the number of workers; one if the jobs are `exclusive`, that is, must not share the machine."""
    if exclusive:
        return 1
    if requested is not None:
        return requested
    cores = os.cpu_count() or 1
    return min(GPU_WORKERS * max(1, len(list_visible_gpus())), cores + 2) if device == "cuda" else cores


class Pool:
    """Runs jobs in worker processes, each served by a thread of this process. A pool is used once.

    Every job ends with a result in the cache or with a reason in the returned failures, whatever goes wrong: a job that
    raises, a worker that is killed, a worker that cannot be started, a job whose input is missing.
    """

    def __init__(self, results: ResultCache, device: str, workers: int, data_dir: Path | None = None) -> None:
        self.results, self.device, self.workers, self.data_dir = results, device, workers, data_dir
        self._lock = threading.Condition()  # guards everything below
        self._waiting: list[Job] = []
        self._running: dict[str, Job] = {}
        self._failed: dict[str, str] = {}
        self._unreported: list[Job] = []  # failed before they started; the callback does not know yet
        self._processes: list[subprocess.Popen[str]] = []
        self._max_running = workers  # lowered when memory runs out
        self._stopped = False
        self._callback_error: BaseException | None = None

    def __call__(self, jobs: Sequence[Job], callback: JobCallback) -> dict[str, str]:
        """Run the jobs that have no result yet.

        Args:
            jobs: Jobs in the order in which they should start.
            callback: Called from several threads. If it raises, the pool stops and the exception is raised here.

        Returns:
            The reason of every failure, by the key of its job.

        Raises:
            Interrupted: Ctrl-C was pressed; the workers have saved their runs.
        """
        missing = self.results.select_missing(jobs)
        self._waiting = list(missing)
        make_folder(self.results.root)
        threads = [
            threading.Thread(target=self._serve, args=(number, callback), daemon=True)
            for number in range(min(self.workers, len(missing)))
        ]
        with share_gpu(self.device, len(threads)):
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.2)  # a join without a timeout would not see Ctrl-C
                        if self._callback_error is not None:
                            self._stop()
            except KeyboardInterrupt:
                self._stop()
                raise Interrupted(
                    "stopped; finished runs and checkpoints are saved, repeat the same command to continue"
                ) from None
        if self._callback_error is not None:
            raise self._callback_error
        for job in missing:  # nothing should be left here; if something is, it must not look like a success
            if job.key not in self._failed and self.results.load(job.key) is None:
                self._failed[job.key] = "the job was not run"
        return self._failed

    def _serve(self, number: int, callback: JobCallback) -> None:
        """Feed one worker process with jobs; start another one when it dies. The body of a thread."""
        process = None
        while (job := self._take_job()) is not None:
            self._report_unstarted(callback)
            try:
                if process is None or process.poll() is not None:
                    if process is not None:
                        _close_worker(process)
                    process = self._start_worker(number)
                outcome = self._run_job(process, job, callback)
            except Exception as error:  # an exception in a thread would be lost, and the job with it
                outcome = {"event": "failed", "why": f"{type(error).__name__}: {first_line(error)}"}
                if process is not None:
                    process.kill()  # it may still be working on the job
                    process.wait()  # else the next job could be sent to the dying process
            with self._lock:
                self._running.pop(job.key, None)
                if outcome["event"] == "failed" and not self._stopped:
                    self._failed[job.key] = outcome["why"]
                self._lock.notify_all()
            self._report(callback, JobEvent(job, outcome["event"], outcome))
        self._report_unstarted(callback)
        if process is not None:
            _close_worker(process)

    def _report(self, callback: JobCallback, event: JobEvent) -> None:
        """Call the callback, unless the pool has stopped; an exception in it stops the pool."""
        if self._stopped:
            return
        try:
            callback(event)
        except BaseException as error:  # the main thread stops the workers and raises it again
            with self._lock:
                self._callback_error = self._callback_error or error
                self._stopped = True
                self._lock.notify_all()

    def _retry_later(self, job: Job, outcome: dict[str, Any]) -> dict[str, Any]:
        """Put a job that ran out of memory back into the queue and run fewer at once; alone, it has failed."""
        with self._lock:
            if len(self._running) == 1:
                return outcome | {"event": "failed"}
            self._max_running = max(1, min(self._max_running, len(self._running)) - 1)
            self._waiting.append(job)
            return outcome

    def _take_job(self) -> Job | None:
        """Return the next job that can start, waiting for one if necessary; None when there is none left."""
        with self._lock:
            while not self._stopped:
                for job in self._waiting:
                    if job.needs in self._failed:
                        self._fail_unstarted(job, "the job it needs failed")
                        break  # other jobs may need this one, so look at all of them again
                    if len(self._running) >= self._max_running:
                        continue
                    try:
                        is_ready = job.needs is None or self.results.load(job.needs) is not None
                    except FileError as error:
                        self._fail_unstarted(job, first_line(error))
                        break
                    if is_ready:
                        self._waiting.remove(job)
                        self._running[job.key] = job
                        return job
                else:
                    if not self._running:  # then nothing will become ready any more
                        for job in list(self._waiting):
                            self._fail_unstarted(
                                job, "the job it needs is not part of the study and has no result"
                            )
                        return None
                    if not self._waiting:
                        return None
                    self._lock.wait(1.0)
        return None

    def _fail_unstarted(self, job: Job, why: str) -> None:
        self._failed[job.key] = why
        self._waiting.remove(job)
        self._unreported.append(job)

    def _report_unstarted(self, callback: JobCallback) -> None:
        """Report failures of jobs that never started; not under the lock, because a callback may take long."""
        with self._lock:
            jobs, self._unreported = self._unreported, []
        for job in jobs:
            self._report(callback, JobEvent(job, "failed", {"event": "failed", "why": self._failed[job.key]}))

    def _start_worker(self, number: int) -> subprocess.Popen[str]:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")}
        with (self.results.root / f"worker-{number}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [
                    *WORKER_COMMAND,
                    *(str(self.results.root), self.device),
                    "" if self.data_dir is None else str(self.data_dir),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | limits | assign_gpu(self.device, number),
            )
        with self._lock:
            self._processes.append(process)
            stopped = self._stopped
        if stopped:  # the pool stopped while this process started
            process.terminate()
        return process

    def _run_job(self, process: subprocess.Popen[str], job: Job, callback: JobCallback) -> dict[str, Any]:
        """Run a job in a worker process and return its last event: done, crowded or failed."""
        self._report(callback, JobEvent(job, "started"))
        outcome = self._follow_job(process, job, callback)
        if outcome["event"] == "crowded":
            process.wait()
            outcome = self._retry_later(job, outcome)
        # A process keeps part of the memory that it freed, so the next measurement needs a new process.
        if job.work == "cost" and self.device == "cpu":
            _close_worker(process)
        return outcome

    def _follow_job(self, process: subprocess.Popen[str], job: Job, callback: JobCallback) -> dict[str, Any]:
        """Send a job to a worker process and report its epochs; return its last event."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] in ("done", "failed", "crowded"):
                    return event
                if event["event"] == "epoch":
                    self._report(callback, JobEvent(job, "epoch", event))
        except (OSError, ValueError):  # the process died while it was written to, or it wrote something else
            process.kill()
        return {"event": "failed", "why": f"its process ended ({_describe_exit(process)})"}

    def _stop(self) -> None:
        """Tell all workers to save and exit; kill those that take too long."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
            processes = list(self._processes)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _close_worker(process: subprocess.Popen[str]) -> None:
    """Close the pipes to a worker, which makes it exit, and wait for it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


def _describe_exit(process: subprocess.Popen[str]) -> str:
    code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"


@contextmanager
def share_gpu(device: str, workers: int) -> Iterator[None]:
    """Run NVIDIA's multi-process service for several workers on a GPU, if installed and not running yet."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device != "cuda" or workers < 2 or control is None:
        yield
        return
    started = subprocess.run([control, "-d"], capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if started:
            subprocess.run([control], input="quit\n", text=True, capture_output=True, check=False)


def raise_if_failed(failed: dict[str, str], jobs: Sequence[Job]) -> None:
    """Raise an error that names the first failed job and how many failed."""
    if failed:
        by_key = {job.key: job for job in jobs}
        key, why = next(iter(failed.items()))
        raise DygError(
            f"{len(failed)} of {len(by_key)} runs failed; the first is {by_key[key].title} ({why}). Fix the cause and "
            "repeat the same command; finished runs are kept",
            code="study-runs-failed",
        )
