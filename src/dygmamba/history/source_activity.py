"""Decayed counts of each source's earlier events: the kernels of its self-exciting activity rate.

A self-exciting rate (`tasks/activity.py`) is a weighted sum of kernels: a constant, the sum of exp(-age / scale) /
scale over the source's earlier events for each scale, and the number of earlier events. All are in events per unit of
time, and only events strictly earlier than the query count.

Legend: e events, p queries, s scales, k = s + 2 kernels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.statistics import compute_median_gap
from dygmamba.history.block_lists import CountLists

NUM_SCALES = 12  # log-spaced from SHORTEST_SCALE median gaps of a node to the length of the training period
SHORTEST_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class SourceActivity:
    """Decayed counts of the events of a stream (or of its training events) by source; tensors are on the CPU."""

    lists: CountLists
    period: float  # unit of time of the constant kernel and of the number of events

    @staticmethod
    def build(
        src: Int64[Tensor, "e"], time: Float64[Tensor, "e"], scales: tuple[float, ...], period: float
    ) -> "SourceActivity":
        """Count events that are in time order."""
        lists = CountLists(np.array(scales))
        lists.append(src.numpy(), time.numpy())
        return SourceActivity(lists, period)

    @staticmethod
    def from_events(store: EventStore, train: Int64[Tensor, "e"]) -> "SourceActivity":
        """Count the training events on scales chosen from their gaps and their period."""
        src, dst, time = store.src[train], store.dst[train], store.time[train]
        period = float(time[-1] - time[0]) or 1.0
        shortest = SHORTEST_SCALE * min(compute_median_gap(torch.cat([src, dst]), time.repeat(2)), period)
        scales = tuple(np.geomspace(shortest, period, NUM_SCALES).tolist())
        return SourceActivity.build(src, time, scales, period)

    def with_events(self, src: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> "SourceActivity":
        """Count other events, in time order, on the same scales."""
        return SourceActivity.build(src, time, self.scales, self.period)

    @property
    def scales(self) -> tuple[float, ...]:
        return tuple(self.lists.scale.tolist())

    def kernels(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p k"]:
        """Return the kernels of each source strictly before each time; an unknown source has the constant alone."""
        counts = self.lists.count_before(src.numpy(), time.numpy()) / self.lists.scale
        number, _ = self.lists.find_number_and_age(src.numpy(), time.numpy())
        constant = np.full(len(number), 1 / self.period)
        return torch.from_numpy(np.column_stack([constant, counts, number / self.period]))

    def integrate_kernels(
        self, time: Float64[Tensor, "e"], start: float, end: float, sources: int
    ) -> Float64[Tensor, "k"]:
        """Return the kernels of all sources integrated from `start` to `end`, in closed form.

        Args:
            time: Times of all events in between.
            start: Begin of the integral.
            end: End of the integral.
            sources: Number of sources.
        """
        left = end - time
        decayed = -torch.expm1(-left[:, None] / torch.from_numpy(self.lists.scale))
        constant = torch.tensor([sources * (end - start) / self.period], dtype=torch.float64)
        return torch.cat([constant, decayed.sum(0), left.sum()[None] / self.period])
