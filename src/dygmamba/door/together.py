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

from dygmamba import errors
from dygmamba.engine.launching import Ended, Launch, is_member
from dygmamba.engine.ranks import Ranks, together
from dygmamba.errors import ConfigError, DygError
from dygmamba.process_wide import join_others


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Inside, the processes that a launcher started for one command work together; one process is alone.

    They meet once and part when they end: a group that has parted cannot meet again under the same name.
    """
    join_others(device.type)
    with together() as ranks:
        yield ranks


def in_processes(
    name: str, processes: int, progress: Callable[[dict[str, Any]], None] | None, job: dict[str, Any]
) -> list[Path]:
    """Call `dygmamba.train` or `dygmamba.resume` in so many processes; the folders of the runs."""
    if is_member():
        raise ConfigError(f"this is one of several processes already; leave out `processes={processes}`")
    command = [sys.executable, "-m", "dygmamba.door.member", name, _plain(job)]
    last: dict[str, Any] = {}
    with Launch(command, processes, listen=True).started() as started:
        for line in started.words:
            last = json.loads(line)
            if "epoch" in last and progress is not None:
                progress(last["epoch"])
        try:
            started.wait()
        except Ended as ended:
            if not ended.said or "error" not in last:
                raise
            raise getattr(errors, last["kind"], DygError)(last["error"]) from None
    return [Path(path) for path in last["runs"]]


def _plain(job: dict[str, Any]) -> str:
    try:
        return json.dumps(job)
    except TypeError as error:
        raise ConfigError(
            f"several processes are told what to do in plain words and numbers ({error}); give plain ones"
        ) from error
