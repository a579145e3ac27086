"""Who has acted before a time: every source's events as fading lists, for the rate at which it acts.

Everything is strictly earlier than the question: `Senders` answers about (source, time) and has no other way to be
asked. A row of `kernels` is what a self-exciting rate is linear in: a constant, exp(-age / scale) / scale summed over
the source's earlier events on each scale, and their number; in events per unit of time.

Legend: e events, p questions, s scales, k = s + 2 kernels.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.statistics import compute_median_gap
from dygmamba.ops.decayed_counts import DecayedCounts, build_decayed_counts, count_before, past_size_and_age

NUM_SCALES = 12  # from a tenth of the typical gap of a node to the length of the training period
SHORTEST_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class SourceActivity:
    """Every event of a stream, or the training events alone, by its source; on the host."""

    lists: DecayedCounts
    period: float  # the time in which the constant, and each event that never fades, count as one event

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        scales: tuple[float, ...],
        period: float,
    ) -> "SourceActivity":
        """The lists of events in time order."""
        return SourceActivity(
            build_decayed_counts(src, time, num_nodes, torch.tensor(scales, dtype=torch.float64)), period
        )

    @staticmethod
    def of(store: EventStore, train: Int64[Tensor, "e"]) -> "SourceActivity":
        """Those of the training events, on scales of their own."""
        src, dst, time = store.src[train], store.dst[train], store.time[train]
        period = float(time[-1] - time[0]) or 1.0
        shortest = SHORTEST_SCALE * min(compute_median_gap(torch.cat([src, dst]), time.repeat(2)), period)
        scales = tuple(np.geomspace(shortest, period, NUM_SCALES).tolist())
        return SourceActivity.build(src, time, store.num_nodes, scales, period)

    def among(self, src: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> "SourceActivity":
        """Other events, in time order, on the same scales."""
        return replace(self, lists=build_decayed_counts(src, time, len(self.lists.start), self.lists.scale))

    def kernels(self, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p k"]:
        """What the rate of each source is a sum of, strictly before each time; a stranger has the constant alone."""
        group = torch.where(src < len(self.lists.start), src, -1)
        counts = count_before(self.lists, group, time) / self.lists.scale
        number, _ = past_size_and_age(self.lists, group, time)
        always = torch.full_like(time, 1 / self.period)
        return torch.cat([always[:, None], counts, number.double()[:, None] / self.period], dim=1)

    def expected(
        self, time: Float64[Tensor, "e"], start: float, end: float, sources: int
    ) -> Float64[Tensor, "k"]:
        """The kernels of all sources integrated from `start` to `end`, given the times of their events in between."""
        left = end - time
        fades = -torch.expm1(-left[:, None] / self.lists.scale)
        always = torch.tensor([sources * (end - start) / self.period], dtype=torch.float64)
        return torch.cat([always, fades.sum(0), left.sum()[None] / self.period])
