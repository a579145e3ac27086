"""Fading counts that do not fit into memory: made in one pass over an index, some nodes at a time, as mapped pages.

An index lists a node's events together, so all counts of a node, and of its pairs, are made where it stands; the lists
of a run of nodes are written behind those of the nodes before. They are in the order of their keys, which is how they
are found. The files have no names and are gone with the process.

Legend: g groups, m entries, s scales.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.pages import release
from dygmamba.data.scratch import Scratch
from dygmamba.errors import EventError
from dygmamba.ops.fading import Fading, fading
from dygmamba.ops.recent import Adjacency
from dygmamba.ops.recent.passes import passes
from dygmamba.room import BUDGET

LARGE = BUDGET  # bytes of lists that are held in memory
HELD = 16  # numbers of 64 bits per entry and scale that are in memory at a time, at most


def are_large(events: int, scales: int) -> bool:
    """Whether the lists of so many events, five kinds of them and one of both ends, are better kept on the disk."""
    return 6 * 8 * (1 + scales) * events > LARGE


class KeptGroups:
    """The lists of one kind, asked as `counts.Grouped` is; they do not grow."""

    def __init__(self, key: Int64[Tensor, "g"], lists: Fading) -> None:
        self._key, self.lists = key, lists

    def append(self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Later events are a new stream."""
        raise EventError("counts that are kept on the disk take no more events; build them anew")

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The group of each key, -1 where it never occurred; a key may be negative for nobody's."""
        if not len(self._key):
            return torch.full_like(key, -1)
        place = torch.searchsorted(self._key, key.contiguous()).clamp(max=len(self._key) - 1)
        return torch.where(self._key[place] == key, place, -1)


class _Growing:
    """The lists of one kind while they are made."""

    def __init__(self, folder: Path, scale: Float64[Tensor, "s"]) -> None:
        self._scale = scale
        self._key, self._start, self._size = (Scratch(folder, np.int64) for _ in range(3))
        self._time, self._running = Scratch(folder, np.float64), Scratch(folder, np.float64, (len(scale),))

    def add(self, key: np.ndarray, time: np.ndarray) -> None:
        """Entries whose keys are above all that were added, in time order for each key."""
        if not len(key):
            return
        known, group = np.unique(key, return_inverse=True)
        made = fading(torch.from_numpy(group), torch.from_numpy(time), len(known), self._scale)
        self._key.append(known)
        self._start.append(made.start.numpy() + len(self._time))
        self._size.append(made.size.numpy())
        self._time.append(made.time.numpy())
        self._running.append(made.running.numpy())

    def finish(self) -> KeptGroups:
        """The lists as mapped pages."""
        size = self._size.mapped()
        columns = (self._start.mapped(), size, size, self._time.mapped(), self._running.mapped())
        return KeptGroups(self._key.mapped(), Fading(*columns, self._scale, used=len(self._time)))


def kept_groups(
    entries: Adjacency, src: Int64[Tensor, "e"], scale: Float64[Tensor, "s"], folder: Path
) -> dict[str, KeptGroups]:
    """The lists of every kind that `counts` knows, of all events that are entries; `src` are the stream's sources."""
    made: dict[str, _Growing] = {}
    most = max(1, BUDGET // (8 * HELD * (4 + len(scale))))
    for low, high in passes(entries.start.numpy(), most):
        for kind, key, time in _listed(entries, src, low, high):
            if kind not in made:
                made[kind] = _Growing(folder, scale)
            made[kind].add(key, time)
    return {kind: lists.finish() for kind, lists in made.items()}


def _listed(
    entries: Adjacency, src: Tensor, low: int, high: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Keys and times of every kind of list that a run of nodes has; a self-loop, listed twice, is one event."""
    start, nodes = entries.start.numpy(), len(entries.start) - 1
    rows = slice(int(start[low]), int(start[high]))
    node = np.repeat(np.arange(low, high), np.diff(start[low : high + 1]))
    other, event, time = (column[rows].numpy() for column in (entries.neighbor, entries.event, entries.time))
    other, loop = other.astype(np.int64), other == node
    once = np.ones(len(node), bool)
    once[1:] = ~(loop[1:] & loop[:-1] & (event[1:] == event[:-1]) & (node[1:] == node[:-1]))
    sends = src.numpy()[event] == node
    pair = node * nodes + other
    for kind, chosen, key in (
        ("node", once, node),
        ("pair", once & (node <= other), pair),
        ("sent", once & sends, node),
        ("received", once & (~sends | loop), node),
        ("way", once & sends, pair),
    ):
        yield kind, key[chosen], time[chosen]
    for column in (entries.neighbor, entries.event, entries.time):
        release(column[rows])
    release(src)
