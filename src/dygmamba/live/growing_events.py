"""The events of a live run in growing arrays: appended at the end, or inserted where they belong in time.

New ids get numbers in the order of their first events (decision 022), so an event that arrives late may renumber nodes
that are new since the dataset. The numbers then are those that `extend_dataset` would give to all events together.

Legend: e events, a added events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, StreamSummary
from dygmamba.data.storage.dataset import Dataset
from dygmamba.live.node_ids import BaseIds, Key, LiveIds
from dygmamba.runs.queries import PLACEHOLDER_NODES
from dygmamba.sampling.block_lists import Growing, enlarge, with_spare


@dataclass(frozen=True, slots=True)
class AddedEvents:
    """Events in time order with the user's ids; codes are those of the categories they came with."""

    src: list[Key]
    dst: list[Key]
    time: np.ndarray
    edge: np.ndarray
    codes: np.ndarray
    categories: tuple[Category, ...]

    @staticmethod
    def from_dataset(events: Dataset) -> "AddedEvents":
        store = events.store
        codes = store.features.codes
        return AddedEvents(
            events.ids.to_user(store.src.numpy()).to_pylist(),
            events.ids.to_user(store.dst.numpy()).to_pylist(),
            store.time.numpy(),
            store.features.edge.numpy(),
            np.zeros((len(store), 0), np.int32) if codes is None else codes.numpy(),
            store.features.categories,
        )

    def __len__(self) -> int:
        return len(self.time)

    def join(self, later: "AddedEvents") -> "AddedEvents":
        """Merge with events that arrived later, which are behind these where times are equal; codes must agree."""
        both = AddedEvents(
            self.src + later.src,
            self.dst + later.dst,
            np.concatenate([self.time, later.time]),
            np.concatenate([self.edge, later.edge]),
            np.concatenate([self.codes, later.codes]),
            later.categories,
        )
        if not len(self) or not len(later) or self.time[-1] <= later.time[0]:
            return both
        order = np.argsort(both.time, kind="stable")
        return AddedEvents(
            [both.src[row] for row in order.tolist()],
            [both.dst[row] for row in order.tolist()],
            both.time[order],
            both.edge[order],
            both.codes[order],
            both.categories,
        )


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

    def __init__(self, dataset: Dataset, base_ids: BaseIds, events: int | None = None) -> None:
        """Take the first `events` of a dataset (default: all)."""
        self.dataset, self.ids = dataset, LiveIds(base_ids)
        store = dataset.store[: len(dataset) if events is None else events]
        codes = store.features.codes
        for name, column in (("src", store.src), ("dst", store.dst), ("time", store.time)):
            setattr(self, name, with_spare(column.numpy()))
        self.edge = with_spare(store.features.edge.numpy())
        self.codes = with_spare(np.zeros((len(store), 0), np.int32) if codes is None else codes.numpy())
        self.count, self.nodes, self.new_nodes = len(store), store.num_nodes, 0
        self.node = with_spare(store.features.node.numpy())
        self.received = with_spare(np.bincount(store.dst.numpy(), minlength=self.nodes))
        self.first_row = np.zeros(64, np.int64)  # first event of each node that the dataset does not have
        self.loops = int((store.src == store.dst).sum())
        self.fractions = int((store.time != store.time.floor()).sum())
        self.set_categories(store.features.categories)

    def set_categories(self, categories: tuple[Category, ...]) -> None:
        """Replace the values of the categorical columns."""
        self.categories = categories
        self._codes_of = [{value: code for code, value in enumerate(part.values)} for part in categories]

    def check(self, events: AddedEvents) -> None:
        """Raise EventError if events have other columns than the dataset."""
        own, given = self.dataset.store.features, events
        names = [[part.name for part in table.categories] for table in (own, given)]
        if own.edge.shape[1] != given.edge.shape[1] or names[0] != names[1]:
            raise EventError(
                f"the new events have {given.edge.shape[1]} features and the categorical columns {names[1]}, those of "
                f"'{self.dataset.name}' have {own.edge.shape[1]} and {names[0]}; give the columns it was trained with",
                code="feature-count",
            )

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
        src, dst = self.ids.add(events.src, events.dst)
        self._grow_events(first + len(events))
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
        added = len(self.ids) - known
        self.nodes = len(self.ids)
        if self.nodes > len(self.received):
            self.received = enlarge(self.received, known, 2 * self.nodes)
        if self.nodes + PLACEHOLDER_NODES > len(self.node):
            self.node = enlarge(self.node, known, 2 * self.nodes + PLACEHOLDER_NODES)
        if self.new_nodes + added > len(self.first_row):
            self.first_row = enlarge(self.first_row, self.new_nodes, 2 * (self.new_nodes + added))
        if added:
            newest = np.maximum.accumulate(np.maximum(src, dst))
            row = np.searchsorted(newest, np.arange(known, self.nodes))
            self.first_row[self.new_nodes : self.new_nodes + added] = first + row
            self.new_nodes += added

    def _grow_events(self, count: int) -> None:
        if count > len(self.time):
            for name in self.EVENT_COLUMNS:
                setattr(self, name, enlarge(getattr(self, name), self.count, 2 * count))

    def translate(self, events: AddedEvents) -> AddedEvents:
        """Return events with codes of the stream's categories; unknown values get the next codes."""
        if events.categories == self.categories:
            return events
        codes = np.empty_like(events.codes)
        for k, (numbers, given) in enumerate(zip(self._codes_of, events.categories, strict=True)):
            own = [numbers.setdefault(value, len(numbers)) for value in given.values]
            codes[:, k] = np.array(own, np.int32)[events.codes[:, k]]
        grown = [
            len(numbers) > len(part.values)
            for numbers, part in zip(self._codes_of, self.categories, strict=True)
        ]
        if any(grown):
            self.categories = tuple(
                Category(part.name, tuple(numbers))
                for numbers, part in zip(self._codes_of, self.categories, strict=True)
            )
        return replace(events, codes=codes, categories=self.categories)

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
