"""Launcher of worker processes on this machine, on torch's elastic multiprocessing (decision 030).

The workers find each other through a store that the launcher hosts, with the environment variables of torchrun, so that
a worker does not know who started it. The first worker reports on stdout, line by line; the launcher passes its lines
on while it watches all workers. If one fails, the others are ended and the error names the worker that failed first.
"""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, DygError

POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0  # for a failed worker to end by itself after others have lost it
PEER_LOST_EXIT_CODE = 75  # of a worker that ended only because another one did (`PeerLostError`)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM ends a process at once
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # those that torch's launcher handles
ELASTIC_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"


class ProcessesFailed(DygError):
    """A worker failed; `report` is the last line that it printed to stdout."""

    code = "process-failed"

    def __init__(self, message: str, exit_code: int, report: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.report = exit_code, report


def is_worker() -> bool:
    """Return whether this process was started as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


def launch_workers(command: Sequence[str], processes: int) -> Generator[str, None, None]:
    """Run a command in several processes; close the iterator to end them.

    SIGINT is passed on to the workers, and other signals that end a process as SIGTERM.

    Args:
        command: Program and arguments.
        processes: Number of workers.

    Yields:
        The lines that the first worker prints to stdout.

    Raises:
        ProcessesFailed: A worker failed; no worker is left.
    """
    if processes < 1:
        raise ConfigError(f"`processes` must be 1 or more; got {processes}", code="processes-not-positive")
    return _follow_workers(list(command), processes)


def _follow_workers(command: list[str], processes: int) -> Generator[str, None, None]:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext

    ranks = range(processes)
    # port 0: the store takes a free one, so that no two launchers can compete for a port
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="dygmamba-workers-") as folder, _record_signals() as received:
        workers = SubprocessContext(
            name="dygmamba",
            entrypoint=command[0],
            args={rank: tuple(command[1:]) for rank in ranks},
            envs={rank: _worker_environment(rank, processes, store.port) for rank in ranks},
            # the first worker's stderr is the user's; the others are quiet unless one of them fails
            logs_specs=DefaultLogsSpecs(folder, {rank: Std.ALL if rank else Std.OUT for rank in ranks}),
        )
        try:
            workers.start()
            with open(workers.stdouts[0], "rb") as output:
                rest, lost = b"", None
                while True:
                    # the worker that is to blame may still be printing its error: it must not be ended yet
                    lost = (lost or time.monotonic()) if _has_only_lost_peers(workers) else None
                    is_waiting = lost is not None and time.monotonic() - lost < GRACE_SECONDS
                    result = None if is_waiting else workers.wait(0)  # ends the others if one has failed
                    while received:
                        _send_signal(workers, received.pop(0))
                    *lines, rest = (rest + output.read()).split(b"\n")
                    yield from (line.decode("utf-8", "replace") for line in lines)
                    if result is not None:
                        break
                    time.sleep(POLL_SECONDS)
            if result.is_failed():
                raise _describe_failure(result, processes)
        finally:
            workers.close(KILL)
            _close_logs(workers)


def _worker_environment(rank: int, processes: int, port: int) -> dict[str, str]:
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),  # the launcher hosts the store, not the first worker
        "TORCHELASTIC_RESTART_COUNT": "0",
    } | {name: os.environ.get(name, threads) for name in THREAD_VARIABLES}


def _has_only_lost_peers(workers: Any) -> bool:
    """Return whether workers have failed because they lost a peer, which is still running."""
    codes = [handler.proc.poll() for handler in workers.subprocess_handlers.values()]
    return None in codes and {code for code in codes if code} == {PEER_LOST_EXIT_CODE}


def _send_signal(workers: Any, number: int) -> None:
    for handler in workers.subprocess_handlers.values():
        with suppress(ProcessLookupError):
            handler.proc.send_signal(number if number == signal.SIGINT else signal.SIGTERM)


def _describe_failure(result: Any, processes: int) -> ProcessesFailed:
    """Return the error of the worker that failed first for a reason of its own."""
    # in the order in which torch noticed them; those that it ended itself come last
    failures = list(result.failures.values())
    own = [failure for failure in failures if failure.exitcode != PEER_LOST_EXIT_CODE]
    first = (own or failures)[0]
    name = f"process {first.local_rank + 1} of {processes}"
    report = _read_last_line(result.stdouts[first.local_rank])
    if first.exitcode < 0:
        ended = f"{name} was ended by {signal.Signals(-first.exitcode).name}"
        hint = "checkpoints are kept, and resuming the run continues from the last one"
        return ProcessesFailed(f"{ended}; {hint}", 1, report)
    reason = _read_last_line(result.stderrs[first.local_rank]) or f"exit code {first.exitcode}"
    return ProcessesFailed(f"{name} failed: {reason}", first.exitcode, report)


def _read_last_line(path: str) -> str:
    """Return the last line of a log that is not empty; "" if the output was not redirected."""
    lines = Path(path).read_text("utf-8", "replace").splitlines() if path else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _close_logs(workers: Any) -> None:
    # torch closes these files only of workers that it ended itself
    for handler in workers.subprocess_handlers.values():
        for log in (getattr(handler, "_stdout", None), getattr(handler, "_stderr", None)):
            if log is not None:
                log.close()


@contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Collect signals in a list instead of acting on them; torch's launcher installs no handlers and logs nothing.

    An exception out of a handler, as torch's raises it, could strike while workers are being started and orphan them.
    """
    received: list[int] = []
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    level, setting = logger.level, os.environ.get(ELASTIC_SIGNALS)
    logger.setLevel(logging.CRITICAL + 1)
    os.environ[ELASTIC_SIGNALS] = ""
    try:
        with suppress(ValueError):  # only the main thread can install handlers
            for number in numbers:
                signal.signal(number, lambda number, _: received.append(number))
        yield received
    finally:
        with suppress(ValueError):
            for number, handler in previous.items():
                signal.signal(number, handler)
        logger.setLevel(level)
        if setting is None:
            del os.environ[ELASTIC_SIGNALS]
        else:
            os.environ[ELASTIC_SIGNALS] = setting
