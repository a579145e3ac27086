"""An event stream as columns sorted by time, with its node and edge features.

Shapes: e events, n nodes, b events of a batch, dn node features, de edge features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int32, Int64, Shaped
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.node_rows import NodeRows
from dygmamba.data.storage.mapped_columns import iterate_slices, release_pages
from dygmamba.data.storage.mapped_file import MappedFile

MAX_GPU_SHARE = 0.5  # of a GPU's free memory that edge features, and then codes, may take


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Node features (a row per node), edge features and categorical columns (a row per event).

    Attributes:
        node: Node features; zero columns if there are none.
        edge: Edge features: the numeric columns of the events; zero columns if there are none.
        codes: Codes of the categorical columns; None if there are none.
        names: Names of the edge features; empty if they are unknown.
        categories: Names and values of the categorical columns.
        node_rows: Named node features, which may change over time; None if there are none.
        edge_scale: Factors by which a network multiplies the edge features that it looks up; None if all are 1.
    """

    node: Float32[Tensor, "n dn"]
    edge: Float32[Tensor, "e de"]
    codes: Int32[Tensor, "e dc"] | None = None
    names: tuple[str, ...] = ()
    categories: tuple[Category, ...] = ()
    node_rows: NodeRows | None = None
    edge_scale: Float32[Tensor, "de"] | None = None

    @staticmethod
    def empty(num_nodes: int, num_events: int) -> "FeatureTable":
        return FeatureTable(torch.zeros(num_nodes, 0), torch.zeros(num_events, 0))

    @property
    def edge_names(self) -> tuple[str, ...]:
        """Names of the edge features; numbered ones if they are unknown."""
        count = self.edge.shape[1]
        return self.names if len(self.names) == count else tuple(f"feature_{k}" for k in range(count))

    @property
    def has_columns(self) -> bool:
        """Whether events have anything beside source, destination and time."""
        return bool(self.edge.shape[1]) or self.codes is not None

    def select_events(self, rows: slice | Int64[Tensor, "k"]) -> "FeatureTable":
        """Return the table of these events, with the features of all nodes."""
        return replace(self, edge=self.edge[rows], codes=None if self.codes is None else self.codes[rows])

    def to(self, device: torch.device | str) -> "FeatureTable":
        """Move the features to a device; columns of events too large for a GPU stay in pinned host memory.

        `gather_rows` (`ops/rows`) reads single rows of them from there.
        """
        target = torch.device(device)
        node, edge = self.node.to(target), _move_rows(self.edge, target)
        codes = None if self.codes is None else _move_rows(self.codes, target)
        scale = None if self.edge_scale is None else self.edge_scale.to(target)
        return replace(self, node=node, edge=edge, codes=codes, edge_scale=scale)


def _move_rows(table: Shaped[Tensor, "e c"], target: torch.device) -> Shaped[Tensor, "e c"]:
    if target.type == "cuda" and table.device.type == "cpu":
        free, _ = torch.cuda.mem_get_info(target)
        if table.numel() * table.element_size() > MAX_GPU_SHARE * free:
            return table.pin_memory()
    return table.to(target)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Facts about all events that would otherwise be computed from their columns."""

    has_loops: bool
    has_whole_times: bool
    destinations: Callable[[], Int64[Tensor, "d"]]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in time order; `event` is the row of each in its store and in `features.edge`."""

    event: Int64[Tensor, "b"]
    src: Int64[Tensor, "b"]
    dst: Int64[Tensor, "b"]
    time: Float64[Tensor, "b"]
    label: Float32[Tensor, "b"]
    features: FeatureTable

    def __len__(self) -> int:
        return self.event.shape[0]

    def __getitem__(self, rows: slice) -> "EventBatch":
        ends = self.src[rows], self.dst[rows]
        return EventBatch(self.event[rows], *ends, self.time[rows], self.label[rows], self.features)


