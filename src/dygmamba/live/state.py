"""The state of a live run: a predictor that events are appended to while it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import extend_dataset
from dygmamba.runs.predictor import Predictor, build_ranker


class LiveState:
    """A run and all events known to it; events may be appended at any time and in any order of time."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.applied = 0  # events appended since the dataset's own

    @staticmethod
    def open(predictor: Predictor) -> "LiveState":
        """Return the state of a run with the events of its dataset."""
        return LiveState(predictor)

    def append(self, events: Dataset) -> None:
        """Append events of any times; an error leaves the state as it was."""
        known = self._predictor
        dataset = extend_dataset(known.dataset, events)
        known.require_known_nodes(dataset.store.num_nodes - known.dataset.store.num_nodes)
        ranker = build_ranker(known.run, dataset, known.ranker.stream_scorer.tokens)
        self._predictor = replace(known, dataset=dataset, ranker=ranker)
        self.applied += len(events)

    @contextmanager
    def read(self) -> Iterator[Predictor]:
        """Context manager: a predictor over one consistent state."""
        yield self._predictor
