"""One of the two replicas of a live state: events, their index and a ranker, kept consistent with each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from dygmamba.data.events.categories import Category
from dygmamba.data.events.ids import IdIndex, Key, Side
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.live.growing_events import GrowingEvents
from dygmamba.live.state_files import list_integers, restore_tables
from dygmamba.ops.growing import Growing
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import PLACEHOLDER_NODES
from dygmamba.sampling.live_index import LiveIndex


@dataclass(frozen=True, slots=True)
class SavedState:
    """Counters, ids and categories of a replica, saved beside its arrays."""

    integers: Mapping[str, int]
    applied: int
    new_ids: Sequence[tuple[Key, Side]]  # id and side of each node that the dataset does not have
    categories: tuple[Category, ...]


class Replica:
    """A predictor over growing events; only one thread may change it, and only while nobody reads it.

    Attributes:
        predictor: Answers queries; valid until the next change.
        applied: Number of events added since those of the dataset.
        readers: Number of threads that read it; counted by the state.
    """

    def __init__(self, predictor: Predictor, events: GrowingEvents, index: LiveIndex | None = None) -> None:
        self.events, self.applied, self.readers = events, 0, 0
        run, tokens = predictor.run, predictor.ranker.stream_scorer.tokens
        store = events.build_store(PLACEHOLDER_NODES)
        self.index = LiveIndex(store).prepare(run.scorer.requests) if index is None else index
        self.index.store = store
        self._stream = Stream(store, run.stream.split, run.stream.device)
        self._ranker = Ranker(
            run.scorer, self._stream.with_index(self.index), run.seed, tokens, run.rule.batch_size
        )
        self.predictor = predictor
        self.publish(len(store))

    @property
    def tables(self) -> dict[str, Growing]:
        """Everything that is saved as arrays."""
        return {"events": self.events, "index": self.index}

    @staticmethod
    def restore(
        predictor: Predictor, base_ids: IdIndex, arrays: Mapping[str, np.ndarray], about: "SavedState"
    ) -> "Replica":
        """Return a replica with saved arrays; raise ValueError if they are not those of the run."""
        events = GrowingEvents(predictor.dataset, base_ids, events=0)
        index = LiveIndex(events.build_store(PLACEHOLDER_NODES)).prepare(predictor.run.scorer.requests)
        restore_tables({"events": events, "index": index}, arrays, about.integers)
        events.ids.restore(about.new_ids)
        events.categories = about.categories
        replica = Replica(predictor, events, index)
        replica.applied = about.applied
        return replica

    def describe(self) -> "SavedState":
        """Return what belongs to the arrays."""
        events = self.events
        return SavedState(list_integers(self.tables), self.applied, events.ids.new, events.categories)

    def apply(self, changes: Sequence[AddedEvents]) -> None:
        """Add events of any times, given in the order of their arrival.

        Events that are later than the earliest of them are dropped, and appended again behind it.
        """
        events, first = self.events, self.events.count
        added = reduce(AddedEvents.join, [events.translate(change) for change in changes])
        self.applied += len(added)
        if len(added) and first and added.time[0] < events.time[first - 1]:
            first = events.find_insertion(float(added.time[0]))
            self.index.drop(first)
            added = events.drop(first).join(added)
        events.append(added)
        self.index.append(events.build_store(PLACEHOLDER_NODES), first)
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
