"""The stream itself: what happened, sorted by time.

Legend: e events, n nodes, b batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.storage.mapped_columns import iterate_slices, release_pages
from dygmamba.data.storage.mapped_file import MappedFile

MAX_GPU_SHARE = 0.5  # edge features take at most this share of a GPU's free memory


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Node and edge features, one row per node and per event; zero columns where there are none."""

    node: Float32[Tensor, "n dn"]
    edge: Float32[Tensor, "e de"]

    @staticmethod
    def empty(num_nodes: int, num_events: int) -> "FeatureTable":
        """The table of a stream without features."""
        return FeatureTable(torch.zeros(num_nodes, 0), torch.zeros(num_events, 0))

    def to(self, device: torch.device | str) -> "FeatureTable":
        """The same table on another device; edge features that would crowd a GPU stay in pinned memory.

        They are read from there row by row (`ops.rows`).
        """
        there = torch.device(device)
        if there.type == "cuda" and self.edge.device.type == "cpu":
            free, _ = torch.cuda.mem_get_info(there)
            if self.edge.numel() * self.edge.element_size() > MAX_GPU_SHARE * free:
                return FeatureTable(self.node.to(there), self.edge.pin_memory())
        return FeatureTable(self.node.to(there), self.edge.to(there))


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A run of events that happened, in time order; `event` is each one's row in its store and in `features`."""

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
    """A stream of timed edges, sorted by time; the row number is the event id.

    Node ids run from 0 to num_nodes - 1; absolute time is 64-bit, only spans are ever float32.
    """

    src: Int64[Tensor, "e"]
    dst: Int64[Tensor, "e"]
    time: Float64[Tensor, "e"]
    features: FeatureTable
    num_nodes: int
    label: Float32[Tensor, "e"] | None = None
    bipartite: bool = False
    source: MappedFile | None = field(default=None, compare=False, repr=False)  # whose pages the columns are

    def __post_init__(self) -> None:
        e = self.time.shape[0]
        columns = {"src": self.src, "dst": self.dst, "edge features": self.features.edge, "label": self.label}
        for name, column in columns.items():
            if column is not None and column.shape[0] != e:
                raise EventError(f"{name} has {column.shape[0]} rows for {e} events; give one row per event")
        if self.features.node.shape[0] != self.num_nodes:
            raise EventError(
                f"node features have {self.features.node.shape[0]} rows for {self.num_nodes} nodes; "
                "give one row per node"
            )
        if e:
            self.check_unchanged()._check_values()

    def _check_values(self) -> None:
        """Look at all rows, some at a time, so that a mapped store is never in memory whole."""
        low, high, before = 0, -1, -math.inf
        for rows in iterate_slices(len(self), 8):
            time = self.time[rows]
            if not bool(torch.isfinite(time).all()):
                row = int((~torch.isfinite(time)).nonzero()[0])
                raise EventError(
                    f"event {rows.start + row} has time {float(time[row])}; remove it or give it a finite time"
                )
            late = torch.cat([time[:1] < before, time[1:] < time[:-1]])
            if bool(late.any()):
                raise EventError(
                    f"event {rows.start + int(late.nonzero()[0])} is earlier than its predecessor; "
                    "call EventStore.sorted(...) or sort the source file by time"
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
                f"renumber them to 0..{self.num_nodes - 1}"
            )

    @staticmethod
    def of(
        src: Tensor,
        dst: Tensor,
        time: Tensor,
        *,
        features: FeatureTable | None = None,
        label: Tensor | None = None,
        num_nodes: int | None = None,
        bipartite: bool = False,
    ) -> "EventStore":
        """A store from loose columns in time order, casting to the canonical dtypes."""
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
    def sorted(src: Tensor, dst: Tensor, time: Tensor, **rest) -> "EventStore":
        """A store from columns in any order; ties keep the order they came in."""
        order = torch.argsort(time.to(torch.float64), stable=True)
        features, label = rest.pop("features", None), rest.pop("label", None)
        if features is not None:
            features = FeatureTable(features.node, features.edge[order])
        label = None if label is None else label[order]
        return EventStore.of(src[order], dst[order], time[order], features=features, label=label, **rest)

    def __len__(self) -> int:
        return self.time.shape[0]

    def check_unchanged(self) -> "EventStore":
        """The store itself, unless the file that its columns are mapped from was written to: then a FileError."""
        if self.source is not None:
            self.source.check()
        return self

    def __getitem__(self, rows: slice) -> "EventStore":
        """The sub-stream of a slice of rows, with the same nodes."""
        return replace(
            self,
            src=self.src[rows],
            dst=self.dst[rows],
            time=self.time[rows],
            label=None if self.label is None else self.label[rows],
            features=FeatureTable(self.features.node, self.features.edge[rows]),
            source=None if self.source is None else replace(self.source, digest=""),
        )

    def select(self, events: Int64[Tensor, "b"]) -> EventBatch:
        """The events with these ids, as a batch."""
        self.check_unchanged()
        label = (
            torch.zeros(len(events), device=self.time.device) if self.label is None else self.label[events]
        )
        ends = self.src[events], self.dst[events]
        return EventBatch(events, *ends, self.time[events], label, self.features)

    def batches(self, events: Int64[Tensor, "k"], size: int) -> Iterator[EventBatch]:
        """These events in consecutive batches; the last one may be shorter."""
        for start in range(0, len(events), size):
            yield self.select(events[start : start + size])

    def to(self, device: torch.device | str) -> "EventStore":
        """The same stream on another device."""
        return replace(
            self,
            src=self.src.to(device),
            dst=self.dst.to(device),
            time=self.time.to(device),
            label=None if self.label is None else self.label.to(device),
            features=self.features.to(device),
        )
