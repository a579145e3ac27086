"""Neighbor index: recent, uniform or time-aware neighbors strictly before a query, over any number of hops.

It also builds, on demand, the tables that models ask for beside sequences: counts, decayed counts, temporal walks,
transitions, columns.

Legend: q queries, k entries per query, p pairs, f features per pair.
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
from dygmamba.sampling.columns import ColumnRequest, ColumnTable, QueryColumns
from dygmamba.sampling.counts import CountRequest, EventCounts, PairNeighbors
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCountTable
from dygmamba.sampling.disk_index import (
    IndexedEvents,
    build_disk_counts,
    load_disk_entries,
    needs_disk_counts,
    needs_disk_index,
)
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.event_history import EventHistory, HistoryRequest, StreamTotals
from dygmamba.sampling.node_values import NodeValueRequest, NodeValueTable
from dygmamba.sampling.transition_counts import TransitionCountRequest, TransitionCountTable
from dygmamba.sampling.transitions import TransitionRequest, TransitionTable
from dygmamba.sampling.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.sampling.walks import TemporalWalks, WalkRequest

MAX_CACHED_NUMBERS = 1 << 25  # float32 numbers of cached features in all: 128 MiB


@dataclass(frozen=True, slots=True)
class NeighborIndex:
    """Events of a stream (or some of them) by node, each listed under its source and its destination."""

    entries: Adjacency
    edges: IndexedEvents
    source: MappedFile | None = field(
        default=None, repr=False, compare=False
    )  # file the entries are mapped from
    _features: dict[bytes, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _counts: dict[tuple[float, ...], EventCounts] = field(default_factory=dict, repr=False, compare=False)
    _totals: list[StreamTotals] = field(default_factory=list, repr=False, compare=False)
    _weights: dict[float, SamplingWeights] = field(default_factory=dict, repr=False, compare=False)
    _transitions: dict[TransitionRequest, TransitionTable] = field(
        default_factory=dict, repr=False, compare=False
    )
    _columns: dict[ColumnRequest, ColumnTable] = field(default_factory=dict, repr=False, compare=False)
    _node_values: dict[NodeValueRequest, NodeValueTable] = field(
        default_factory=dict, repr=False, compare=False
    )
    _tables: dict[Any, TemporalWalks | DecayedCountTable | TransitionCountTable] = field(
        default_factory=dict, repr=False, compare=False
    )  # by their request

    @staticmethod
    def build(store: EventStore, events: Int64[Tensor, "s"] | None = None) -> "NeighborIndex":
        """Index these events (default: all) on the store's device; a large index on a CPU is mapped from disk."""
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
        """Return the index on another device; it shares the tables that stay on the host."""
        entries = self.entries.to(device)
        # only entries that were not copied depend on the mapped file
        source = self.source if entries.key.data_ptr() == self.entries.key.data_ptr() else None
        names = ("_counts", "_transitions", "_columns", "_node_values")
        return NeighborIndex(entries, self.edges, source, **{name: getattr(self, name) for name in names})

    def check_unchanged(self) -> "NeighborIndex":
        """Return the index; raise FileError if the file its entries are mapped from was changed."""
        if self.source is not None:
            self.source.check()
        return self

    def recent(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int) -> NeighborSequence:
        """Return the `k` most recent entries strictly before each query."""
        return NeighborSequence(node, time, *last_k_before(self.check_unchanged().entries, node, time, k))

    def gather(
        self,
        request: NeighborRequest,
        node: Int64[Tensor, "q"],
        time: Float64[Tensor, "q"],
        draws: Draws | None = None,
    ) -> tuple[NeighborSequence, ...]:
        """Return one sequence per hop; hop h + 1 looks up each entry of hop h at that entry's own time.

        Random strategies take their draws from the root query: hop h has consecutive slots, k for each entry of the
        hop before, so that a query draws the same neighbors in any batch.
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
                raise ConfigError(
                    f"strategy '{request.strategy}' samples neighbors at random and needs `draws`; got None",
                    code="missing-draws",
                )
            begin, count = self.past(node, time)
            chance = draws.uniform(*root, hop, slots).view(len(node), k)
            position = pick(self, begin, count, chance, request.scale)
            hops.append(_sequences_at(self.entries, node, time, position, count))
        return tuple(hops)

    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """Return the decayed counts of the events on these scales, built once; those of many events lie on disk."""
        if scales not in self._counts:
            self._counts[scales] = self._build_counts(scales)
        return self._counts[scales]

    def _build_counts(self, scales: tuple[float, ...]) -> EventCounts:
        edges = self.edges
        on_disk = self.source is not None or needs_disk_counts(len(edges), len(scales))
        if not on_disk or self.entries.key.device.type != "cpu":
            return EventCounts.build(edges.src, edges.dst, edges.time, edges.num_nodes, scales)
        folder = Path(gettempdir()) if self.source is None else self.source.path.parent
        scale = torch.tensor(scales, dtype=torch.float64)
        groups = build_disk_counts(self.entries, edges.columns[0], scale, folder)
        return EventCounts(edges.num_nodes, scale, groups)

    def count_features(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the count features of each pair, from events strictly before its time."""
        return self._cached_features(request, pairs, self._compute_count_features)

    def transition_features(self, request: TransitionRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the transition features of each pair, from events strictly before its time."""
        return self._cached_features(request, pairs, self._compute_transition_features)

    def column_features(
        self, request: ColumnRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the column features of each pair, from events strictly before its time, whose columns are given."""

        def compute(request: ColumnRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
            table = self._column_table(request, features)
            queries = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
            return table.compute_features(*queries, pairs.columns).to(pairs.node.device)

        return self._cached_features(request, pairs, compute)

    def _column_table(self, request: ColumnRequest, features: FeatureTable) -> ColumnTable:
        if request not in self._columns:
            edges = self.edges
            event = torch.arange(len(edges)) if edges.event is None else edges.event
            columns = QueryColumns(event, features.edge, features.codes)
            self._columns[request] = ColumnTable.build(
                (edges.src, edges.dst), edges.time, columns, edges.num_nodes, request
            )
        return self._columns[request]

    def node_value_features(
        self, request: NodeValueRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the features of event values of each pair's nodes, from events strictly before its time."""

        def compute(request: NodeValueRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
            table = self._node_value_table(request, features)
            queries = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
            return table.compute_features(*queries).to(pairs.node.device)

        return self._cached_features(request, pairs, compute)

    def _node_value_table(self, request: NodeValueRequest, features: FeatureTable) -> NodeValueTable:
        if request not in self._node_values:
            edges = self.edges
            event = slice(None) if edges.event is None else edges.event.to(features.edge.device)
            value = features.edge[event][:, list(request.columns)].cpu()
            self._node_values[request] = NodeValueTable.build(
                edges.src, edges.dst, edges.time, value, edges.num_nodes, request
            )
        return self._node_values[request]

    def _cached_features(self, request: Any, pairs: PairBatch, compute: Callable[..., Tensor]) -> Tensor:
        """Compute features of pairs, or return those of the same queries.

        Results are cached up to a limit: an index never changes, and validation repeats its queries every epoch.
        """
        key = _query_digest(request, pairs)
        if key not in self._features:
            features = compute(request, pairs)
            stored = list(self._features.values())  # a copy: another thread may add to it
            if sum(map(torch.numel, stored)) + features.numel() > MAX_CACHED_NUMBERS:
                return features
            self._features[key] = features
        return self._features[key]

    def _compute_transition_features(
        self, request: TransitionRequest, pairs: PairBatch
    ) -> Float32[Tensor, "p f"]:
        if request not in self._transitions:
            edges = self.edges
            self._transitions[request] = TransitionTable.build(
                edges.src, edges.dst, edges.time, edges.num_nodes, request
            )
        queries = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
        return self._transitions[request].compute_features(*queries).to(pairs.node.device)

    def _compute_count_features(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        recent = self.recent(pairs.node, pairs.when, request.neighbors)
        age = ((recent.query_time[:, None] - recent.time) * recent.mask).cpu()
        node = torch.where(recent.mask, recent.node.long(), -1).cpu()
        rows = pairs.src_row.cpu(), pairs.dst_row.cpu()
        near = PairNeighbors(node, age, pairs.when.cpu(), rows)
        queries = (pairs.src.cpu(), pairs.dst.cpu(), pairs.time.cpu())
        return self.counts(request.scales).compute_features(*queries, near).to(pairs.node.device)

    def history(self, request: HistoryRequest) -> EventHistory:
        """Return the history of nodes, pairs and the whole stream, built once."""
        if not self._totals:
            edges = self.edges
            key = edges.src * edges.num_nodes + edges.dst
            self._totals.append(StreamTotals(key.numpy(), edges.time.numpy()))
        return EventHistory(self.counts((request.scale,)), self._totals[0])

    def walks(self, request: WalkRequest) -> TemporalWalks:
        """Return the temporal walks of the events, built once and kept on the index's device."""
        return self._table(request, TemporalWalks)

    def decayed_counts(self, request: DecayedCountRequest) -> DecayedCountTable:
        """Return the decayed counts of any nodes and pairs, built once and kept on the index's device."""
        return self._table(request, DecayedCountTable)

    def transition_counts(self, request: TransitionCountRequest) -> TransitionCountTable:
        """Return the transitions between any nodes, built once and kept on the index's device."""
        return self._table(request, TransitionCountTable)

    def _table(self, request: Any, kind: Any) -> Any:
        if request not in self._tables:
            edges = self.edges
            table = kind.build(edges.src, edges.dst, edges.time, edges.num_nodes, request)
            self._tables[request] = table.to(self.entries.key.device)
        return self._tables[request]

    def past(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]) -> tuple[Tensor, Tensor]:
        """Return the first entry and the number of entries of each query's history; node -1 has no history."""
        begin = self.check_unchanged().entries.start[node.clamp(min=0)]
        return begin, (find_past_end(self.entries, node, time) - begin) * (node >= 0)

    def weights(self, scale: float) -> SamplingWeights:
        """Return the cumulative sampling weights of the time-aware strategy, built once per scale.

        The weights of a node's entries depend on no other node and on no later entry, so a query never sees its future.
        """
        if scale not in self._weights:
            self._weights[scale] = time_aware_weights(self.entries, scale)
        return self._weights[scale]


def _query_digest(
    request: CountRequest | TransitionRequest | ColumnRequest | NodeValueRequest, pairs: PairBatch
) -> bytes:
    """Return a digest of the queries, the key of the feature cache."""
    sha = hashlib.sha256(repr(request).encode())
    columns = [pairs.node, pairs.when, pairs.src_row, pairs.dst_row]
    if isinstance(request, ColumnRequest) and request.query and pairs.columns is not None:
        columns += pairs.columns.values
    for column in columns:
        sha.update(len(column).to_bytes(8, "little") + column.cpu().numpy().tobytes())
    return sha.digest()


def _pick_uniform(index: NeighborIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return begin[:, None] + (chance * count[:, None]).long()


def _pick_time_aware(
    index: NeighborIndex, begin: Tensor, count: Tensor, chance: Tensor, scale: float
) -> Tensor:
    return find_weight_quantile(index.weights(scale), begin, count, chance)


# Maps random numbers in [0, 1) to entries of a history of `count` entries from `begin` on; None: the last k entries.
STRATEGIES: dict[str, Callable[[NeighborIndex, Tensor, Tensor, Tensor, float], Tensor] | None] = {
    "recent": None,
    "uniform": _pick_uniform,
    "time_aware": _pick_time_aware,
}


def _sequences_at(
    entries: Adjacency, node: Tensor, time: Tensor, position: Tensor, count: Tensor
) -> NeighborSequence:
    """Return the entries at these positions in time order; drawn with replacement, so any history fills all slots."""
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
    """Look up what a model requests for a batch of pairs; each row is looked up once per request.

    Count, transition, column and value features are those at the table time (`PairBatch.known`), sequences those at
    the pair's own time.

    Args:
        index: Events that are visible, each to later queries only.
        features: Node and edge features.
        pairs: The queries.
        requests: The model's requests.
        draws: Random numbers of the `uniform` and `time_aware` strategies; `recent` needs none.
    """
    neighbors, counts, walks, decayed, histories, transitions, followers, columns, values = (
        [] for _ in range(9)
    )
    for request in requests:
        if isinstance(request, CountRequest):
            counts.append(index.count_features(request, pairs.at_table_time()))
        elif isinstance(request, WalkRequest):
            walks.append(index.walks(request))
        elif isinstance(request, DecayedCountRequest):
            decayed.append(index.decayed_counts(request))
        elif isinstance(request, HistoryRequest):
            histories.append(index.history(request))
        elif isinstance(request, TransitionRequest):
            transitions.append(index.transition_features(request, pairs.at_table_time()))
        elif isinstance(request, TransitionCountRequest):
            followers.append(index.transition_counts(request))
        elif isinstance(request, ColumnRequest):
            columns.append(index.column_features(request, pairs.at_table_time(), features))
        elif isinstance(request, NodeValueRequest):
            values.append(index.node_value_features(request, pairs.at_table_time(), features))
        else:
            neighbors.append(index.gather(request, pairs.node, pairs.when, draws))
    tables = (counts, walks, decayed, histories, transitions, followers, columns, values)
    return PairView(pairs, tuple(neighbors), features, *map(tuple, tables))
