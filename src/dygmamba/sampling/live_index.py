"""Neighbor index that events are appended to, with the tables that models ask for.

It answers as a `NeighborIndex` of the same events does, bit for bit. Events are in time order; the newest ones can be
dropped again, so that an event that arrives late is appended between them. A table is built when it is first asked for,
and then grows with the events. It lives on the CPU. Results are not cached, because the events change.

Legend: m places of entries, p pairs, f features per pair.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.ops.growing import Growing
from dygmamba.ops.recent_neighbors import NeighborEntries
from dygmamba.sampling.block_lists import EventRows, directed_key
from dygmamba.sampling.column_sums import ColumnSumRequest, ColumnSumTable
from dygmamba.sampling.columns import ColumnRequest, ColumnTable
from dygmamba.sampling.counts import CountRequest, EventCounts
from dygmamba.sampling.decayed_counts import DecayedCountRequest, DecayedCountTable
from dygmamba.sampling.event_history import EventHistory, HistoryRequest, StreamTotals
from dygmamba.sampling.event_index import EventIndex, compute_node_features, compute_on_host
from dygmamba.sampling.neighbor_lists import NeighborLists, WeightLists
from dygmamba.sampling.node_features import NodeFeatureRequest
from dygmamba.sampling.node_values import NodeValueRequest, NodeValueTable
from dygmamba.sampling.transition_counts import TransitionCountRequest, TransitionCountTable
from dygmamba.sampling.transitions import TransitionRequest, TransitionTable
from dygmamba.sampling.view import NeighborRequest, PairBatch, Request
from dygmamba.sampling.walks import TemporalWalks, WalkLists, WalkRequest


class LiveIndex(EventIndex, Growing):
    """Events of a stream by node, which events are appended to and dropped from.

    `store` are the events, with nodes that have none yet; the index follows them with `append` and `drop`.
    """

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.near = NeighborLists(_list_rows(store))
        self.tables: dict[Any, Any] = {}  # by kind and settings
        self._totals: StreamTotals | None = None

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {"near": self.near} | {repr(key): table for key, table in self.tables.items()}

    def prepare(self, requests: tuple[Request, ...]) -> "LiveIndex":
        """Build the tables that these requests need; return the index."""
        for request in requests:
            if isinstance(request, CountRequest | DecayedCountRequest):
                self.counts(request.scales)
            elif isinstance(request, HistoryRequest):
                self.counts((request.scale,))
            elif isinstance(request, WalkRequest):
                self.walks(request)
            elif isinstance(request, TransitionRequest | TransitionCountRequest):
                self._find_transitions(request)
            elif isinstance(request, ColumnRequest):
                self._find_columns(request)
            elif isinstance(request, ColumnSumRequest):
                self._find_columns(request.columns)
            elif isinstance(request, NodeValueRequest):
                self._find_node_values(request)
            elif isinstance(request, NeighborRequest) and request.strategy == "time_aware":
                self.weights(request.scale)
        return self

    def append(self, store: EventStore, first: int) -> None:
        """Follow the store, whose events from row `first` on are new."""
        rows = _list_rows(store, first)
        self.store, self._totals = store, None
        self.near.append_rows(rows)
        for table in self.tables.values():
            table.append_rows(rows)

    def drop(self, first: int) -> None:
        """Drop the events from row `first` on; that row is the first one of its instant."""
        if first < len(self.store):
            rows = _list_rows(self.store, first)
            for table in (*self.tables.values(), self.near):
                table.drop_rows(rows)
        self._totals = None

    @property
    def entries(self) -> NeighborEntries:
        """The entries of all nodes; valid until events are appended or dropped."""
        near = self.near
        columns = (near.start, near.size, near.neighbor, near.event, near.time)
        return NeighborEntries(*map(torch.from_numpy, columns))

    def weights(self, scale: float) -> Float64[Tensor, "m"]:
        """Return the cumulative sampling weights of the time-aware strategy."""
        key = ("weights", scale)
        if key not in self.tables:
            self.tables[key] = WeightLists(self.near, scale)
        return torch.from_numpy(self.tables[key].running)

    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """Return the decayed counts of the events on these scales."""
        return self._table(("counts", scales), EventCounts, scales)

    def _table(self, key: Any, kind: Any, *settings: Any) -> Any:
        """Return a table of the events, built once."""
        if key not in self.tables:
            table = kind(*settings, is_growing=True)
            table.append_rows(_list_rows(self.store))
            self.tables[key] = table
        return self.tables[key]

    def count_features(self, request: CountRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the count features of each pair, from events strictly before its time."""
        return self._compute_count_features(request, pairs)

    def _find_transitions(self, request: TransitionRequest | TransitionCountRequest) -> TransitionTable:
        key = ("transitions", request.lags, request.scales, isinstance(request, TransitionRequest))
        return self._table(key, TransitionTable, request)

    def transition_features(self, request: TransitionRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the transition features of each pair, from events strictly before its time."""
        return compute_on_host(self._find_transitions(request), pairs)

    def _find_columns(self, request: ColumnRequest) -> ColumnTable:
        return self._table(("columns", request), ColumnTable, request)

    def column_features(
        self, request: ColumnRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the column features of each pair, from events strictly before its time, whose columns are given."""
        values = None if pairs.columns is None else pairs.columns.values
        return compute_on_host(self._find_columns(request), pairs, values)

    def column_sums(self, request: ColumnSumRequest, features: FeatureTable) -> ColumnSumTable:
        """Return the numeric columns of the events of any pair."""
        return ColumnSumTable.from_columns(self._find_columns(request.columns))

    def _find_node_values(self, request: NodeValueRequest) -> NodeValueTable:
        return self._table(("node values", request), NodeValueTable, request)

    def node_value_features(
        self, request: NodeValueRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the features of event values of each pair's nodes, from events strictly before its time."""
        return compute_on_host(self._find_node_values(request), pairs)

    def node_features(
        self, request: NodeFeatureRequest, pairs: PairBatch, features: FeatureTable
    ) -> Float32[Tensor, "p f"]:
        """Return the node features of each pair's ends, as they were known strictly before its time."""
        return compute_node_features(request, pairs, features)

    def history(self, request: HistoryRequest) -> EventHistory:
        """Return the history of nodes, pairs and the whole stream; the totals are computed again after an append."""
        if self._totals is None:
            store = self.store
            self._totals = StreamTotals(directed_key(store.src, store.dst).numpy(), store.time.numpy())
        return EventHistory(self.counts((request.scale,)), self._totals)

    def walks(self, request: WalkRequest) -> TemporalWalks:
        """Return the temporal walks of the events."""
        return TemporalWalks.from_lists(self._table(("walks", request), WalkLists, request, self.near))

    def decayed_counts(self, request: DecayedCountRequest) -> DecayedCountTable:
        """Return the decayed counts of any nodes and pairs."""
        return DecayedCountTable.from_counts(self.counts(request.scales))

    def transition_counts(self, request: TransitionCountRequest) -> TransitionCountTable:
        """Return the transitions between any nodes."""
        return TransitionCountTable.from_transitions(self._find_transitions(request))


def _list_rows(store: EventStore, first: int = 0) -> EventRows:
    """Return the events of a store from row `first` on."""
    src, dst, time = (column.numpy()[first:] for column in (store.src, store.dst, store.time))
    edge, codes = store.features.edge.numpy(), store.features.codes
    return EventRows(
        src, dst, time, store.num_nodes, first, None, edge, None if codes is None else codes.numpy()
    )
