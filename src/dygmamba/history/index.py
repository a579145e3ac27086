"""Index of the events of a stream: neighbors of nodes strictly before a query, and the tables that models request.

An index lists a fixed set of events, or is one that events are appended to and dropped from, newest first. Both answer
from the same lists, bit for bit. A table is built when it is first requested. Neighbors and tables for look-ups move to
the device of a model; tables of features stay on the host.

Legend: m places of entries, e, s events, q queries, k entries per query, p pairs, f features per pair.
"""

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.history.block_lists import EventRows, directed_key
from dygmamba.history.counts import EventCounts, PairNeighbors
from dygmamba.history.disk_index import (
    IndexedEvents,
    build_disk_counts,
    load_disk_entries,
    needs_disk_counts,
    needs_disk_index,
)
from dygmamba.history.draws import Draws
from dygmamba.history.event_history import StreamTotals
from dygmamba.history.neighbor_lists import NeighborLists, WeightLists
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.view import NeighborRequest, NeighborSequence, PairBatch, PairView, Request
from dygmamba.ops.growing import Growing
from dygmamba.ops.recent_neighbors import NeighborEntries, find_past, find_weight_quantile, last_k_before
from dygmamba.ops.recent_neighbors.cpu import cumulate_weights
from dygmamba.ops.threads import run_in_threads

UPDATES_PER_PAIR = 1000  # the features of a pair take as long as so many updates of a kernel
MAX_CACHED_NUMBERS = 1 << 25  # float32 numbers of cached features in all: 128 MiB


