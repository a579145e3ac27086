"""Look-ups into the past: recent, uniform or time-aware neighbours, over any number of hops.

Legend: q queries, k entries per query, m adjacency entries.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events import EventStore, FeatureTable
from dygmamba.ops.recent import Adjacency, adjacency, before, decayed_count, last_k_before
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView


@dataclass(frozen=True, slots=True)
class NeighborIndex:
    """All events of a stream (or some of them) by node, each listed under both its ends."""

    entries: Adjacency
    _cumulative: dict[float, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def build(store: EventStore, events: Int64[Tensor, "s"] | None = None) -> "NeighborIndex":
        """The index of these events (default: all), on the store's device."""
        if events is None:
            events = torch.arange(len(store), device=store.time.device)
            return NeighborIndex(adjacency(store.src, store.dst, events, store.time, store.num_nodes))
        src, dst = store.src[events], store.dst[events]
        return NeighborIndex(adjacency(src, dst, events, store.time, store.num_nodes))

    def to(self, device: torch.device | str) -> "NeighborIndex":
        """The same index on another device."""
        return NeighborIndex(self.entries.to(device))

    def recent(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int) -> NeighborSequence:
        """The k most recent entries strictly before each query."""
        return NeighborSequence(node, time, *last_k_before(self.entries, node, time, k))

    def gather(
        self,
        request: NeighborRequest,
        node: Int64[Tensor, "q"],
        time: Float64[Tensor, "q"],
        rng: torch.Generator | None = None,
    ) -> tuple[NeighborSequence, ...]:
        """One sequence per hop; hop h + 1 asks about each entry of hop h at that entry's own time."""
        hops: list[NeighborSequence] = []
        for k in request.fanout:
            if hops:
                node = torch.where(hops[-1].mask, hops[-1].node, -1).flatten().long()
                time = hops[-1].time.flatten()
            hops.append(STRATEGIES[request.strategy](self, node, time, k, request.scale, rng))
        return tuple(hops)

    def past(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]) -> tuple[Tensor, Tensor]:
        """First entry and number of entries of each query's past; a query of node -1 has none."""
        begin = self.entries.start[node.clamp(min=0)]
        return begin, (before(self.entries, node, time) - begin) * (node >= 0)

    def cumulative(self, scale: float) -> Float64[Tensor, "m1"]:
        """Running sum of the time-aware weights exp(r_i), r_i = e_i / (e_1 + ... + e_i), e = exp(scale * time).

        DyGLib's softmax over these ratios; a ratio depends only on earlier entries, so the weights are causal.
        """
        if scale not in self._cumulative:
            weight = torch.exp(1 / decayed_count(self.entries, scale))
            self._cumulative[scale] = torch.cat([weight.new_zeros(1), weight.cumsum(0)])
        return self._cumulative[scale]


def _recent(
    index: NeighborIndex, node: Tensor, time: Tensor, k: int, scale: float, rng: torch.Generator | None
) -> NeighborSequence:
    return index.recent(node, time, k)


def _uniform(
    index: NeighborIndex, node: Tensor, time: Tensor, k: int, scale: float, rng: torch.Generator | None
) -> NeighborSequence:
    begin, count = index.past(node, time)
    position = begin[:, None] + (_draws(node, k, rng) * count[:, None]).long()
    return _at(index.entries, node, time, position, count)


def _time_aware(
    index: NeighborIndex, node: Tensor, time: Tensor, k: int, scale: float, rng: torch.Generator | None
) -> NeighborSequence:
    begin, count = index.past(node, time)
    cumulative = index.cumulative(scale)
    low, high = cumulative[begin], cumulative[begin + count]
    target = low[:, None] + _draws(node, k, rng) * (high - low)[:, None]
    position = torch.searchsorted(cumulative, target, side="right") - 1
    last = (begin + count - 1).clamp(min=0)[:, None]
    return _at(index.entries, node, time, position.clamp(begin[:, None], last), count)


STRATEGIES = {"recent": _recent, "uniform": _uniform, "time_aware": _time_aware}


def _draws(node: Tensor, k: int, rng: torch.Generator | None) -> Tensor:
    return torch.rand(len(node), k, generator=rng, dtype=torch.float64, device=node.device)


def _at(entries: Adjacency, node: Tensor, time: Tensor, position: Tensor, count: Tensor) -> NeighborSequence:
    """Positions drawn with replacement, in time order; a query with any past gets a full sequence."""
    k = position.shape[1]
    some = (count[:, None] > 0).expand(-1, k)  # [q k]
    if entries.key.shape[0] == 0:
        empty = torch.zeros_like(position, dtype=torch.int32)
        return NeighborSequence(node, time, empty, empty, empty.double(), torch.zeros_like(node))
    position = torch.where(some, position, 0).sort(dim=1).values
    return NeighborSequence(
        node,
        time,
        entries.neighbor[position] * some,
        entries.event[position] * some,
        entries.time[position] * some,
        k * (count > 0).long(),
    )


def gather_view(
    index: NeighborIndex,
    features: FeatureTable,
    pairs: PairBatch,
    requests: tuple[NeighborRequest, ...],
    rng: torch.Generator | None = None,
) -> PairView:
    """The view of a batch: every row of the batch looked up once per request."""
    neighbors = tuple(index.gather(request, pairs.node, pairs.when, rng) for request in requests)
    return PairView(pairs, neighbors, features)
