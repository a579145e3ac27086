"""Look up the recent neighbors of a node: its entries strictly earlier than the query time.

An `Adjacency` lists each node's entries, oldest first. `find_past_end` finds where each query's past ends,
`last_k_before` returns the k most recent entries, `find_weight_quantile` the entries at given quantiles of a sampling
weight. The CPU runs Numba kernels; a GPU has one for `last_k_before`, and runs the reference otherwise.

Legend: n nodes, m adjacency entries, e events, q queries, k entries per query.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.recent_neighbors import reference

RECENT_NEIGHBORS = Dispatch(reference, cpu=("cpu",), cuda=("triton",))

RecentEntries = tuple[Int32[Tensor, "q k"], Int32[Tensor, "q k"], Float64[Tensor, "q k"], Int64[Tensor, "q"]]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Entries sorted by (node, event); `key` = node * (e + 1) + number of events strictly earlier.

    With that key, "before time t" is one binary search over integers, and events at the same time never see each
    other. Neighbors, events and times are columns in the same order, so that reading a past is one contiguous copy.
    """

    start: Int64[Tensor, "n1"]
    key: Int64[Tensor, "m"]
    neighbor: Int32[Tensor, "m"]
    event: Int32[Tensor, "m"]
    time: Float64[Tensor, "m"]
    event_time: Float64[Tensor, "e"]

    @property
    def stride(self) -> int:
        """Difference between the keys of consecutive nodes."""
        return self.event_time.shape[0] + 1

    def to(self, device: torch.device | str) -> "Adjacency":
        columns = (self.start, self.key, self.neighbor, self.event, self.time, self.event_time)
        return Adjacency(*(column.to(device) for column in columns))


@dataclass(frozen=True, slots=True)
class SamplingWeights:
    """Sampling weights: for each entry the cumulated weight of its node's entries up to it.

    `halvings` is the number of bisection steps that suffice for the longest list.
    """

    running: Float64[Tensor, "m"]
    halvings: int


def build_adjacency(
    src: Int64[Tensor, "s"],
    dst: Int64[Tensor, "s"],
    event: Int64[Tensor, "s"],
    event_time: Float64[Tensor, "e"],
    num_nodes: int,
) -> Adjacency:
    """Build the undirected adjacency of the given events (ids ascending); a self-loop is listed twice."""
    if max(num_nodes, event_time.shape[0]) >= 2**31:
        raise EventError(
            f"{num_nodes} nodes and {event_time.shape[0]} events do not fit into 32-bit entries; split the stream",
            code="stream-too-large",
        )
    build = RECENT_NEIGHBORS.pick(src.device.type).build_adjacency
    start, key, neighbor, entry, time = build(src, dst, event, event_time, num_nodes)
    return Adjacency(start, key, neighbor, entry, time, event_time)


def find_past_end(
    entries: Adjacency, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Int64[Tensor, "q"]:
    """Return the exclusive end of each query's past in `entries`."""
    return reference.find_past_end(entries.key, entries.event_time, node, time)


def last_k_before(
    entries: Adjacency, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int
) -> RecentEntries:
    """Return neighbors, events, times and count of the k last entries before each query, oldest first.

    Valid entries come first, the rest is 0. A query of node -1 has no past.
    """
    return RECENT_NEIGHBORS.pick(node.device.type).last_k_before(entries, node, time, k)


def time_aware_weights(entries: Adjacency, scale: float) -> SamplingWeights:
    """Return the weights exp(r_i), r_i = e_i / (e_1 + ... + e_i), e = exp(scale * time), cumulated per node.

    This is DyGLib's softmax over these ratios. An entry's ratio is 1 / c_i with the decayed count c_i of its node's
    entries up to itself. The sums always run on the CPU, one entry after the other: a GPU would round differently.
    """
    start, time = entries.start.cpu(), entries.time.cpu()
    running = RECENT_NEIGHBORS.pick("cpu").cumulate_weights(start, time, scale).to(entries.time.device)
    return SamplingWeights(running, int(start.diff().max()).bit_length() if len(start) > 1 else 0)


def find_weight_quantile(
    weights: SamplingWeights,
    begin: Int64[Tensor, "q"],
    count: Int64[Tensor, "q"],
    share: Float64[Tensor, "q k"],
) -> Int64[Tensor, "q k"]:
    """Return the entry at which the cumulated weight of each past first exceeds the given share (< 1) of its total.

    0 for a query without a past.
    """
    if weights.running.shape[0] == 0:
        return torch.zeros_like(share, dtype=torch.int64)
    kernels = RECENT_NEIGHBORS.pick(share.device.type)
    return kernels.find_weight_quantile(weights.running, weights.halvings, begin, count, share)
