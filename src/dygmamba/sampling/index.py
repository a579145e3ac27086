"""Look-ups into the past: recent, uniform or time-aware neighbours, over any number of hops.

Legend: q queries, k entries per query, m adjacency entries.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.ops.recent_neighbors import (
    Adjacency,
    SamplingWeights,
    build_adjacency,
    find_past_end,
    find_weight_quantile,
    last_k_before,
    time_aware_weights,
)
from dygmamba.sampling.counts import CountRequest, EventCounts, PairNeighbors
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCounts
from dygmamba.sampling.disk_index import (
    IndexedEvents,
    build_disk_counts,
    load_disk_entries,
    needs_disk_counts,
    needs_disk_index,
)
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.sampling.walks import TemporalWalks, WalkRequest

MAX_CACHED_NUMBERS = 1 << 24  # of answers to count requests, in all: 64 MiB


@dataclass(frozen=True, slots=True)
class NeighborIndex:
    """All events of a stream (or some of them) by node, each listed under both its ends."""

    entries: Adjacency
    edges: IndexedEvents
    source: MappedFile | None = field(default=None, repr=False, compare=False)  # whose pages the entries are
    _answers: dict[bytes, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _counts: dict[tuple[float, ...], EventCounts] = field(default_factory=dict, repr=False, compare=False)
    _weights: dict[float, SamplingWeights] = field(default_factory=dict, repr=False, compare=False)
    _tables: dict[WalkRequest | DecayedCountRequest, TemporalWalks | DecayedCounts] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def build(store: EventStore, events: Int64[Tensor, "s"] | None = None) -> "NeighborIndex":
        """The index of these events (default: all), on the store's device; that of many lies on the disk."""
        host = None if events is None else events.cpu()
        edges = IndexedEvents((store.src.cpu(), store.dst.cpu(), store.time.cpu()), store.num_nodes, host)
        if needs_disk_index(len(edges)) and store.time.device.type == "cpu":
            entries, source = load_disk_entries(store, edges)
            return NeighborIndex(entries, edges, source)
        if events is None:
            events = torch.arange(len(store), device=store.time.device)
            src, dst = store.src, store.dst
        else:
            src, dst = store.src[events], store.dst[events]
        return NeighborIndex(build_adjacency(src, dst, events, store.time, store.num_nodes), edges)

    def to(self, device: torch.device | str) -> "NeighborIndex":
        """The same index on another device."""
        entries = self.entries.to(device)
        source = self.source if entries.key.data_ptr() == self.entries.key.data_ptr() else None
        return NeighborIndex(entries, self.edges, source, _counts=self._counts)

    def check_unchanged(self) -> "NeighborIndex":
        """The index itself, unless the file that its entries are mapped from was written to: then a FileError."""
        if self.source is not None:
            self.source.check()
        return self

    def recent(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int) -> NeighborSequence:
        """The k most recent entries strictly before each query."""
        return NeighborSequence(node, time, *last_k_before(self.check_unchanged().entries, node, time, k))

    def gather(
        self,
        request: NeighborRequest,
        node: Int64[Tensor, "q"],
        time: Float64[Tensor, "q"],
        draws: Draws | None = None,
    ) -> tuple[NeighborSequence, ...]:
        """One sequence per hop; hop h + 1 asks about each entry of hop h at that entry's own time.

        A hop's draws belong to the query it started from: one run of slots, k for each entry of the hop before.
        """
        pick, root, slots = STRATEGIES[request.strategy], (node, time), 1
        hops: list[NeighborSequence] = []
        for hop, k in enumerate(request.fanout):
            if hops:
                node = torch.where(hops[-1].mask, hops[-1].node, -1).flatten().long()
                time = hops[-1].time.flatten()
            slots *= k
            if pick is None:
                hops.append(self.recent(node, time, k))
                continue
            if draws is None:
                raise ConfigError(f"a look-up by '{request.strategy}' draws neighbours; give it `draws`")
            begin, count = self.past(node, time)
            chance = draws.uniform(*root, hop, slots).view(len(node), k)
            position = pick(self, begin, count, chance, request.scale)
            hops.append(_sequences_at(self.entries, node, time, position, count))
        return tuple(hops)

    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """The events as fading counts, made once for these scales and kept on the host, of many on its disk."""
        if scales not in self._counts:
            self._counts[scales] = self._counted(scales)
        return self._counts[scales]

    def _counted(self, scales: tuple[float, ...]) -> EventCounts:
        edges = self.edges
        on_disk = self.source is not None or needs_disk_counts(len(edges), len(scales))
        if not on_disk or self.entries.key.device.type != "cpu":
            return EventCounts.build(edges.src, edges.dst, edges.time, edges.num_nodes, scales)
        folder = Path(gettempdir()) if self.source is None else self.source.path.parent
        scale = torch.tensor(scales, dtype=torch.float64)
        groups = build_disk_counts(self.entries, edges.columns[0], scale, folder)
        return EventCounts(edges.num_nodes, scale, groups)

    def numbers(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """What a request asks about each pair, strictly before its time.

        Answers are kept while they are few, as an index never changes: validation asks the same after every epoch.
        """
        key = _query_digest(request, pairs)
        if key not in self._answers:
            found = self._numbers(request, pairs)
            if sum(map(torch.numel, self._answers.values())) + found.numel() > MAX_CACHED_NUMBERS:
                return found
            self._answers[key] = found
        return self._answers[key]

    def _numbers(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        recent = self.recent(pairs.node, pairs.when, request.neighbors)
        age = ((recent.query_time[:, None] - recent.time) * recent.mask).cpu()
        node = torch.where(recent.mask, recent.node.long(), -1).cpu()
        rows = pairs.src_row.cpu(), pairs.dst_row.cpu()
        near = PairNeighbors(node, age, pairs.when.cpu(), rows)
        asked = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
        return self.counts(request.scales).numbers(*asked, near).to(pairs.node.device)

    def walks(self, request: WalkRequest) -> TemporalWalks:
        """The events as sums over walks, on the index's device."""
        return self._table(request, TemporalWalks)

    def fades(self, request: DecayedCountRequest) -> DecayedCounts:
        """The events as fading counts of any nodes, on the index's device."""
        return self._table(request, DecayedCounts)

    def _table(self, request: Any, kind: Any) -> Any:
        """Made once for a request."""
        if request not in self._tables:
            edges = self.edges
            made = kind.build(edges.src, edges.dst, edges.time, edges.num_nodes, request)
            self._tables[request] = made.to(self.entries.key.device)
        return self._tables[request]

    def past(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]) -> tuple[Tensor, Tensor]:
        """First entry and number of entries of each query's past; a query of node -1 has none."""
        begin = self.check_unchanged().entries.start[node.clamp(min=0)]
        return begin, (find_past_end(self.entries, node, time) - begin) * (node >= 0)

    def weights(self, scale: float) -> SamplingWeights:
        """The weights of the time-aware strategy, summed once per scale; a node's depend on no other and no later."""
        if scale not in self._weights:
            self._weights[scale] = time_aware_weights(self.entries, scale)
        return self._weights[scale]


def _query_digest(request: CountRequest, pairs: PairBatch) -> bytes:
    """What is asked, in 32 bytes."""
    sha = hashlib.sha256(repr(request).encode())
    for column in (pairs.node, pairs.when, pairs.src_row, pairs.dst_row):
        sha.update(len(column).to_bytes(8, "little") + column.cpu().numpy().tobytes())
    return sha.digest()


def _pick_uniform(index: NeighborIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return begin[:, None] + (chance * count[:, None]).long()


def _pick_time_aware(
    index: NeighborIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float
) -> Tensor:
    return find_weight_quantile(index.weights(scale), begin, count, chance)


# The entry that each chance in [0, 1) picks out of a past of `count` entries from `begin` on; None: the last ones.
STRATEGIES: dict[str, Callable[[NeighborIndex, Tensor, Tensor, Tensor, float], Tensor] | None] = {
    "recent": None,
    "uniform": _pick_uniform,
    "time_aware": _pick_time_aware,
}


def _sequences_at(
    entries: Adjacency, node: Tensor, time: Tensor, position: Tensor, count: Tensor
) -> NeighborSequence:
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
    requests: tuple[Request, ...],
    draws: Draws | None = None,
) -> PairView:
    """The view of a batch: every row looked up once per request; without `draws` only the most recent.

    Counts answer at the time that tables are asked at, sequences at the pair's own.
    """
    neighbors, counts, walks, fades = [], [], [], []
    for request in requests:
        if isinstance(request, CountRequest):
            counts.append(index.numbers(request, pairs.at_known()))
        elif isinstance(request, WalkRequest):
            walks.append(index.walks(request))
        elif isinstance(request, DecayedCountRequest):
            fades.append(index.fades(request))
        else:
            neighbors.append(index.gather(request, pairs.node, pairs.when, draws))
    return PairView(pairs, tuple(neighbors), features, tuple(counts), tuple(walks), tuple(fades))
