"""Run a command in a child process under limits of time and memory, and say in one word how it ended."""

import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

TIME_LIMIT = 30.0  # seconds of a processor; more is a hang
PATIENCE = 120.0  # seconds by the clock, of a machine that may be busy with other work
MEMORY_LIMIT = 2 << 30  # bytes; more is too much for an error
FORKS = multiprocessing.get_context(
    "forkserver"
)  # a server that has imported everything and computed nothing
FORKS.set_forkserver_preload(
    [
        *("torch._dynamo", "numba", "pyarrow.csv", "pyarrow.parquet", "rich.progress", "torture_cases"),
        *("dygmamba.cli", "dygmamba.cli.progress", "dygmamba.runs.link_training", "dygmamba.runs.predictor"),
        *(
            "dygmamba.data.readers",
            "dygmamba.data.generate.stream",
            "dygmamba.report.run_report",
            "dygmamba.runs.pipeline",
        ),
        *(
            "dygmamba.data.catalogue.known_datasets",
            "dygmamba.data.catalogue.fetch",
            "dygmamba.explain.forgetting",
            "bad_server",
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended: what it was, its exit code, its words, and what it took."""

    words: Sequence[str]
    code: int | None
    said: str
    seconds: float  # by the clock
    busy: float  # of a processor
    peak: int

    @property
    def verdict(self) -> str:
        """`done`, `refused` (one sentence and exit code 2), or what is wrong with it."""
        if self.busy > TIME_LIMIT or self.seconds > PATIENCE:
            return "hang"
        if self.peak > MEMORY_LIMIT:
            return "memory"
        if "Traceback" in self.said:
            return "traceback"
        if self.code == 0:
            return "done"
        if self.code != 2:
            return f"exit {self.code}"
        own = [line for line in self.said.splitlines() if line.startswith("error: ")]
        return "refused" if len(own) == 1 or "Usage: " in self.said else "no sentence"

    def __str__(self) -> str:
        """For a failed test: the call and the end of what it said."""
        took = f"{self.seconds:.1f} s, {self.busy:.1f} s busy, {self.peak / 2**20:,.0f} MB"
        return (
            f"{self.verdict} ({self.code}, {took}): {[word[:80] for word in self.words]}\n{self.said[-1500:]}"
        )


def _child(target: Callable[..., Any], words: Sequence[Any], out: str, data: int) -> None:
    handle = os.open(out, os.O_WRONLY | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (_figure("VmData") + data,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    target(*words)


def command(words: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    """The command line, as a shell would call it from that folder."""
    import torch

    from dygmamba.cli import main

    torch.set_num_threads(1)
    os.environ |= dict(environment)
    os.chdir(folder)
    sys.argv = ["dygmamba", *words]
    main()


def run_limited(target: Callable[..., Any], words: Sequence[Any], shown: Sequence[str] = ()) -> End:
    """Call a function in a child process, which is killed if it exceeds its time or memory limit."""
    handle, out = mkstemp(prefix="torture-")
    os.close(handle)
    child = FORKS.Process(target=_child, args=(target, words, out, MEMORY_LIMIT - (1 << 29)), daemon=True)
    child.start()
    start, peak, busy = time.monotonic(), 0, 0.0
    while child.exitcode is None:
        peak, busy = max(peak, _figure("VmHWM", child.pid)), max(busy, _busy(child.pid))
        if busy > TIME_LIMIT or time.monotonic() - start > PATIENCE or peak > MEMORY_LIMIT:
            child.kill()
        child.join(0.02)
    seconds = time.monotonic() - start
    said = Path(out).read_bytes().decode("utf-8", "replace")
    os.unlink(out)
    return End(shown or [str(word) for word in words], child.exitcode, said, seconds, busy, peak)


def run_limited_command(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> End:
    """Run the command line in a child process."""
    return run_limited(command, (list(words), dict(environment), str(folder)), words)


def run_in_parallel(calls: Iterable[Sequence[Any]], work: Callable[..., End], many: int = 2) -> Iterator[End]:
    """Yield the ends of calls in their order, `many` of which run at the same time."""
    with ThreadPoolExecutor(many) as pool:
        waiting = []
        for call in calls:
            waiting.append(pool.submit(work, *call))
            if len(waiting) > many:
                yield waiting.pop(0).result()
        for one in waiting:
            yield one.result()


def _figure(name: str, pid: int | str | None = "self") -> int:
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:  # it is gone
        return 0
    return int(found[1]) << 10 if found else 0


def _busy(pid: int | None) -> float:
    """Seconds of a processor that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
