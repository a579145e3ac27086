"""A training in several processes: those that were started together meet, and from one they are started.

The first process is the one that is heard; its words come back as JSON lines.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dygmamba.core import errors
from dygmamba.core.errors import ConfigError, DygError
from dygmamba.core.process_settings import join_process_group
from dygmamba.engine.distributed import ProcessGroup, use_process_group
from dygmamba.engine.launcher import Launcher, ProcessesFailed, is_worker


@contextmanager
def process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Inside, the processes that a launcher started for one command work together; one process is alone.

    They meet once and part when they end: a group that has parted cannot meet again under the same name.
    """
    join_process_group(device.type)
    with use_process_group() as ranks:
        yield ranks


def run_in_processes(
    name: str, processes: int, progress: Callable[[dict[str, Any]], None] | None, job: dict[str, Any]
) -> list[Path]:
    """Call `dygmamba.train` or `dygmamba.resume` in so many processes; the folders of the runs."""
    if is_worker():
        raise ConfigError(f"this is one of several processes already; leave out `processes={processes}`")
    command = [sys.executable, "-m", "dygmamba.api.worker", name, _encode_job(job)]
    last: dict[str, Any] = {}
    with Launcher(command, processes, listen=True).started() as started:
        for line in started.words:
            last = json.loads(line)
            if "epoch" in last and progress is not None:
                progress(last["epoch"])
        try:
            started.wait()
        except ProcessesFailed as ended:
            if not ended.said or "error" not in last:
                raise
            raise getattr(errors, last["kind"], DygError)(last["error"]) from None
    return [Path(path) for path in last["runs"]]


def _encode_job(job: dict[str, Any]) -> str:
    try:
        return json.dumps(job)
    except TypeError as error:
        raise ConfigError(
            f"several processes are told what to do in plain words and numbers ({error}); give plain ones"
        ) from error
