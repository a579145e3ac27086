"""Per query (node, time), the node's entries strictly earlier than that time.

An `Adjacency` lists each node's entries oldest first. `before` finds where each query's past ends;
`last_k_before` returns the k most recent entries, `place_of_share` those at given shares of the past's weight. On
the CPU a Numba kernel, on a GPU the reference.

Legend: n nodes, m adjacency entries, e events, q queries, k entries asked for.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.recent_neighbors import reference

RECENT_NEIGHBORS = Dispatch(__name__, {"cpu": ("cpu",)})

RecentEntries = tuple[Int32[Tensor, "q k"], Int32[Tensor, "q k"], Float64[Tensor, "q k"], Int64[Tensor, "q"]]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Entries sorted by (node, event); `key` = node * (e + 1) + number of events strictly earlier.

    With that key, "before time t" is one binary search over integers, and ties never see each other.
    Neighbours, events and times lie beside it so that reading a past is one contiguous copy.
    """

    start: Int64[Tensor, "n1"]
    key: Int64[Tensor, "m"]
    neighbor: Int32[Tensor, "m"]
    event: Int32[Tensor, "m"]
    time: Float64[Tensor, "m"]
    event_time: Float64[Tensor, "e"]

    @property
    def stride(self) -> int:
        """How far apart the keys of consecutive nodes are."""
        return self.event_time.shape[0] + 1

    def to(self, device: torch.device | str) -> "Adjacency":
        """The same entries on another device."""
        columns = (self.start, self.key, self.neighbor, self.event, self.time, self.event_time)
        return Adjacency(*(column.to(device) for column in columns))


@dataclass(frozen=True, slots=True)
class SamplingWeights:
    """For each entry the weight of its node's entries up to it; `halvings` find a place in the longest list."""

    running: Float64[Tensor, "m"]
    halvings: int


def build_adjacency(
    src: Int64[Tensor, "s"],
    dst: Int64[Tensor, "s"],
    event: Int64[Tensor, "s"],
    event_time: Float64[Tensor, "e"],
    num_nodes: int,
) -> Adjacency:
    """The undirected adjacency of the given events (ids ascending); a self-loop is listed twice."""
    if max(num_nodes, event_time.shape[0]) >= 2**31:
        raise EventError(
            f"{num_nodes} nodes and {event_time.shape[0]} events do not fit 32-bit entries; split the stream"
        )
    build = RECENT_NEIGHBORS[src.device.type].adjacency
    start, key, neighbor, entry, time = build(src, dst, event, event_time, num_nodes)
    return Adjacency(start, key, neighbor, entry, time, event_time)


def find_past_end(
    entries: Adjacency, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Int64[Tensor, "q"]:
    """For each query the end (exclusive) of its past inside `entries`."""
    return reference.before(entries.key, entries.event_time, node, time)


def last_k_before(
    entries: Adjacency, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int
) -> RecentEntries:
    """Neighbours, events, times and count of the k last entries before each query, oldest first.

    Valid entries come first; the rest is 0. A query of node -1 has no past.
    """
    return RECENT_NEIGHBORS[node.device.type].last_k_before(entries, node, time, k)


def time_aware_weights(entries: Adjacency, scale: float) -> SamplingWeights:
    """The weights exp(r_i), r_i = e_i / (e_1 + ... + e_i), e = exp(scale * time), summed up node by node.

    DyGLib's softmax over these ratios. An entry's ratio is 1 / c_i with the decayed count c_i of its node's entries
    up to itself. Always summed on the CPU, one entry after the other: a GPU would round otherwise.
    """
    start, time = entries.start.cpu(), entries.time.cpu()
    running = RECENT_NEIGHBORS["cpu"].running_weight(start, time, scale).to(entries.time.device)
    return SamplingWeights(running, int(start.diff().max()).bit_length() if len(start) > 1 else 0)


def find_weight_quantile(
    weights: SamplingWeights,
    begin: Int64[Tensor, "q"],
    count: Int64[Tensor, "q"],
    share: Float64[Tensor, "q k"],
) -> Int64[Tensor, "q k"]:
    """The entry at which the running weight of each past first exceeds this share of the past's, which is < 1.

    0 for a query without a past.
    """
    if weights.running.shape[0] == 0:
        return torch.zeros_like(share, dtype=torch.int64)
    kernels = RECENT_NEIGHBORS[share.device.type]
    return kernels.place_of_share(weights.running, weights.halvings, begin, count, share)