@dataclass(frozen=True, slots=True)
class EventStore:
    """An event stream, sorted by time; the row number is the event id.

    Nodes are 0 to num_nodes - 1. Timestamps are 64-bit; only time gaps are ever float32.

    Raises:
        EventError: Columns differ in length, times are not finite or not sorted, or a node is out of range.
    """

    src: Int64[Tensor, "e"]
    dst: Int64[Tensor, "e"]
    time: Float64[Tensor, "e"]
    features: FeatureTable
    num_nodes: int
    label: Float32[Tensor, "e"] | None = None
    bipartite: bool = False
    # The file that the columns are mapped from, if they are.
    source: MappedFile | None = field(default=None, compare=False, repr=False)
    # Facts about the events where they are known already.
    summary: StreamSummary | None = field(default=None, compare=False, repr=False)
    # Cache of `StreamPrefix`: number of first events -> their digest. Not copied by `replace` and `derive`.
    prefix_digests: dict[int, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        e = self.time.shape[0]
        columns = {"src": self.src, "dst": self.dst, "edge features": self.features.edge, "label": self.label}
        columns["codes"] = self.features.codes
        for name, column in columns.items():
            if column is not None and column.shape[0] != e:
                raise EventError(
                    f"{name} has {column.shape[0]} rows for {e} events; give one row per event",
                    code="column-length",
                )
        if self.features.node.shape[0] != self.num_nodes:
            raise EventError(
                f"node features have {self.features.node.shape[0]} rows for {self.num_nodes} nodes; "
                "give one row per node",
                code="node-feature-rows",
            )
        rows = self.features.node_rows
        if rows is not None and len(rows) and int(rows.node[-1]) >= self.num_nodes:
            raise EventError(
                f"node features are of node {int(rows.node[-1])}, but there are {self.num_nodes} nodes; remove them",
                code="node-out-of-range",
            )
        if e:
            self.check_unchanged()._check_values()

    def _check_values(self) -> None:
        """Check all rows, a slice at a time, so that a memory-mapped stream is never in memory as a whole."""
        low, high, before = 0, -1, -math.inf
        for rows in iterate_slices(len(self), 8):
            time = self.time[rows]
            if not bool(torch.isfinite(time).all()):
                row = int((~torch.isfinite(time)).nonzero()[0])
                raise EventError(
                    f"event {rows.start + row} has time {float(time[row])}; remove it or give it a finite time",
                    code="time-not-finite",
                )
            late = torch.cat([time[:1] < before, time[1:] < time[:-1]])
            if bool(late.any()):
                raise EventError(
                    f"event {rows.start + int(late.nonzero()[0])} is earlier than its predecessor; "
                    "call EventStore.from_unsorted(...) or sort the source file by time",
                    code="unsorted-events",
                )
            src, dst, before = self.src[rows], self.dst[rows], float(time[-1])
            low = min(low, int(src.min()), int(dst.min()))
            high = max(high, int(src.max()), int(dst.max()))
            for column in (time, src, dst):
                release_pages(column)
        if low < 0 or high >= self.num_nodes:
            low = int(min(self.src.min(), self.dst.min()))
            raise EventError(
                f"node ids span {low}..{high}, but {self.num_nodes} nodes were declared; "
                f"renumber them to 0..{self.num_nodes - 1}",
                code="node-out-of-range",
            )

    @staticmethod
    def from_columns(
        src: Tensor,
        dst: Tensor,
        time: Tensor,
        *,
        features: FeatureTable | None = None,
        label: Tensor | None = None,
        num_nodes: int | None = None,
        bipartite: bool = False,
    ) -> "EventStore":
        """Create a store from columns in time order; they are cast to the canonical dtypes."""
        if num_nodes is None:
            num_nodes = 1 + int(max(src.max(), dst.max())) if len(src) else 0
        return EventStore(
            src=src.to(torch.int64),
            dst=dst.to(torch.int64),
            time=time.to(torch.float64),
            features=features or FeatureTable.empty(num_nodes, len(time)),
            num_nodes=num_nodes,
            label=None if label is None else label.to(torch.float32),
            bipartite=bipartite,
        )

    @staticmethod
    def from_unsorted(src: Tensor, dst: Tensor, time: Tensor, **rest) -> "EventStore":
        """Create a store from columns in any order; events of the same time keep their order."""
        order = torch.argsort(time.to(torch.float64), stable=True)
        features, label = rest.pop("features", None), rest.pop("label", None)
        if features is not None:
            features = features.select_events(order)
        label = None if label is None else label[order]
        return EventStore.from_columns(
            src[order], dst[order], time[order], features=features, label=label, **rest
        )

    def __len__(self) -> int:
        return self.time.shape[0]

    @property
    def has_loops(self) -> bool:
        """Whether a node has an event with itself."""
        return bool((self.src == self.dst).any()) if self.summary is None else self.summary.has_loops

    @property
    def has_whole_times(self) -> bool:
        """Whether all timestamps are whole numbers."""
        if self.summary is not None:
            return self.summary.has_whole_times
        return bool((self.time == self.time.floor()).all())

    @property
    def destinations(self) -> Int64[Tensor, "d"]:
        """Nodes that were a destination, in ascending order."""
        return torch.unique(self.dst) if self.summary is None else self.summary.destinations()

    def check_unchanged(self) -> "EventStore":
        """Return the store; raise FileError if the file it is mapped from was modified since it was opened."""
        if self.source is not None:
            self.source.check()
        return self

    def derive(self, **changes: Any) -> "EventStore":
        """Copy the store with other columns; their values must come from checked events and are not checked again."""
        self.check_unchanged()
        derived = object.__new__(EventStore)
        if {"src", "dst", "time"} & changes.keys():
            changes.setdefault("summary", None)
        for column in fields(self):
            object.__setattr__(derived, column.name, changes.get(column.name, getattr(self, column.name)))
        object.__setattr__(derived, "prefix_digests", {})
        return derived

    def without_labels(self) -> "EventStore":
        return self if self.label is None else self.derive(label=None)

    def with_extra_nodes(self, count: int) -> "EventStore":
        """Add nodes without events behind the others; their features are 0."""
        node = self.features.node
        features = replace(self.features, node=torch.cat([node, node.new_zeros(count, node.shape[1])]))
        return self.derive(num_nodes=self.num_nodes + count, features=features)

    def __getitem__(self, rows: slice | Int64[Tensor, "k"]) -> "EventStore":
        """Return the sub-stream of a slice or of ascending rows, with the same nodes."""
        source = self.source if isinstance(rows, slice) else None  # rows are copied
        return self.derive(
            src=self.src[rows],
            dst=self.dst[rows],
            time=self.time[rows],
            label=None if self.label is None else self.label[rows],
            features=self.features.select_events(rows),
            source=None if source is None else replace(source, digest=""),
        )

    def select(self, events: Int64[Tensor, "b"]) -> EventBatch:
        """Return the events with these ids as a batch; without labels they are 0."""
        self.check_unchanged()
        label = (
            torch.zeros(len(events), device=self.time.device) if self.label is None else self.label[events]
        )
        ends = self.src[events], self.dst[events]
        return EventBatch(events, *ends, self.time[events], label, self.features)

    def batches(self, events: Int64[Tensor, "k"], size: int) -> Iterator[EventBatch]:
        """Yield these events in consecutive batches; the last one may be shorter."""
        for start in range(0, len(events), size):
            yield self.select(events[start : start + size])

    def to(self, device: torch.device | str) -> "EventStore":
        return self.derive(
            src=self.src.to(device),
            dst=self.dst.to(device),
            time=self.time.to(device),
            label=None if self.label is None else self.label.to(device),
            features=self.features.to(device),
        )
