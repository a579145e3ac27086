"""Look up the recent neighbors of a node: its entries strictly earlier than the query time.

`find_past` finds the past of each query in the entries of its node, `last_k_before` returns the k most recent ones,
`find_weight_quantile` the entries at given quantiles of a sampling weight. The CPU runs Numba kernels, a GPU Triton
kernels for the first two.

Legend: n nodes, m places of entries, q queries, k entries per query.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.recent_neighbors import reference

RECENT_NEIGHBORS = Dispatch(reference, cpu=("cpu",), cuda=("triton",))

RecentEntries = tuple[Int32[Tensor, "q k"], Int32[Tensor, "q k"], Float64[Tensor, "q k"], Int64[Tensor, "q"]]


@dataclass(frozen=True, slots=True)
class NeighborEntries:
    """Entries of all nodes: node i has `size[i]` from `start[i]` on, oldest first; places between nodes may be unused.

    Neighbors, events and times are columns in the same order, so that reading a past is one contiguous copy. Events at
    the same time never see each other, because a past ends before the first entry that is not strictly earlier.
    """

    start: Int64[Tensor, "n"]
    size: Int64[Tensor, "n"]
    neighbor: Int32[Tensor, "m"]
    event: Int32[Tensor, "m"]
    time: Float64[Tensor, "m"]

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return self.start, self.size, self.neighbor, self.event, self.time

    def to(self, device: torch.device | str) -> "NeighborEntries":
        return NeighborEntries(*(column.to(device) for column in self.columns))


def find_past(
    entries: NeighborEntries, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> tuple[Int64[Tensor, "q"], Int64[Tensor, "q"]]:
    """Return the first entry and the number of entries of each query's past; node -1 has no past."""
    return RECENT_NEIGHBORS.pick(node.device.type).find_past(entries, node, time)


def last_k_before(
    entries: NeighborEntries, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int
) -> RecentEntries:
    """Return neighbors, events, times and count of the k last entries before each query, oldest first.

    Valid entries come first, the rest is 0. A query of node -1 has no past.
    """
    return RECENT_NEIGHBORS.pick(node.device.type).last_k_before(entries, node, time, k)


def find_weight_quantile(
    running: Float64[Tensor, "m"],
    begin: Int64[Tensor, "q"],
    count: Int64[Tensor, "q"],
    share: Float64[Tensor, "q k"],
) -> Int64[Tensor, "q k"]:
    """Return the entry at which the cumulated weight of each past first exceeds the given share (< 1) of its total.

    0 for a query without a past.
    """
    if running.shape[0] == 0:
        return torch.zeros_like(share, dtype=torch.int64)
    return RECENT_NEIGHBORS.pick(share.device.type).find_weight_quantile(running, begin, count, share)
