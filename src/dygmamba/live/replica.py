"""One of the replicas of a live state: growing events, their index and a ranker, kept consistent with each other.

New ids get numbers in the order of their first events (decision 022), so an event that arrives late may renumber nodes
that are new since the dataset. The numbers then are those that `extend_dataset` would give to all events together.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from tempfile import gettempdir
from typing import Any, ClassVar

import numpy as np
import torch

from dygmamba.core.files.writing import create_anonymous_file
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, StreamSummary
from dygmamba.data.events.ids import IdIndex
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents, get_codes
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.history.index import Index
from dygmamba.live.array_file import ArrayWriter, copy_arrays, list_integers, map_arrays, restore_tables
from dygmamba.ops.growing import Growing, with_spare
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import PLACEHOLDER_NODES

SHARED_EVENTS = 1 << 18  # replicas of longer streams share a file


class GrowingEvents(Growing):
    """Columns of all events of a dataset and of those added since, its nodes and their features, and its ids.

    Events are appended at the end; a late one makes those behind it be dropped and appended again.
    """

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


class Replica:
    """A predictor over growing events; only one thread may change it, and only while nobody reads it.

    Attributes:
        predictor: Answers queries; valid until the next change.
        applied: Number of events added since those of the dataset.
        readers: Number of threads that read it; counted by the state.
    """

    def __init__(self, predictor: Predictor, events: GrowingEvents, index: Index | None = None) -> None:
        self.events, self.applied, self.readers = events, 0, 0
        run, tokens = predictor.run, predictor.ranker.stream_scorer.tokens
        store = events.build_store(PLACEHOLDER_NODES)
        self.index = Index(store, is_growing=True).prepare(run.scorer.requests) if index is None else index
        self.index.store = store
        self._stream = Stream(store, run.stream.split, run.stream.device)
        self._ranker = Ranker(
            run.scorer, self._stream.with_index(self.index), run.seed, tokens, run.rule.batch_size
        )
        self._opened = self.predictor = predictor
        self.publish(len(store))

    @staticmethod
    def build(predictor: Predictor, writer: ArrayWriter | None = None) -> "Replica":
        """Return a replica with the events of the dataset; with a writer, each complete table is moved to its file."""
        events = GrowingEvents(predictor.dataset, IdIndex(predictor.dataset.ids))
        if writer is None:
            return Replica(predictor, events)
        index = Index(events.build_store(PLACEHOLDER_NODES), is_growing=True)
        tables = {"events": events, "index": index}
        writer.move(tables)
        for request in predictor.run.scorer.requests:
            index.store = events.build_store(PLACEHOLDER_NODES)  # of the columns in the file
            index.prepare((request,))
            writer.move(tables)
        return Replica(predictor, events, index)

    @property
    def tables(self) -> dict[str, Growing]:
        """Everything that is saved as arrays."""
        return {"events": self.events, "index": self.index}

    def describe(self) -> dict[str, Any]:
        """Return what belongs to the arrays, as JSON values: counters, new ids and categories."""
        return {
            "dataset": self.events.dataset.digest,
            "applied": self.applied,
            "integers": list_integers(self.tables),
            "new_ids": self.events.ids.new,
            "categories": [(part.name, part.values) for part in self.events.categories],
        }

    def copy(self) -> "Replica":
        """Return a replica with copies of all arrays in memory."""
        (copy,) = restore_replicas(self._opened, [copy_arrays(self.tables)], self.describe(), self.events.ids)
        return copy

    def apply(self, changes: Sequence[AddedEvents], writer: ArrayWriter | None = None) -> None:
        """Add events of any times, given in the order of their arrival.

        Events that are later than the earliest of them are dropped, and appended again behind it. With a writer, each
        complete table is moved to its file, so that only one at a time is in memory.
        """
        move = writer.move if writer else lambda tables: None
        events, first = self.events, self.events.count
        added = reduce(AddedEvents.join, [events.translate(change) for change in changes])
        self.applied += len(added)
        if len(added) and first and added.time[0] < events.time[first - 1]:
            first = events.find_insertion(float(added.time[0]))
            self.index.drop(first)
            added = events.drop(first).join(added)
        events.append(added)
        move({"events": events})
        store = events.build_store(PLACEHOLDER_NODES)
        self.index.append(store, first, lambda name, table: move({f"index/{name}": table}))
        self.publish(first)

    def publish(self, unchanged: int) -> None:
        """Let the predictor answer from the current events, of which the first `unchanged` are the same as before."""
        events, dataset, store = self.events, self.events.dataset, self.index.store
        stream = Stream(store, self._stream.split, self._stream.device).with_index(self.index)
        # without the placeholder nodes
        features = replace(store.features, node=store.features.node[: events.nodes])
        known = store.derive(num_nodes=events.nodes, features=features)
        self._ranker.follow(stream, unchanged)
        self.predictor = replace(
            self.predictor,
            dataset=Dataset(dataset.name, known, events.ids, "", dataset.origin),
            ranker=self._ranker,
        )


def open_replicas(predictor: Predictor, count: int) -> list[Replica]:
    """Return replicas with the events of the dataset; those of a long stream share a file without a name."""
    if not is_long(predictor):
        first = Replica.build(predictor)
        return [first, *(first.copy() for _ in range(count - 1))]
    handle = create_anonymous_file(Path(gettempdir()))
    try:
        writer = ArrayWriter(handle, Path(gettempdir()))
        about = Replica.build(predictor, writer).describe()
        return restore_replicas(predictor, [map_arrays(handle, writer.layout) for _ in range(count)], about)
    finally:
        os.close(handle)


def is_long(predictor: Predictor) -> bool:
    """Return whether the dataset has so many events that replicas are mapped from a file."""
    return len(predictor.dataset.store) >= SHARED_EVENTS


def restore_replicas(
    predictor: Predictor,
    copies: Iterable[Mapping[str, np.ndarray]],
    about: Mapping[str, Any],
    ids: IdIndex | None = None,
) -> list[Replica]:
    """Return replicas with saved arrays, each with one of the copies.

    Args:
        predictor: The run.
        copies: The arrays of each replica.
        about: What `Replica.describe` returned.
        ids: An index of the ids of the dataset, if there is one already.

    Raises:
        ValueError: They are not those of the run.
    """
    if about["dataset"] != predictor.dataset.digest:
        raise ValueError("its dataset is another one")
    ids, replicas = ids or IdIndex(predictor.dataset.ids), []
    for arrays in copies:
        events = GrowingEvents(predictor.dataset, ids, events=0)
        index = Index(events.build_store(PLACEHOLDER_NODES), is_growing=True).prepare(
            predictor.run.scorer.requests
        )
        restore_tables({"events": events, "index": index}, arrays, about["integers"])
        events.ids.restore([(key, side) for key, side in about["new_ids"]])
        events.categories = tuple(Category(name, tuple(values)) for name, values in about["categories"])
        replica = Replica(predictor, events, index)
        replica.applied = about["applied"]
        replicas.append(replica)
    return replicas
