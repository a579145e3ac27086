"""A worker process of a study that does what the name of a job's model says."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, Interrupted
from dygmamba.studies import pool
from dygmamba.studies.job import Job

pool.STOP_TIMEOUT = 1.0  # of the process that imports this module


def wait_for(path: Path) -> None:
    """Wait until another process has written a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


class ActingWorker(pool.Worker):
    """Imports no torch, so that a process starts quickly."""

    def run(self, job: Job) -> pool.JobEvent:
        if job.model == "forgets":
            return pool.JobEvent(job, "done")
        return super().run(job)

    def compute(self, job: Job) -> dict[str, Any]:
        getattr(self, f"act_{job.model}", print)("printed by a library")
        self.send_epoch({"epoch": 0, "loss": 0.5, "val_ap": 0.5})
        started = {"process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}
        return {"rows": [], "imported": "torch" in sys.modules, **started}

    def act_good(self, line: str) -> None:
        os.system("echo printed by a program")

    def act_dies(self, line: str) -> None:
        os._exit(3)

    def act_exits(self, line: str) -> None:
        sys.exit("early")

    def act_fails(self, line: str) -> None:
        raise ConfigError("diverged", code="diverged")

    def act_raises(self, line: str) -> None:
        raise ZeroDivisionError("of a library")

    def act_crowds(self, line: str) -> None:
        raise MemoryError("no memory")

    def act_crowds_once(self, line: str) -> None:
        if not (self.results.root / "crowded").exists():
            wait_for(self.results.root / "long")
            (self.results.root / "crowded").touch()
            raise MemoryError("no memory")

    def act_long(self, line: str) -> None:
        (self.results.root / "long").touch()
        wait_for(self.results.root / "crowded")
        time.sleep(0.5)

    def act_trains(self, line: str) -> None:
        (self.results.root / "training").touch()
        while not self.is_stopped:
            time.sleep(0.01)
        (self.results.root / "saved").touch()
        raise Interrupted("stopped")

    def act_hangs(self, line: str) -> None:
        (self.results.root / "training").touch()
        time.sleep(600)
