"""Look up the recent neighbors of a node: its entries strictly earlier than the query time.

`find_past` finds the past of each query in the entries of its node, `last_k_before` returns the k most recent ones,
`find_weight_quantile` the entries at given quantiles of a sampling weight. The functions here are the definitions, in
vectorised torch; the CPU runs Numba kernels, a GPU Triton kernels for the first two.

Legend: n nodes, m places of entries, q queries, k entries per query.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.ops.dispatch import dispatched

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

    @property
    def device(self) -> torch.device:
        return self.start.device

    def to(self, device: torch.device | str) -> "NeighborEntries":
        return NeighborEntries(*(column.to(device) for column in self.columns))


@dispatched(cpu=("cpu:find_past",), cuda=("triton:find_past",))
def find_past(
    entries: NeighborEntries, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> tuple[Int64[Tensor, "q"], Int64[Tensor, "q"]]:
    """Return the first entry and the number of entries of each query's past (decision 003); node -1 has no past."""
    own, most = node.clamp(min=0), entries.time.shape[0]
    begin = entries.start[own]
    low, high = begin, begin + entries.size[own] * (node >= 0)
    for _ in range(most.bit_length()):  # halvings that suffice for any list
        middle = (low + high) >> 1
        is_earlier = (low < high) & (entries.time[middle.clamp(max=most - 1)] < time)
        low, high = torch.where(is_earlier, middle + 1, low), torch.where(is_earlier, high, middle)
    return begin, low - begin


@dispatched(cpu=("cpu:last_k_before",), cuda=("triton:last_k_before",))
def last_k_before(
    entries: NeighborEntries, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int
) -> RecentEntries:
    """Return neighbors, events, times and count of the k last entries before each query, oldest first.

    Valid entries come first, the rest is 0. A query of node -1 has no past.
    """
    begin, count = find_past.reference(entries, node, time)
    length = count.clamp(max=k)  # [q]
    offset = torch.arange(k, device=node.device)
    valid = offset < length[:, None]  # [q k]
    if entries.time.shape[0] == 0:
        empty = torch.zeros_like(valid, dtype=torch.int32)
        return empty, empty, empty.double(), length
    position = torch.where(valid, (begin + count - length)[:, None] + offset, 0)
    node, event, time = (column[position] * valid for column in entries.columns[2:])
    return node, event, time, length


@dispatched(cpu=("cpu:find_weight_quantile",))
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
    last = (begin + count - 1).clamp(min=0)
    target = share * running[last][:, None]  # [q k], below the whole weight also when rounded, as share < 1
    low, high = (end[:, None].expand_as(share) for end in (begin.minimum(last), last))
    for _ in range(running.shape[0].bit_length()):
        middle = (low + high) >> 1
        beyond = (low < high) & (running[middle] <= target)
        low, high = torch.where(beyond, middle + 1, low), torch.where(beyond, high, middle)
    return low * (count > 0)[:, None]
