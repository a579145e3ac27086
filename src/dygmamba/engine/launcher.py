"""Several processes of one command on this machine, which begin together and end together.

What torchrun does for one machine, in the project's own manners: the first process speaks, the others are heard only if
one of them is to blame. The environment says who each is, in torchrun's words, so a process does not know who started
it. Importing this is light.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dygmamba.core.errors import ConfigError, DygError

GRACE_SECONDS = 10.0  # seconds in which the others find out by themselves that one is gone
SAVE_SECONDS = 30.0  # seconds they have for saving once they are told to end
POLL_SECONDS = 0.05  # seconds between two looks at them
PEER_LOST_EXIT_CODE = 75  # the exit code of who ended only because another did (`engine/distributed.py`)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")


class ProcessesFailed(DygError):
    """The processes ended before their work was done; `said` where the user has read why already."""

    def __init__(self, sentence: str, exit_code: int, said: bool) -> None:
        super().__init__(sentence)
        self.exit_code, self.said = exit_code, said


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """One of the processes, and what it wrote on stderr where that is kept."""

    number: int
    process: subprocess.Popen[str]
    errors: Any  # a text file, or None


class Launcher:
    """So many processes of one command; used in a `with`, in which signals go on to all of them."""

    def __init__(self, command: Sequence[str], processes: int, listen: bool = False) -> None:
        if processes < 1:
            raise ConfigError(f"`processes` must be 1 or more, got {processes}")
        self.command, self.size, self.listen = list(command), processes, listen
        self.members: list[WorkerProcess] = []

    @contextmanager
    def started(self) -> Iterator["Launcher"]:
        """The processes are there; whatever happens, none of them is left."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        port = _free_port()
        try:
            with suppress(ValueError):  # not the main thread: signals are somebody else's
                for number in before:
                    signal.signal(number, lambda number, _: self._tell(number))
            for number in range(self.size):
                self.members.append(self._start(number, port))
            yield self
        finally:
            self._tell(signal.SIGKILL)
            for member in self.members:
                member.process.wait()
                for heard in (member.errors, member.process.stdout):
                    if heard is not None:
                        heard.close()
            with suppress(ValueError):
                for number, handler in before.items():
                    signal.signal(number, handler)

    @property
    def words(self) -> Iterable[str]:
        """What the first process writes on stdout, line by line, where somebody listens."""
        said = self.members[0].process.stdout
        assert said is not None
        return said

    def wait(self) -> None:
        """Until all are done; an error where one of them failed, and then none is left running."""
        failed, told = 0.0, False
        while any(member.process.poll() is None for member in self.members):
            now = time.monotonic()
            if not failed and any(member.process.poll() for member in self.members):
                failed = now
            if failed and not told and now - failed > GRACE_SECONDS:
                self._tell(signal.SIGTERM)
                told = True
            if failed and now - failed > GRACE_SECONDS + SAVE_SECONDS:
                self._tell(signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        self._blame()

    def _blame(self) -> None:
        """Who ended first for a reason of its own."""
        guilty = [
            member for member in self.members if member.process.returncode not in (0, PEER_LOST_EXIT_CODE)
        ]
        guilty = guilty or [member for member in self.members if member.process.returncode]
        if not guilty:
            return
        first, code = guilty[0], guilty[0].process.returncode
        if code < 0:
            ending = f"was ended by {signal.Signals(-code).name}"
            kept = "what was saved is kept, and resuming the run goes on from there"
            raise ProcessesFailed(
                f"process {first.number + 1} of {self.size} {ending}; {kept}", 1, said=False
            )
        heard = self._heard(first)
        raise ProcessesFailed(
            heard or f"process {first.number + 1} of {self.size} failed", code, said=not heard
        )

    def _heard(self, member: WorkerProcess) -> str:
        """What a process said that the user has not read."""
        if member.errors is None:
            return ""
        member.errors.seek(0)
        lines = [line.strip() for line in member.errors if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else ""

    def _start(self, number: int, port: int) -> WorkerProcess:
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        own = {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        } | {name: os.environ.get(name, threads) for name in THREAD_VARIABLES}  # fmt: skip
        speaks: dict[str, Any] = {"stdout": subprocess.PIPE} if self.listen else {}
        errors = None
        if number:
            errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            speaks = {"stdout": subprocess.DEVNULL, "stderr": errors}
        process = subprocess.Popen(
            self.command,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **speaks,
        )
        return WorkerProcess(number, process, errors)

    def _tell(self, number: int) -> None:
        for member in self.members:
            with suppress(ProcessLookupError):
                member.process.send_signal(number)


def launch_command(words: Sequence[str], processes: int) -> None:
    """This command line once more, in so many processes."""
    with Launcher([sys.executable, "-m", "dygmamba", *words], processes).started() as started:
        started.wait()


def is_worker() -> bool:
    """Whether this process was started as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]
