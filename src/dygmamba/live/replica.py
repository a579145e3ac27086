"""One of the two replicas of a live state: events, their index and a ranker that follow each other."""

from dataclasses import replace

from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.live.growing_events import AddedEvents, GrowingEvents
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import PLACEHOLDER_NODES
from dygmamba.sampling.live_index import LiveIndex


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
        self._stream = Stream(store, run.stream.split, run.stream.device)
        self._ranker = Ranker(
            run.scorer, self._stream.with_index(self.index), run.seed, tokens, run.rule.batch_size
        )
        self.predictor = predictor
        self.publish(len(store))

    def apply(self, added: AddedEvents) -> None:
        """Add events of any times: those that are later are dropped, and appended again behind them."""
        events, first = self.events, self.events.count
        added = events.translate(added)
        if len(added) and first and added.time[0] < events.time[first - 1]:
            first = events.find_insertion(float(added.time[0]))
            self.index.drop(first)
            added = replace(events.drop(first), categories=events.categories).join(added)
        events.append(added)
        self.index.append(events.build_store(PLACEHOLDER_NODES), first)
        self.publish(first)

    def publish(self, unchanged: int) -> None:
        """Let the predictor answer from the current events, of which the first `unchanged` are the same as before."""
        events, dataset = self.events, self.events.dataset
        store = events.build_store(PLACEHOLDER_NODES)
        self.index.store = store
        stream = Stream(store, self._stream.split, self._stream.device).with_index(self.index)
        self._ranker.follow(stream, unchanged)
        self.predictor = replace(
            self.predictor,
            dataset=Dataset(dataset.name, events.build_store(), events.ids, "", dataset.origin),
            ranker=self._ranker,
        )
