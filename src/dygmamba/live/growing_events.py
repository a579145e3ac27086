"""The events of a live run in growing arrays: appended at the end, or inserted where they belong in time.

New ids get numbers in the order of their first events (decision 022), so an event that arrives late may renumber nodes
that are new since the dataset. The numbers then are those that `extend_dataset` would give to all events together.

Legend: e events, a added events.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from dygmamba.data.events.event_store import EventStore, StreamSummary
from dygmamba.data.events.ids import IdIndex
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents, get_codes
from dygmamba.ops.growing import Growing, with_spare
from dygmamba.runs.queries import PLACEHOLDER_NODES


class GrowingEvents(Growing):
    """Columns of all events of a dataset and of those added since, its nodes and their features, and its ids."""

    EVENT_COLUMNS = ("src", "dst", "time", "edge", "codes")
    arrays: ClassVar[Mapping[str, str | None]] = dict.fromkeys(EVENT_COLUMNS, "count") | {
        "node": "nodes",
        "received": "nodes",
        "first_row": "new_nodes",
    }
    integers = ("count", "nodes", "new_nodes", "loops", "fractions")
    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray

    def __init__(self, dataset: Dataset, base_ids: IdIndex, events: int | None = None) -> None:
        """Take the first `events` of a dataset (default: all)."""
        self.dataset, self.ids = dataset, base_ids.restart()
        store = dataset.store[: len(dataset) if events is None else events]
        for name, column in (("src", store.src), ("dst", store.dst), ("time", store.time)):
            setattr(self, name, with_spare(column.numpy()))
        self.edge = with_spare(store.features.edge.numpy())
        self.codes = with_spare(get_codes(store.features))
        self.count, self.nodes, self.new_nodes = len(store), store.num_nodes, 0
        self.node = with_spare(store.features.node.numpy())
        self.received = with_spare(np.bincount(store.dst.numpy(), minlength=self.nodes))
        self.first_row = np.zeros(64, np.int64)  # first event of each node that the dataset does not have
        self.loops = int((store.src == store.dst).sum())
        self.fractions = int((store.time != store.time.floor()).sum())
        self.categories = store.features.categories

    def find_insertion(self, time: float) -> int:
        """Return the first row later than a time: the events from there on are dropped before one of it is added."""
        return int(np.searchsorted(self.time[: self.count], time, side="right"))

    def drop(self, first: int) -> AddedEvents:
        """Drop the events from row `first` on and return them."""
        rows = slice(first, self.count)
        src, dst, time = self.src[rows], self.dst[rows], self.time[rows]
        dropped = AddedEvents(
            self.ids.to_user(src).to_pylist(),
            self.ids.to_user(dst).to_pylist(),
            time.copy(),
            self.edge[rows].copy(),
            self.codes[rows].copy(),
            self.categories,
        )
        np.subtract.at(self.received, dst, 1)
        self.loops -= int((src == dst).sum())
        self.fractions -= int((time != np.floor(time)).sum())
        self.new_nodes = int(np.searchsorted(self.first_row[: self.new_nodes], first))
        self.ids.truncate(self.dataset.store.num_nodes + self.new_nodes)
        self.nodes, self.count = len(self.ids), first
        return dropped

    def append(self, events: AddedEvents) -> None:
        """Append events that are not earlier than the last one, with codes of this stream (`translate`)."""
        first, known = self.count, len(self.ids)
        src, dst = self.ids.add_events(events.src, events.dst)
        self.make_room(first + len(events), *self.EVENT_COLUMNS)
        rows = slice(first, first + len(events))
        self.src[rows], self.dst[rows], self.time[rows] = src, dst, events.time
        self.edge[rows], self.codes[rows] = events.edge, events.codes
        self.count += len(events)
        self._add_nodes(known, first, src, dst)
        np.add.at(self.received, dst, 1)
        self.loops += int((src == dst).sum())
        self.fractions += int((events.time != np.floor(events.time)).sum())

    def _add_nodes(self, known: int, first: int, src: np.ndarray, dst: np.ndarray) -> None:
        """Note the first event of each new node; their features are 0."""
        nodes, added = len(self.ids), len(self.ids) - known
        self.make_room(nodes, "received")
        self.make_room(nodes + PLACEHOLDER_NODES, "node")
        self.make_room(self.new_nodes + added, "first_row")
        self.nodes = nodes
        if added:
            newest = np.maximum.accumulate(np.maximum(src, dst))
            row = np.searchsorted(newest, np.arange(known, self.nodes))
            self.first_row[self.new_nodes : self.new_nodes + added] = first + row
            self.new_nodes += added

    def translate(self, events: AddedEvents) -> AddedEvents:
        """Return events with codes of the stream's categories, which get the unknown values too."""
        recoded = events.recode(self.categories)
        self.categories = recoded.categories
        return recoded

    def build_store(self, extra_nodes: int = 0) -> EventStore:
        """Return the events as a store of views, valid until events are added or dropped."""
        base, e, nodes = self.dataset.store, self.count, self.nodes + extra_nodes
        features = replace(
            base.features,
            node=torch.from_numpy(self.node[:nodes]),
            edge=torch.from_numpy(self.edge[:e]),
            codes=None if base.features.codes is None else torch.from_numpy(self.codes[:e]),
            categories=self.categories,
        )
        columns: dict[str, Any] = {
            name: torch.from_numpy(getattr(self, name)[:e]) for name in ("src", "dst", "time")
        }
        return base.derive(
            **columns,
            features=features,
            num_nodes=nodes,
            label=None,
            source=None,
            summary=StreamSummary(self.loops > 0, self.fractions == 0, self._list_destinations),
        )

    def _list_destinations(self) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(self.received[: self.nodes]))
