"""When a memory is told of what: in cells of consecutive events, each at once, and never too early.

A model with memory, a heuristic among them, takes in events cell by cell. A question sees the cells whose every event
is strictly earlier than its own time (`strict`), so its score is a function of the pair, the time and strictly earlier
events, whatever is asked beside it. The published way (`batch`) tells of every cell before the question's own: on
streams with ties some of its events are of the question's own time.

Legend: k events, c cells, p questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore

Visibility = Literal["strict", "batch"]
MEMORY_BATCH = 200  # events that a memory takes in at once, as published


@dataclass(frozen=True, slots=True)
class VisibilityRule:
    """What a memory may have been told of when it is asked, and how many events it takes in at once.

    By `batch`, tables of the past (counts, fades, walks) lag as well: a question is answered as of the first event of
    its cell.
    """

    visible: Visibility = "strict"
    cell: int = MEMORY_BATCH

    @property
    def about(self) -> dict[str, Any]:
        """What a result row says of it."""
        return {"visible": self.visible, "batch": self.cell}


@dataclass(frozen=True, slots=True)
class MemorySchedule:
    """Events in time order, where their cells begin and end, and the time of each cell's last event; on the host.

    A last cell that is not full has no last event yet: whether the stream goes on is no question's to see.
    """

    events: Int64[Tensor, "k"]
    time: Float64[Tensor, "k"]
    bounds: Int64[Tensor, "c1"]
    latest: Float64[Tensor, "c"]

    @staticmethod
    def of(
        store: EventStore, periods: Sequence[Int64[Tensor, "_"]], size: int = MEMORY_BATCH
    ) -> "MemorySchedule":
        """Consecutive periods, each cut into cells of `size` from its own beginning, the last one perhaps shorter."""
        events = torch.cat([torch.zeros(0, dtype=torch.int64), *periods])
        ends, start = [0], 0
        for period in periods:
            ends += [start + min(begin + size, len(period)) for begin in range(0, len(period), size)]
            start += len(period)
        bounds, time = torch.tensor(ends), store.time[events]
        latest = time[bounds[1:] - 1]
        if periods and len(periods[-1]) % size:
            latest[-1] = inf
        return MemorySchedule(events, time, bounds, latest)

    def earlier_cells(self, time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """How many events each question sees: those of whole cells strictly earlier than its time."""
        return self.bounds[torch.searchsorted(self.latest, time)]

    def cells_before(self, place: Int64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """How many events come before the cell of each of these places among the events."""
        return self.bounds[torch.searchsorted(self.bounds, place, side="right") - 1]

    def seen(
        self, visible: Visibility, place: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Int64[Tensor, "p"]:
        """How many events a question beside the event at `place`, asked at `time`, sees by a rule."""
        return self.cells_before(place) if visible == "batch" else self.earlier_cells(time)

    def known(
        self, visible: Visibility, place: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float64[Tensor, "p"] | None:
        """When tables of the past are asked beside the event at `place`: at its cell's first event; None: at its own.

        So tables that lag know of nothing of the cell, and of nothing of their own time either. Who asks after the last
        event asks at its own time.
        """
        if visible != "batch":
            return None
        first = self.cells_before(place)
        begun = torch.cat([self.time, self.time.new_zeros(1)])[first]
        return torch.where(first < len(self.time), begun, time)

    def earlier(self, time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """How many events are strictly earlier than each time; the last cell among them may be cut short."""
        return torch.searchsorted(self.time, time)

    def steps(self, visible: Visibility) -> list[int]:
        """For each cell, how many cells may be told of before it is asked about as a whole."""
        if visible == "batch":
            return list(range(len(self.latest)))
        first = self.time[self.bounds[:-1]]
        return torch.searchsorted(self.latest, first).tolist()

    def between(self, start: int, stop: int) -> list[Int64[Tensor, "_"]]:
        """The events from `start` to `stop` in their cells, whole or cut at the ends."""
        inside = self.bounds[(self.bounds > start) & (self.bounds < stop)].tolist()
        places = [start, *inside, stop]
        return [self.events[a:b] for a, b in pairwise(places) if b > a]
