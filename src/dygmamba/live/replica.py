"""One of the replicas of a live state: events, their index and a ranker, kept consistent with each other."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from dygmamba.core.files.writing import create_anonymous_file
from dygmamba.data.events.categories import Category
from dygmamba.data.events.ids import IdIndex
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.history.index import Index
from dygmamba.live.array_file import ArrayWriter, copy_arrays, list_integers, map_arrays, restore_tables
from dygmamba.live.growing_events import GrowingEvents
from dygmamba.ops.growing import Growing
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import PLACEHOLDER_NODES

SHARED_EVENTS = 1 << 18  # replicas of longer streams share a file


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
