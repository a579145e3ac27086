"""Pool of worker processes that run the jobs of a study in the given order, each after the job it needs.

A worker is an executor with one process, so that a process that is killed fails no job but its own. A pipe leads from
the process to the pool. It carries the epochs of the job; when the pool closes it, or is killed, the process saves its
run and exits.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from dygmamba.core.errors import DygError, FileError, Interrupted, first_line
from dygmamba.core.files.writing import make_folder
from dygmamba.core.process_settings import use_passive_wait_policy
from dygmamba.core.progress import EpochCallback
from dygmamba.studies.job import Job, ResultCache

GPU_WORKERS = 18  # trainings that share one GPU well (docs/research/log.md)
STOP_TIMEOUT = 30.0  # seconds that a stopped worker has to save its run
POLL_INTERVAL = 0.1  # seconds between two looks at the epochs of the running jobs


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


def choose_worker_count(device: str, requested: int | None, exclusive: bool) -> int:
    """Return the number of workers; one if the jobs are `exclusive`, that is, must not share the machine."""
    if exclusive:
        return 1
    if requested is not None:
        return requested
    cores = os.cpu_count() or 1
    return min(GPU_WORKERS * max(1, len(list_visible_gpus())), cores + 2) if device == "cuda" else cores


def list_visible_gpus() -> list[str]:
    """Return the CUDA names of the GPUs that this process may use."""
    import torch

    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(index) for index in range(torch.cuda.device_count())]


def assign_gpu(device: str, number: int) -> dict[str, str]:
    """Return the environment that gives worker `number` one of several GPUs, in turn; empty for a single one."""
    gpus = list_visible_gpus() if device == "cuda" else []
    return {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {}


@dataclass(slots=True)
class Worker:
    """State of a worker process."""

    results: ResultCache
    device: str
    data_dir: Path | None
    connection: Connection
    is_stopped: bool = False

    def run(self, job: Job) -> JobEvent:
        """Run a job and return its last event: done, crowded or failed."""
        try:
            self.results.save(job, self.compute(job))
        except DygError as error:
            return JobEvent(job, "failed", {"why": first_line(error)})
        except Exception as error:
            import torch

            if isinstance(error, MemoryError | torch.OutOfMemoryError | torch.AcceleratorError):
                return JobEvent(job, "crowded", {"why": first_line(error)})
            traceback.print_exc()
            why = f"{type(error).__name__}: {first_line(error)}; see the log of the worker"
            return JobEvent(job, "failed", {"why": why})
        return JobEvent(job, "done")

    def compute(self, job: Job) -> dict[str, Any]:
        from dygmamba.studies.job_runners import JOB_RUNNERS, JobContext

        progress = EpochCallback(self.send_epoch)
        context = JobContext(self.results, self.device, self.data_dir, progress, lambda: self.is_stopped)
        return JOB_RUNNERS[job.work](job, context)

    def send_epoch(self, entry: dict[str, Any]) -> None:
        with suppress(OSError):  # the pool has closed the pipe: the training is stopped after its next step
            self.connection.send(
                {"epoch": entry["epoch"] + 1, "loss": entry["loss"], "val_ap": entry["val_ap"]}
            )

    def exit_when_saved(self) -> None:
        """Stop the job in progress, give it the time to save its run, and end the process."""
        self.is_stopped = True
        _job_lock.acquire(timeout=STOP_TIMEOUT)
        os._exit(1)

    def exit_with_pool(self) -> None:
        """Wait until the pool closes the pipe or is killed, then end the process. The body of a thread."""
        with suppress(OSError):
            self.connection.poll(None)
        self.exit_when_saved()


# State of a worker process.
_worker: Worker | None = None
_job_lock = threading.Lock()  # held while a job runs


def start_worker(worker: Worker, environment: dict[str, str], log: Path) -> None:
    """Prepare a worker process, before torch and Numba are imported in it."""
    global _worker
    _worker = worker
    os.environ.update(environment)
    use_passive_wait_policy()
    with log.open("a", encoding="utf-8") as file:
        for descriptor in (1, 2):  # what a library prints goes to the log
            os.dup2(file.fileno(), descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the pool too, which then stops its workers
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=worker.exit_when_saved).start())
    threading.Thread(target=worker.exit_with_pool, daemon=True).start()


def run_job(job: Job) -> JobEvent:
    """Run a job in a worker process."""
    assert _worker is not None
    with _job_lock:
        event = _worker.run(job)
        if _worker.is_stopped:
            os._exit(1)  # so that the pool sends no other job
        return event


class Pool:
    """Runs jobs in worker processes. A pool is used once.

    Every job ends with a result in the cache or with a reason in the returned failures, whatever goes wrong: a job that
    raises, a worker that is killed, a worker that cannot be started, a job whose input is missing.
    """

    def __init__(self, results: ResultCache, device: str, workers: int, data_dir: Path | None = None) -> None:
        self.results, self.device, self.workers, self.data_dir = results, device, workers, data_dir
        self._waiting: list[Job] = []
        self._running: dict[Future[JobEvent], tuple[int, Job]] = {}  # with the number of the worker
        self._failed: dict[str, str] = {}
        self._executors: dict[int, tuple[ProcessPoolExecutor, Connection]] = {}
        self._max_running = workers  # lowered when memory runs out
        self._crowd: set[str] = set()  # running jobs that share the machine, or did so

    def __call__(self, jobs: Sequence[Job], callback: JobCallback) -> dict[str, str]:
        """Run the jobs that have no result yet.

        Args:
            jobs: Jobs in the order in which they should start.
            callback: Called with every event. If it raises, the pool stops and the exception is raised here.

        Returns:
            The reason of every failure, by the key of its job.

        Raises:
            Interrupted: Ctrl-C was pressed; the workers have saved their runs.
        """
        self._waiting = self.results.select_missing(jobs)
        make_folder(self.results.root)
        with share_gpu(self.device, min(self.workers, len(self._waiting))):
            try:
                while self._waiting or self._running:
                    self._start_jobs(callback)
                    self._follow_jobs(callback)
            except KeyboardInterrupt:
                raise Interrupted(
                    "stopped; finished runs and checkpoints are saved, repeat the same command to continue"
                ) from None
            finally:
                self._close_workers(*self._executors)
        for job in self.results.select_missing(jobs):  # what is left here must not look like a success
            self._failed.setdefault(job.key, "its worker saved no result")
        return self._failed

    def _start_jobs(self, callback: JobCallback) -> None:
        """Start the waiting jobs that can start, and fail those that never can."""
        pending = {job.key for job in self._waiting} | {job.key for _, job in self._running.values()}
        for job in list(self._waiting):
            if len(self._running) >= self._max_running:
                break
            try:
                is_ready = job.needs is None or self.results.load(job.needs) is not None
            except FileError as error:
                is_ready, why = False, first_line(error)
            else:
                why = "the job it needs failed, or is not part of the study and has no result"
                if not is_ready and job.needs in pending - set(self._failed):
                    continue
            self._waiting.remove(job)
            if is_ready:
                self._start_job(job, callback)
            else:
                self._end_job(JobEvent(job, "failed", {"why": why}), callback)
        # an idle process would keep its memory
        self._close_workers(*(self._executors.keys() - {number for number, _ in self._running.values()}))

    def _start_job(self, job: Job, callback: JobCallback) -> None:
        callback(JobEvent(job, "started"))
        number = min(set(range(self.workers)) - {number for number, _ in self._running.values()})
        try:
            self._running[self._submit_job(job, number)] = number, job
        except (OSError, RuntimeError) as error:  # no process or thread can be started
            self._close_workers(number)
            why = f"its process cannot be started ({type(error).__name__}: {first_line(error)})"
            self._end_job(JobEvent(job, "failed", {"why": why}), callback)
        if len(self._running) > 1:
            self._crowd |= {job.key for _, job in self._running.values()}

    def _submit_job(self, job: Job, number: int) -> "Future[JobEvent]":
        """Give a job to a worker; start its process if it has none, or lost it while it was idle."""
        if number in self._executors:
            with suppress(BrokenProcessPool):
                return self._executors[number][0].submit(run_job, job)
            self._close_workers(number)
        context = multiprocessing.get_context("spawn")
        connection, far_end = cast("tuple[Connection, Connection]", context.Pipe())
        worker = Worker(self.results, self.device, self.data_dir, far_end)
        threads = str(max(1, (os.cpu_count() or 1) // self.workers))
        limits = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        environment = limits | assign_gpu(self.device, number)
        log = self.results.root / f"worker-{number}.log"
        executor = ProcessPoolExecutor(1, context, start_worker, (worker, environment, log))
        self._executors[number] = executor, connection
        with hide_main_module():
            return executor.submit(run_job, job)

    def _follow_jobs(self, callback: JobCallback) -> None:
        """Report the epochs of the running jobs until some of them end; then report their ends."""
        ended: set[Future[JobEvent]] = set()
        while self._running and not ended:
            ended = wait(self._running, POLL_INTERVAL, FIRST_COMPLETED).done
            for number, job in self._running.values():
                while self._executors[number][1].poll():
                    callback(JobEvent(job, "epoch", self._executors[number][1].recv()))
        for future in ended:
            number, job = self._running.pop(future)
            if (error := future.exception()) is None:
                event = future.result()
            else:
                event = JobEvent(job, "failed", {"why": f"its process ended ({first_line(error)})"})
            # A process keeps part of the memory that it freed, so the next measurement needs a new process.
            if error is not None or event.what == "crowded" or (job.work == "cost" and self.device == "cpu"):
                self._close_workers(number)
            self._end_job(event, callback)

    def _end_job(self, event: JobEvent, callback: JobCallback) -> None:
        """Report the last event of a job; one that ran out of memory is tried again with fewer at once."""
        if event.what == "crowded" and event.job.key in self._crowd:
            self._max_running = max(1, min(self._max_running - 1, len(self._running)))
            self._waiting.append(event.job)
        elif event.what != "done":
            event = JobEvent(event.job, "failed", event.more)
            self._failed[event.job.key] = event.more["why"]
        self._crowd.discard(event.job.key)
        callback(event)

    def _close_workers(self, *numbers: int) -> None:
        """End worker processes; those that run a job save it first, all at the same time."""
        closed = [number for number in numbers if number in self._executors]
        for number in closed:
            self._executors[number][1].close()
        for number in closed:
            self._executors.pop(number)[0].shutdown(cancel_futures=True)


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Keep a new process from importing the script of the caller, which may lack a guard and start a study again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


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
