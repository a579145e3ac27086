"""What every benchmark shares: correctness first, then medians, ratios inside one run, and peak memory."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dygmamba.errors import DygError


class WrongAnswer(DygError):
    """A fast path that does not compute what its reference computes; its speed is of no interest."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One case: ours and the reference in seconds, reference / ours, and the peak of extra memory."""

    case: str
    seconds: float
    reference_seconds: float
    ratio: float
    peak_mb: float


def require(truth: bool, claim: str) -> None:
    """Stop the benchmark unless the claim holds."""
    if not truth:
        raise WrongAnswer(
            f"{claim}: does not hold, so nothing was timed; run the tests and mend the fast path"
        )


def median_seconds(run: Callable[[], Any], repeats: int, warmup: int = 2) -> float:
    """Median wall time of a call."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def resident_mb() -> float:
    """Memory this process holds now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


@contextmanager
def peak_memory(interval: float = 0.002) -> Iterator[list[float]]:
    """A one-item list that holds, after the block, the peak of extra resident memory in MB.

    A thread samples the resident size; Linux only, nan elsewhere.
    """
    peak = [float("nan")]
    if not Path("/proc/self/statm").exists():
        yield peak
        return
    base, done = resident_mb(), threading.Event()
    highest = base

    def watch() -> None:
        nonlocal highest
        while not done.wait(interval):
            highest = max(highest, resident_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        highest = max(highest, resident_mb())
        done.set()
        watcher.join()
        peak[0] = highest - base
