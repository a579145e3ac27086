"""Workers of a study as threads of this process: a process of its own takes seconds to import torch."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dygmamba.studies import pool
from dygmamba.studies.job import Job


class ThreadWorker(ThreadPoolExecutor):
    """An executor that runs the jobs of a worker in a thread."""

    def __init__(self, workers: int, context: Any, initializer: Any, arguments: tuple[Any, ...]) -> None:
        super().__init__(workers)
        self._worker: pool.Worker = arguments[0]

    def submit(self, function: Any, job: Job) -> Future[pool.JobEvent]:
        return super().submit(self._worker.run, job)


def use_thread_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pool start threads."""
    monkeypatch.setattr(pool, "ProcessPoolExecutor", ThreadWorker)