class Index(Growing):
    """Events of a stream (or some of them) by node, each listed under its source and its destination.

    Attributes:
        store: The stream, on the host.
        chosen: Rows of the indexed events; None for all of them.
        is_growing: Whether events are appended; such an index stays on the host, and caches no features.
        near: Neighbors of all nodes; None if they are mapped from a file (`source`).
        tables: Tables on the host, by kind and settings.
    """

    def __init__(
        self, store: EventStore, chosen: Int64[Tensor, "s"] | None = None, is_growing: bool = False
    ) -> None:
        """Index these events (default: all); neighbors of many events are mapped from disk, unless they grow."""
        if max(store.num_nodes, len(store)) >= 2**31:
            raise EventError(
                f"{store.num_nodes} nodes and {len(store)} events do not fit into 32-bit entries; split the stream",
                code="stream-too-large",
            )
        self.store, self.chosen, self.is_growing = store, chosen, is_growing
        self.tables: dict[Any, Any] = {}
        self.near: NeighborLists | None = None
        self.source: MappedFile | None = None
        self._totals: StreamTotals | None = None
        self._moved: dict[Any, Any] = {}  # sampling weights and tables for look-ups, on the index's device
        # by digest of their queries; None for queries that came once
        self._features: dict[bytes, Tensor | None] = {}
        if needs_disk_index(len(self), store) and not is_growing:
            self._entries, self.source = load_disk_entries(store, self._indexed)
        else:
            self.near = NeighborLists(self.list_rows(), is_growing)
            self._entries = _as_tensors(self.near)

    def __len__(self) -> int:
        return len(self.store if self.chosen is None else self.chosen)

    @property
    def _indexed(self) -> IndexedEvents:
        store = self.store
        return IndexedEvents((store.src, store.dst, store.time), store.num_nodes, self.chosen)

    def list_rows(self, first: int = 0) -> EventRows:
        """Return the indexed events from number `first` on, with their columns."""
        rows = slice(first, None) if self.chosen is None else self.chosen
        store, features = self.store, self.store.features
        src, dst, time = (column[rows].numpy() for column in (store.src, store.dst, store.time))
        return EventRows(
            src,
            dst,
            time,
            store.num_nodes,
            first,
            None if self.chosen is None else self.chosen.numpy(),
            features.edge.numpy(),
            None if features.codes is None else features.codes.numpy(),
        )

    def to(self, device: torch.device | str) -> "Index":
        """Return the index on another device; it shares the tables that stay on the host."""
        index = copy(self)
        index._entries, index._moved, index._features = self._entries.to(device), {}, {}
        # only entries that were not copied depend on the mapped file
        if index._entries.time.data_ptr() != self._entries.time.data_ptr():
            index.source = None
        return index

    @property
    def parts(self) -> Mapping[str, Growing]:
        assert self.near is not None
        return {"near": self.near} | {repr(key): table for key, table in self.tables.items()}

    def prepare(self, requests: tuple[Request, ...]) -> "Index":
        """Build the tables of these requests; return the index."""
        for request in requests:
            request.prepare(self)
        return self

    def append(
        self,
        store: EventStore,
        first: int,
        on_table: Callable[[str, Growing], None] = lambda name, table: None,
    ) -> None:
        """Follow the store, whose events from row `first` on are new; `on_table` is called after each table."""
        self.store, self._totals = store, None
        rows, tables = self.list_rows(first), cast("Mapping[str, Any]", self.parts)
        for name, table in tables.items():
            table.append_rows(rows)
            on_table(name, table)

    def drop(self, first: int) -> None:
        """Drop the events from row `first` on; that row is the first one of its instant."""
        assert self.near is not None
        if first < len(self.store):
            rows = self.list_rows(first)
            for table in (*self.tables.values(), self.near):
                table.drop_rows(rows)
        self._totals = None

    @property
    def entries(self) -> NeighborEntries:
        """The entries of all nodes, valid until events are appended or dropped.

        Raises:
            FileError: The file that they are mapped from was changed.
        """
        if self.source is not None:
            self.source.check()
        return _as_tensors(self.near) if self.is_growing and self.near is not None else self._entries

    def past(
        self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Int64[Tensor, "q"], Int64[Tensor, "q"]]:
        """Return the first entry and the number of entries of each query's history; node -1 has no history."""
        return find_past(self.entries, node, time)

    def recent(self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], k: int) -> NeighborSequence:
        """Return the `k` most recent entries strictly before each query."""
        return NeighborSequence(node, time, *last_k_before(self.entries, node, time, k))

    def weights(self, scale: float) -> Float64[Tensor, "m"]:
        """Return the cumulative sampling weights of the time-aware strategy, of all entries, built once per scale.

        The weights of a node's entries depend on no other node and on no later entry, so a query never sees its future.
        """
        if not self.is_growing:
            return self.move_once(("weights", scale), lambda: cumulate_weights(self.entries, scale))
        key = ("weights", scale)
        if key not in self.tables:
            assert self.near is not None
            self.tables[key] = WeightLists(self.near, scale)
        return torch.from_numpy(self.tables[key].running)

    def table(self, kind: Any, settings: Any, *more: Any) -> Any:
        """Return a table of this kind and these settings on the host, built once.

        Raises:
            MemoryBudgetError: A table of a fixed set of events does not fit into memory.
        """
        key = (kind.__name__, settings)
        if key not in self.tables:
            table = kind(settings, *more, is_growing=self.is_growing)
            if not self.is_growing:
                table.require_memory(len(self))
            table.append_rows(self.list_rows())
            self.tables[key] = table
        return self.tables[key]

    def counts(self, scales: tuple[float, ...]) -> EventCounts:
        """Return the decayed counts of the events on these scales, built once; those of many events lie on disk."""
        key = (EventCounts.__name__, scales)
        if key not in self.tables and self._keeps_counts_on_disk(len(scales)):
            folder = Path(gettempdir()) if self.source is None else self.source.path.parent
            groups = build_disk_counts(self.entries, self.store.src, np.array(scales), folder)
            self.tables[key] = EventCounts(scales, groups)
        return self.table(EventCounts, scales)

    def _keeps_counts_on_disk(self, scales: int) -> bool:
        is_mapped = self.source is not None and needs_disk_index(len(self))
        is_large = is_mapped or needs_disk_counts(len(self), scales)
        return is_large and not self.is_growing and self._entries.time.device.type == "cpu"

    def move_once(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return what `build` returns of a fixed set of events, on the index's device, built once."""
        if key not in self._moved:
            self._moved[key] = build().to(self._entries.time.device)
        return self._moved[key]

    @property
    def totals(self) -> StreamTotals:
        """Running totals over all events; they are computed again after an append."""
        if self._totals is None:
            rows = self.list_rows()
            self._totals = StreamTotals(directed_key(rows.src, rows.dst), rows.time)
        return self._totals

    def compute_features(self, request: FeatureRequest, pairs: PairBatch) -> Float32[Tensor, "p f"]:
        """Return the features of each pair, from events strictly before its time.

        Validation repeats its queries every epoch; those of training have new negatives in each. So features of a fixed
        set of events are cached, up to a limit, when queries come for the second time.
        """
        key = b"" if self.is_growing else _query_digest(request, pairs)
        cached = self._features.get(key)
        if cached is not None:
            return cached
        request.prepare(self)  # before several threads need its table
        on_host, parts = self._entries.time.device.type == "cpu", {}

        def compute(low: int, high: int) -> None:
            part = pairs.select_part(torch.arange(low, high, device=pairs.node.device))
            parts[low] = request.compute(self, part, *to_host(part.src, part.dst, part.time))

        run_in_threads(compute, len(pairs), UPDATES_PER_PAIR * len(pairs) if on_host else 0)
        found = np.concatenate([parts[low] for low in sorted(parts)])
        features = torch.from_numpy(found).to(pairs.node.device)
        if key:
            # other threads may add to it
            stored = [part for part in list(self._features.values()) if part is not None]
            has_room = sum(map(torch.numel, stored)) + features.numel() <= MAX_CACHED_NUMBERS
            self._features[key] = features if key in self._features and has_room else None
        return features

    def find_pair_neighbors(self, pairs: PairBatch, k: int) -> PairNeighbors:
        """Return the `k` most recent neighbors of the ends of each pair, on the host."""
        every = torch.arange(len(pairs), device=pairs.node.device)
        pairs = pairs.without_labels().select_shared(every, self.store.num_nodes)
        recent = self.recent(pairs.node, pairs.when, k)
        near, time, length = to_host(recent.node, recent.time, recent.length)
        when, src, dst = to_host(pairs.when, pairs.src_row, pairs.dst_row)
        is_entry = np.arange(k) < length[:, None]
        node, age = np.where(is_entry, near.astype(np.int64), -1), (when[:, None] - time) * is_entry
        return PairNeighbors(node, age, when, (src, dst))

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


def _as_tensors(lists: NeighborLists) -> NeighborEntries:
    return NeighborEntries(*map(torch.from_numpy, lists.entries))


def to_host(*columns: Tensor) -> tuple[np.ndarray, ...]:
    """Return tensors as arrays of numpy."""
    return tuple(column.cpu().numpy() for column in columns)


def _query_digest(request: FeatureRequest, pairs: PairBatch) -> bytes:
    """Return a digest of the queries, the key of the feature cache."""
    sha = hashlib.sha256(repr(request).encode())
    columns, more = [pairs.node, pairs.when, pairs.src_row, pairs.dst_row], []
    if request.query and pairs.columns is not None:
        values = pairs.columns.values
        more = [column for column in (values.edge, values.codes) if column is not None]
    for column in (*to_host(*columns), *more):
        sha.update(len(column).to_bytes(8, "little") + column.tobytes())
    return sha.digest()


def _pick_uniform(index: Index, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return begin[:, None] + (chance * count[:, None]).long()


def _pick_time_aware(index: Index, begin: Tensor, count: Tensor, chance: Tensor, scale: float) -> Tensor:
    return find_weight_quantile(index.weights(scale), begin, count, chance)


# Maps random numbers in [0, 1) to entries of a history of `count` entries from `begin` on; None: the last k entries.
STRATEGIES: dict[str, Callable[[Index, Tensor, Tensor, Tensor, float], Tensor] | None] = {
    "recent": None,
    "uniform": _pick_uniform,
    "time_aware": _pick_time_aware,
}


def _sequences_at(
    entries: NeighborEntries, node: Tensor, time: Tensor, position: Tensor, count: Tensor
) -> NeighborSequence:
    """Return the entries at these positions in time order; drawn with replacement, so any history fills all slots."""
    k = position.shape[1]
    some = (count[:, None] > 0).expand(-1, k)  # [q k]
    if entries.time.shape[0] == 0:
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
    index: Index,
    features: FeatureTable,
    pairs: PairBatch,
    requests: tuple[Request, ...],
    draws: Draws | None = None,
    length: int | None = None,
) -> PairView:
    """Look up what a model requests for a batch of pairs; each row is looked up once per request.

    Features of pairs are those at their table time (`PairBatch.table_time`), sequences those at the pair's own time.

    Args:
        index: Events that are visible, each to later queries only.
        features: Node and edge features.
        pairs: The queries.
        requests: The model's requests.
        draws: Random numbers of the `uniform` and `time_aware` strategies; `recent` needs none.
        length: Cut sequences to so many entries per hop.
    """
    found = {request: request.cut(length).look_up(index, pairs, draws) for request in dict.fromkeys(requests)}
    # labels end here: whatever scores a view cannot read them
    return PairView(pairs.without_labels(), features, found)
