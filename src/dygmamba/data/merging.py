"""Sorted runs on the disk as one: which rows come next, without looking at more than so many of them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dygmamba.data.scratch import Scratch

Parts = list[tuple[int, int]]


def interleaved(time: Scratch, runs: Sequence[int], most: int) -> Iterator[tuple[Parts, np.ndarray | None]]:
    """Parts of the runs in their order, and the order of the rows of these parts; None: as they are.

    Run k goes from row `runs[k]` to `runs[k + 1]` and is sorted by time. Rows of one time keep the order of their runs,
    so a file that was cut into runs is sorted stably.
    """
    ends = [stop for _, stop in pairwise(runs)]
    at = list(runs[:-1])
    while left := [k for k in range(len(ends)) if at[k] < ends[k]]:
        each = max(1, most // len(left))
        ahead = {k: time.read(at[k], min(at[k] + each, ends[k])) for k in left}
        # what is earlier than this has been seen in every run
        bound = min((ahead[k][-1] for k in left if at[k] + each < ends[k]), default=np.inf)
        count = {k: int(np.searchsorted(ahead[k], bound)) for k in left}
        if any(count.values()):
            parts = [(at[k], at[k] + count[k]) for k in left if count[k]]
            times = np.concatenate([ahead[k][: count[k]] for k in left])
            yield parts, np.argsort(times, kind="stable") if len(parts) > 1 else None
            for k in left:
                at[k] += count[k]
        else:  # a tie that is longer than what is looked at: all of it, run by run
            for k in left:
                for part in _tied(time, at[k], ends[k], bound, most):
                    yield [part], None
                    at[k] = part[1]


def _tied(time: Scratch, at: int, end: int, bound: float, most: int) -> Iterator[tuple[int, int]]:
    """The rows of a run, from one on, that have this time."""
    while at < end:
        seen = time.read(at, min(at + most, end))
        count = int(np.searchsorted(seen, bound, side="right"))
        if count:
            yield at, at + count
        at += count
        if count < len(seen):
            return
