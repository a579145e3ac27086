"""Several workers side by side: jobs go out, the costliest first, each as soon as what it needs is there."""

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

from dygmamba.core.errors import DygError
from dygmamba.core.files.writing import make_folder
from dygmamba.engine.fit import Interrupted
from dygmamba.lab.job import Job, Results

GPU_WORKERS = 18  # trainings that share one GPU well (docs/log.md)
STOP_TIMEOUT = 30.0  # seconds a stopped worker has for saving


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What happened to a job: started, epoch, done, failed, or crowded: it waits for memory."""

    job: Job
    what: str
    more: dict[str, Any] = field(default_factory=dict)


JobCallback = Callable[[JobEvent], None]


def list_visible_gpus() -> list[str]:
    """What CUDA calls the GPUs that this process may use."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(place) for place in range(torch.cuda.device_count())]


def assign_gpu(device: str, number: int) -> dict[str, str]:
    """What a worker is told of the GPUs: where there are several, one of them, in turn."""
    gpus = list_visible_gpus() if device == "cuda" else []
    return {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {}


def choose_worker_count(device: str, asked: int | None, alone: bool) -> int:
    """How many workers: as asked, one where each job needs the machine alone, else what the device bears."""
    if alone:
        return 1
    if asked is not None:
        return asked
    cores = os.cpu_count() or 1
    return min(GPU_WORKERS * max(1, len(list_visible_gpus())), cores + 2) if device == "cuda" else cores


class Pool:
    """Workers in processes of their own, so that one that dies takes nothing with it."""

    def __init__(self, results: Results, device: str, workers: int, data_dir: Path | None = None) -> None:
        self.results, self.device, self.workers, self.data_dir = results, device, workers, data_dir
        self._lock = threading.Condition()
        self._waiting: list[Job] = []
        self._running: dict[str, Job] = {}
        self._failed: dict[str, str] = {}
        self._live: list[subprocess.Popen[str]] = []
        self._allowed = workers  # at once; fewer where memory did not suffice
        self._ended = False

    def __call__(self, jobs: Sequence[Job], watch: JobCallback) -> dict[str, str]:
        """Do the jobs that are not done yet; what failed, by key, with its sentence. Ctrl-C saves and ends."""
        self._waiting = self.results.missing(jobs)
        make_folder(self.results.root)
        threads = [
            threading.Thread(target=self._serve, args=(number, watch), daemon=True)
            for number in range(min(self.workers, len(self._waiting)))
        ]
        with share_gpu(self.device, len(threads)):
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    while thread.is_alive():
                        thread.join(0.2)
            except BaseException:
                self._stop()
                raise Interrupted("stopped and saved; the same command goes on from here") from None
        return self._failed

    def _serve(self, number: int, watch: JobCallback) -> None:
        """One worker's life: a process, given one job after another; a new one where it died."""
        process = None
        while (job := self._next()) is not None:
            if process is None or process.poll() is not None:
                if process is not None:
                    _close_worker(process)
                process = self._start(number)
            watch(JobEvent(job, "started"))
            told = self._do(process, job, watch)
            if told["event"] == "crowded":
                process.wait()
                told = self._again(job, told)
            with self._lock:
                self._running.pop(job.key, None)
                if told["event"] == "failed" and not self._ended:
                    self._failed[job.key] = told["why"]
                self._lock.notify_all()
            if not self._ended:
                watch(JobEvent(job, told["event"], told))
            # a process that has freed memory may still hold it, so what is measured next has one of its own
            if job.work == "cost" and self.device == "cpu":
                _close_worker(process)
                process.wait()
        if process is not None:
            _close_worker(process)

    def _again(self, job: Job, told: dict[str, Any]) -> dict[str, Any]:
        """A job for which memory did not suffice goes back in line, and fewer run at once; alone, it has failed."""
        with self._lock:
            if len(self._running) == 1:
                return told | {"event": "failed"}
            self._allowed = max(1, min(self._allowed, len(self._running)) - 1)
            self._waiting.append(job)
            return told

    def _next(self) -> Job | None:
        """The next job whose needs are met; waits where others may still meet them."""
        with self._lock:
            while not self._ended:
                for job in self._waiting:
                    if job.needs in self._failed:
                        self._failed[job.key] = "what it builds on failed"
                        self._waiting.remove(job)
                        break
                    if len(self._running) >= self._allowed:
                        continue
                    if job.needs is None or self.results.find(job.needs) is not None:
                        self._waiting.remove(job)
                        self._running[job.key] = job
                        return job
                else:
                    if not self._waiting or not self._running:
                        return None
                    self._lock.wait(1.0)
        return None

    def _start(self, number: int) -> subprocess.Popen[str]:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        own = {name: str(threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")}
        with (self.results.root / f"worker-{number}.log").open("a") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "dygmamba.lab.worker", str(self.results.root), self.device),
                    "" if self.data_dir is None else str(self.data_dir),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | own | assign_gpu(self.device, number),
            )
        self._live.append(process)
        return process

    def _do(self, process: subprocess.Popen[str], job: Job, watch: JobCallback) -> dict[str, Any]:
        """Give a process a job and follow it to its last word: done, crowded or failed."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                told = json.loads(line)
                if told["event"] in ("done", "failed", "crowded"):
                    return told
                if told["event"] == "epoch":
                    watch(JobEvent(job, "epoch", told))
        except (OSError, ValueError):
            pass
        return {"event": "failed", "why": f"its process ended ({_describe_exit(process)})"}

    def _stop(self) -> None:
        """Ask every worker to save and end; after a while, end them."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        for process in self._live:
            process.terminate()
        for process in self._live:
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _close_worker(process: subprocess.Popen[str]) -> None:
    """No more jobs: the process ends, and so do the pipes to it."""
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
    """NVIDIA's multi-process service while several workers use one GPU, where it is there and not yet running."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device != "cuda" or workers < 2 or control is None:
        yield
        return
    began = subprocess.run([control, "-d"], capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if began:
            subprocess.run([control], input="quit\n", text=True, capture_output=True, check=False)


def raise_if_failed(failed: dict[str, str], jobs: Sequence[Job]) -> None:
    """An error that names what failed first and how many did."""
    if failed:
        by_key = {job.key: job for job in jobs}
        key, why = next(iter(failed.items()))
        raise DygError(
            f"{len(failed)} of {len(by_key)} runs failed, the first: {by_key[key].title} ({why}); mend that and give "
            "the same command again, what is done is kept"
        )
