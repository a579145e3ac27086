"""Workers of a study as threads of this process: a process of its own takes seconds to import torch."""

import os
import threading

import pytest

from dygmamba.lab.pool import Pool
from dygmamba.lab.worker import serve_jobs


class ThreadWorker:
    """What a pool uses of a worker process: two pipes, and an end that can be awaited."""

    def __init__(self, pool: Pool, number: int) -> None:
        places = str(pool.results.root), pool.device, "" if pool.data_dir is None else str(pool.data_dir)
        (lines, stdin), (stdout, events) = os.pipe(), os.pipe()
        self.stdin, self.stdout = open(stdin, "w"), open(stdout)  # noqa: SIM115 - the pool closes them
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(lines, events, places), daemon=True)
        self._thread.start()

    def _serve(self, lines: int, events: int, places: tuple[str, str, str]) -> None:
        with open(lines) as jobs, open(events, "w") as out:
            serve_jobs(jobs, out, places, self._stop)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def terminate(self) -> None:
        self._stop.set()

    kill = terminate


def use_thread_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pool start threads."""
    monkeypatch.setattr(Pool, "_start_worker", lambda pool, number: ThreadWorker(pool, number))
