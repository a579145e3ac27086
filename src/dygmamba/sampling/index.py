"""Neighbor index of a fixed set of events: recent neighbors strictly before a query.

It also builds, on demand, the tables that models ask for beside sequences: counts, decayed counts, temporal walks,
transitions, columns.

Legend: m entries, p pairs, f features per pair.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.ops.recent_neighbors import NeighborEntries
from dygmamba.ops.recent_neighbors.counting_sort import count_entries, sort_entries
from dygmamba.ops.recent_neighbors.cpu import cumulate_weights
from dygmamba.sampling.block_lists import EventRows, directed_key
from dygmamba.sampling.column_sums import ColumnSumRequest, ColumnSumTable
from dygmamba.sampling.columns import ColumnRequest, ColumnTable
from dygmamba.sampling.counts import CountRequest, EventCounts
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCountTable
from dygmamba.sampling.disk_index import (
    IndexedEvents,
    build_disk_counts,
    load_disk_entries,
    needs_disk_counts,
    needs_disk_index,
)
from dygmamba.sampling.event_history import EventHistory, HistoryRequest, StreamTotals
from dygmamba.sampling.event_index import STRATEGIES as STRATEGIES
from dygmamba.sampling.event_index import EventIndex, compute_node_features, compute_on_host, to_host
from dygmamba.sampling.event_index import gather_view as gather_view
from dygmamba.sampling.node_features import NodeFeatureRequest
from dygmamba.sampling.node_values import NodeValueRequest, NodeValueTable
from dygmamba.sampling.transition_counts import TransitionCountRequest, TransitionCountTable
from dygmamba.sampling.transitions import TransitionRequest, TransitionTable
from dygmamba.sampling.view import PairBatch
from dygmamba.sampling.walks import TemporalWalks, WalkRequest

MAX_CACHED_NUMBERS = 1 << 25  # float32 numbers of cached features in all: 128 MiB


@dataclass(frozen=True, slots=True)
class NeighborIndex(EventIndex):
    """Events of a stream (or some of them) by node, each listed under its source and its destination."""

    lists: NeighborEntries
    edges: IndexedEvents
    source: MappedFile | None = field(
        default=None, repr=False, compare=False
    )  # file the entries are mapped from
    # features by digest of their queries; None for queries that came once
    _features: dict[bytes, Tensor | None] = field(default_factory=dict, repr=False, compare=False)
    _counts: dict[tuple[float, ...], EventCounts] = field(default_factory=dict, repr=False, compare=False)
    _totals: list[StreamTotals] = field(default_factory=list, repr=False, compare=False)
    _weights: dict[float, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _host_tables: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # by their request
    _tables: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # by their request

    @staticmethod
    def build(store: EventStore, events: Int64[Tensor, "s"] | None = None) -> "NeighborIndex":
        """Index these events (default: all) on the host; a large index is mapped from disk."""
        if max(store.num_nodes, len(store)) >= 2**31:
            raise EventError(
                f"{store.num_nodes} nodes and {len(store)} events do not fit into 32-bit entries; split the stream",
                code="stream-too-large",
            )
        chosen = None if events is None else events.cpu()
        edges = IndexedEvents((store.src.cpu(), store.dst.cpu(), store.time.cpu()), store.num_nodes, chosen)
        if needs_disk_index(len(edges)):
            entries, source = load_disk_entries(store, edges)
            return NeighborIndex(entries, edges, source)
        rows = torch.arange(len(store)) if chosen is None else chosen
        columns = (edges.src.numpy(), edges.dst.numpy(), rows.numpy())
        start = count_entries(lambda: iter((columns,)), store.num_nodes)
        found = sort_entries(lambda: iter((columns,)), edges.columns[2].numpy(), start, 0, store.num_nodes)
        lists = (start[:-1], np.diff(start), *found)
        return NeighborIndex(NeighborEntries(*map(torch.from_numpy, lists)), edges)

    def to(self, device: torch.device | str) -> "NeighborIndex":
        """Return the index on another device; it shares the tables that stay on the host."""
        entries = self.lists.to(device)
        # only entries that were not copied depend on the mapped file
        source = self.source if entries.time.data_ptr() == self.lists.time.data_ptr() else None
        names = ("_counts", "_host_tables")
        return NeighborIndex(entries, self.edges, source, **{name: getattr(self, name) for name in names})

    @property
    def entries(self) -> NeighborEntries:
        """The entries of all nodes; raises FileError if the file that they are mapped from was changed."""
        if self.source is not None:
            self.source.check()
        return self.lists

    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """Return the decayed counts of the events on these scales, built once; those of many events lie on disk."""
        if scales not in self._counts:
            self._counts[scales] = self._build_counts(scales)
        return self._counts[scales]

    def _build_counts(self, scales: tuple[float, ...]) -> EventCounts:
        edges = self.edges
        on_disk = self.source is not None or needs_disk_counts(len(edges), len(scales))
        if not on_disk or self.lists.time.device.type != "cpu":
            counts = EventCounts(scales)
            counts.append_rows(self._rows())
            return counts
        folder = Path(gettempdir()) if self.source is None else self.source.path.parent
        groups = build_disk_counts(self.entries, edges.columns[0], np.array(scales), folder)
        return EventCounts(scales, groups)

    def _rows(self, features: FeatureTable | None = None) -> EventRows:
        """Return the events on the host, with these columns."""
        src, dst, time = to_host(self.edges.src, self.edges.dst, self.edges.time)
        columns, event = {}, self.edges.event
        if features is not None:
            names = ("edge",) if features.codes is None else ("edge", "codes")
            columns = {name: getattr(features, name).cpu().numpy() for name in names}
        chosen = None if event is None else event.numpy()
        return EventRows(src, dst, time, self.edges.num_nodes, chosen=chosen, **columns)

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
            table = self._host_table(request, ColumnTable, features)
            return compute_on_host(table, pairs, None if pairs.columns is None else pairs.columns.values)

        return self._cached_features(request, pairs, compute)

    def column_sums(self, request: ColumnSumRequest, features: FeatureTable) -> ColumnSumTable:
        """Return the numeric columns of the events of any pair, built once and kept on the index's device."""
        if request not in self._tables:
            table = ColumnSumTable.build(self._rows(features), request)
            self._tables[request] = table.to(self.lists.time.device)
        return self._tables[request]

    def node_value_features(
        self, request: NodeValueRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the features of event values of each pair's nodes, from events strictly before its time."""

        def compute(request: NodeValueRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
            return compute_on_host(self._host_table(request, NodeValueTable, features), pairs)

        return self._cached_features(request, pairs, compute)

    def _host_table(self, request: Any, kind: Any, features: FeatureTable | None = None) -> Any:
        """Return the table of a request on the host, built once."""
        if request not in self._host_tables:
            table = kind(request)
            table.require_memory(len(self.edges))
            table.append_rows(self._rows(features))
            self._host_tables[request] = table
        return self._host_tables[request]

    def node_features(
        self, request: NodeFeatureRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the node features of each pair's ends, as they were known strictly before its time."""
        return self._cached_features(
            request, pairs, lambda request, pairs: compute_node_features(request, pairs, features)
        )

    def _cached_features(self, request: Any, pairs: PairBatch, compute: Callable[..., Tensor]) -> Tensor:
        """Compute features of pairs, or return those of the same queries.

        An index never changes, and validation repeats its queries every epoch; those of training have new negatives in
        each. So results are cached, up to a limit, when queries come for the second time.
        """
        key = _query_digest(request, pairs)
        cached = self._features.get(key)
        if cached is not None:
            return cached
        features = compute(request, pairs)
        stored = [
            part for part in list(self._features.values()) if part is not None
        ]  # other threads may add to it
        has_room = sum(map(torch.numel, stored)) + features.numel() <= MAX_CACHED_NUMBERS
        self._features[key] = features if key in self._features and has_room else None
        return features

    def _compute_transition_features(
        self, request: TransitionRequest, pairs: PairBatch
    ) -> Float32[Tensor, "p f"]:
        return compute_on_host(self._host_table(request, TransitionTable), pairs)

    def history(self, request: HistoryRequest) -> EventHistory:
        """Return the history of nodes, pairs and the whole stream, built once."""
        if not self._totals:
            edges = self.edges
            src, dst, time = to_host(edges.src, edges.dst, edges.time)
            self._totals.append(StreamTotals(directed_key(src, dst), time))
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
            self._tables[request] = kind.build(self._rows(), request).to(self.lists.time.device)
        return self._tables[request]

    def weights(self, scale: float) -> Float64[Tensor, "m"]:
        """Return the cumulative sampling weights of the time-aware strategy, built once per scale.

        The weights of a node's entries depend on no other node and on no later entry, so a query never sees its future.
        """
        if scale not in self._weights:
            self._weights[scale] = cumulate_weights(self.entries, scale)
        return self._weights[scale]


def _query_digest(
    request: CountRequest | TransitionRequest | ColumnRequest | NodeValueRequest | NodeFeatureRequest,
    pairs: PairBatch,
) -> bytes:
    """Return a digest of the queries, the key of the feature cache."""
    sha = hashlib.sha256(repr(request).encode())
    columns, more = [pairs.node, pairs.when, pairs.src_row, pairs.dst_row], []
    if isinstance(request, ColumnRequest) and request.query and pairs.columns is not None:
        values = pairs.columns.values
        more = [column for column in (values.edge, values.codes) if column is not None]
    for column in (*to_host(*columns), *more):
        sha.update(len(column).to_bytes(8, "little") + column.tobytes())
    return sha.digest()
