"""Visibility: which events a node memory has observed when a query is scored.

A model with memory (heuristics included) observes events in batches. Under `strict` visibility a query sees the batches
whose events are all strictly earlier than the query, so that a score is a function of the pair, the time and strictly
earlier events, whatever else is scored. Under `batch` visibility, as in DyGLib, a query sees every batch before its
own; on streams with ties these can contain events of the query's own time.

Legend: k events, c memory batches, p queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.core.choices import Visibility as Visibility
from dygmamba.data.events.event_store import EventStore

MEMORY_BATCH = 200  # events that a memory observes at once, as in DyGLib


@dataclass(frozen=True, slots=True)
class VisibilityRule:
    """Visibility and the number of events that a memory observes at once.

    Under `batch` visibility tables (counts, decayed counts, walks) lag as well: a query sees them as of the first event
    of its batch.
    """

    visible: Visibility = "strict"
    batch_size: int = MEMORY_BATCH

    @property
    def about(self) -> dict[str, Any]:
        """Fields of a result row."""
        return {"visible": self.visible, "batch": self.batch_size}


@dataclass(frozen=True, slots=True)
class MemorySchedule:
    """Events in time order, cut into the batches that a memory observes; all tensors are on the CPU.

    Attributes:
        events: Events (rows of the stream).
        time: Their times.
        bounds: Begin of each batch, and the end of the last one.
        latest: Time of the last event of each batch; infinity if the last batch is not full. Such a batch is visible to
            no query: otherwise a score would depend on whether the stream goes on.
    """

    events: Int64[Tensor, "k"]
    time: Float64[Tensor, "k"]
    bounds: Int64[Tensor, "c1"]
    latest: Float64[Tensor, "c"]

    @staticmethod
    def from_periods(
        store: EventStore, periods: Sequence[Int64[Tensor, "_"]], size: int = MEMORY_BATCH
    ) -> "MemorySchedule":
        """Cut consecutive periods into batches of `size`, each from its own begin; its last batch may be shorter."""
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

    @staticmethod
    def from_full_batches(store: EventStore, size: int = MEMORY_BATCH) -> "MemorySchedule":
        """Cut all events into full batches; those behind the last one belong to no batch yet."""
        bounds = torch.arange(0, len(store) + 1, size)
        return MemorySchedule(torch.arange(len(store)), store.time, bounds, store.time[bounds[1:] - 1])

    def count_in_earlier_batches(self, time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Count the events of the batches that are strictly earlier than each time."""
        return self.bounds[torch.searchsorted(self.latest, time)]

    def count_before_batch(self, position: Int64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Count the events before the batch of the event at each position."""
        return self.bounds[torch.searchsorted(self.bounds, position, side="right") - 1]

    def count_visible(
        self, visible: Visibility, position: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Int64[Tensor, "p"]:
        """Count the events that each query sees; it belongs to the event at `position` and has this `time`."""
        return (
            self.count_before_batch(position) if visible == "batch" else self.count_in_earlier_batches(time)
        )

    def table_times(
        self, visible: Visibility, position: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float64[Tensor, "p"] | None:
        """Return the times before which tables include events, for queries of the events at `position`.

        Under `batch` visibility this is the time of the batch's first event, so that tables see nothing of the batch.
        Queries after the last event keep their own time. None means every query's own time.
        """
        if visible != "batch":
            return None
        first = self.count_before_batch(position)
        begin = torch.cat([self.time, self.time.new_zeros(1)])[first]
        return torch.where(first < len(self.time), begin, time)

    def count_earlier(self, time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Count the events strictly earlier than each time, whatever their batch."""
        return torch.searchsorted(self.time, time)

    def visible_batches(self, visible: Visibility) -> list[int]:
        """Return, for each batch, how many batches may be observed before all its queries are scored."""
        if visible == "batch":
            return list(range(len(self.latest)))
        first = self.time[self.bounds[:-1]]
        return torch.searchsorted(self.latest, first).tolist()

    def batches_between(self, start: int, stop: int) -> list[Int64[Tensor, "_"]]:
        """Return the events from `start` to `stop` in their batches; the first and the last may be partial."""
        inside = self.bounds[(self.bounds > start) & (self.bounds < stop)].tolist()
        bounds = [start, *inside, stop]
        return [self.events[a:b] for a, b in pairwise(bounds) if b > a]
