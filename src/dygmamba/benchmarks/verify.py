"""What every benchmark shares: correctness first, then medians, ratios inside one run, and peak memory."""

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dygmamba.errors import DygError


class WrongAnswer(DygError):
    """A fast path that does not compute what its reference computes; its speed is of no interest."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One case: ours and the reference in seconds, reference / ours, and the peak of extra memory.

    What was not measured is None: a case that ran out of memory has no time, and says so in its note. An anchor is
    another implementation's figure from the one kind of GPU it was measured on; it is given on that GPU only.
    """

    case: str
    seconds: float | None
    reference_seconds: float | None
    ratio: float | None
    peak_mb: float
    reference_mb: float | None = None
    anchor_seconds: float | None = None
    anchor_ratio: float | None = None  # anchor / ours, in seconds
    anchor_mb: float | None = None
    anchor_mb_share: float | None = None  # ours / anchor
    growth: float | None = None  # seconds / those of the case before it
    growth_mb: float | None = None  # the same of memory
    gflops: float | None = None  # billions of floating-point operations a second
    bound_share: float | None = None  # of what a plain matrix product reaches in the same run
    note: str | None = None

    @staticmethod
    def of(
        case: str,
        seconds: float,
        reference: float | None = None,
        peak_mb: float = float("nan"),
        anchor_seconds: float | None = None,
        anchor_mb: float | None = None,
        **more: Any,
    ) -> "Row":
        """A case with its ratios."""
        return Row(
            case=case,
            seconds=seconds,
            reference_seconds=reference,
            ratio=reference and reference / seconds,
            peak_mb=peak_mb,
            anchor_seconds=anchor_seconds,
            anchor_ratio=anchor_seconds and anchor_seconds / seconds,
            anchor_mb=anchor_mb,
            anchor_mb_share=anchor_mb and peak_mb / anchor_mb,
            **more,
        )


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


def wait(device: str) -> None:
    """Return when the device has done all it was asked to."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def device_peak(device: str) -> Iterator[list[float]]:
    """As `peak_memory`: the allocator's peak on CUDA, the process's resident size on a CPU."""
    gc.collect()
    if device != "cuda":
        _give_back()
        with peak_memory() as peak:
            yield peak
        return
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base, peak = torch.cuda.memory_allocated(), [float("nan")]
    yield peak
    torch.cuda.synchronize()
    peak[0] = (torch.cuda.max_memory_allocated() - base) / 2**20


def _give_back() -> None:
    """Return freed memory to the system: what the allocator keeps of an earlier peak would hide this one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
