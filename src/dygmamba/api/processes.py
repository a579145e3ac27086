"""Training in several processes of this machine.

`run_in_processes` starts them (`dygmamba.api.worker`). The first one reports its progress, its errors and the run
directories as JSON lines on a pipe, and the parent replays them.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.api.requests.training import RefitRequest, ResumeRequest, TrainRequest
from dygmamba.core import errors
from dygmamba.core.errors import ConfigError, DygError, DygWarning
from dygmamba.core.process_settings import join_process_group
from dygmamba.core.progress import Progress
from dygmamba.engine.distributed import ProcessGroup, use_process_group
from dygmamba.engine.launcher import ProcessesFailed, is_worker, launch_workers

if TYPE_CHECKING:
    import torch

SEND_SECONDS = 0.1  # between two reports of the same stage
Send = Callable[[dict[str, Any]], None]
SharedRequest = TrainRequest | ResumeRequest | RefitRequest  # has a number of processes


@contextmanager
def process_group(device: "torch.device") -> Iterator[ProcessGroup]:
    """Join the processes that a launcher started for one command; a single process is a group of its own.

    Processes join once and leave when they end: torch cannot set up a group again under the same name.
    """
    join_process_group(device.type)
    with use_process_group() as group:
        yield group


def run_in_processes(
    name: str, request: SharedRequest, progress: Progress, more: dict[str, str] | None = None
) -> list[Path]:
    """Do what a request asks for in several processes.

    Args:
        name: "train", "resume" or "refit".
        request: Its arguments must be plain values; its `processes` share each batch.
        progress: Observer of the first process.
        more: Where the workers find data that no name leads to ("stored"), and a run whose code they may import
            ("trusted").

    Returns:
        The run directories.
    """
    processes = request.processes
    if is_worker():
        raise ConfigError(
            f"this process is already one of several; leave out `processes={processes}`",
            code="nested-processes",
        )
    command = [
        sys.executable,
        "-m",
        "dygmamba.api.worker",
        name,
        _encode_request(request),
        json.dumps(more or {}),
    ]
    try:
        with closing(launch_workers(command, processes)) as lines:
            last = replay_progress(map(json.loads, lines), progress)
    except ProcessesFailed as failure:
        report = _parse_report(failure.report)
        if "error" in report:
            raise _decode_error(report) from None
        raise
    return [Path(path) for path in last["runs"]]


class PipeProgress(Progress):
    """Progress that is sent to the parent process, line by line."""

    def __init__(self, send: Send, number: int = 0, numbers: Iterator[int] | None = None) -> None:
        self._send, self._number, self._numbers = send, number, numbers or count(1)
        self._pending, self._sent = 0, 0.0

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> Iterator[Progress]:
        child = PipeProgress(self._send, next(self._numbers), self._numbers)
        self._send({"stage": [child._number, self._number, name, total, done, unit]})
        try:
            yield child
        finally:
            child._flush()
            self._send({"end": child._number})

    def advance(self, count: int = 1) -> None:
        self._pending += count
        if time.monotonic() - self._sent > SEND_SECONDS:  # a line per step would slow down short steps
            self._flush()

    def epoch(self, entry: dict[str, Any]) -> None:
        self._flush()
        self._send({"epoch": [self._number, entry]})

    def message(self, text: str) -> None:
        self._send({"message": text})

    def _flush(self) -> None:
        if self._pending:
            self._send({"advance": [self._number, self._pending]})
            self._pending, self._sent = 0, time.monotonic()


def replay_progress(lines: Iterable[dict[str, Any]], progress: Progress) -> dict[str, Any]:
    """Repeat what a `PipeProgress` sent; returns the last line, the process's result or error."""
    last: dict[str, Any] = {}
    stages: dict[int, Progress] = {0: progress}
    opened: dict[int, AbstractContextManager[Progress]] = {}
    try:
        for line in lines:
            match line:
                case {"stage": [number, parent, name, total, done, unit]}:
                    opened[number] = stages[parent].stage(name, total, done=done, unit=unit)
                    stages[number] = opened[number].__enter__()
                case {"end": number}:
                    opened.pop(number).__exit__(None, None, None)
                case {"advance": [number, units]}:
                    stages[number].advance(units)
                case {"epoch": [number, entry]}:
                    stages[number].epoch(entry)
                case {"message": text}:
                    progress.message(text)
                case {"warning": text}:
                    warnings.warn(DygWarning(text), stacklevel=4)
                case _:
                    last = line
    finally:
        for stage in reversed(opened.values()):
            stage.__exit__(None, None, None)
    return last


def encode_error(error: DygError) -> dict[str, Any]:
    """Return an error as plain values."""
    return {
        "error": str(error),
        "kind": type(error).__name__,
        "code": error.code,
        "exit_code": error.exit_code,
    }


def _decode_error(line: dict[str, Any]) -> DygError:
    error = getattr(errors, line["kind"], DygError)(line["error"], code=line["code"])
    error.exit_code = line["exit_code"]
    return error


def _parse_report(line: str) -> dict[str, Any]:
    """Return the last line of a failed worker, empty if it is not a whole JSON object."""
    try:
        report = json.loads(line)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def _encode_request(request: SharedRequest) -> str:
    try:
        return json.dumps(asdict(replace(request, processes=1)), default=_encode_path)
    except TypeError as error:
        raise ConfigError(
            f"with several processes every argument must be a plain value ({error})",
            code="argument-not-plain",
        ) from error


def _encode_path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is none")
