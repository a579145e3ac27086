"""The state of a live run: a predictor that events are appended to while other threads read it.

There are two replicas of everything. The writer changes the one that nobody reads and publishes it with one assignment.
The other one gets the same change together with the next one, so an append changes one replica. A reader never waits
for a writer, and sees the state after some number of whole appends. A writer waits only for readers that stay across
two appends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock

import numpy as np

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.ids import Side
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents
from dygmamba.live.replica import Replica, open_replicas
from dygmamba.runs.predictor import Predictor

SIDES: tuple[Side, Side] = ("src", "dst")


class LiveState:
    """A run and all events known to it; events may be appended at any time and in any order of time.

    Scores equal those of `Predictor.with_events` with all events at once, bit for bit.
    """

    def __init__(self, current: Replica, spare: Replica) -> None:
        self._current, self._spare = current, spare
        self._is_spare_broken = False  # a change of it failed half-way
        self._pending: list[AddedEvents] = []  # changes that the spare replica lacks
        self._writing = Lock()  # held by the one thread that appends
        self._readers = Condition()  # guards the counts of readers and `_current`, for an instant each

    @staticmethod
    def open(predictor: Predictor) -> "LiveState":
        """Return the state of a run with the events of its dataset."""
        require_live_support(predictor)
        return LiveState(*open_replicas(predictor, 2))

    @property
    def applied(self) -> int:
        """Number of events appended since those of the dataset."""
        return self._current.applied

    def append(self, events: Dataset | AddedEvents) -> None:
        """Append events of any times; an error about them leaves the state as it was."""
        added = AddedEvents.from_dataset(events) if isinstance(events, Dataset) else events
        with self._writing:
            self._check(added)
            if self._is_spare_broken:  # only this thread may change the current one, so that it can be copied
                self._spare, self._pending = self._current.copy(), []
            spare = self._spare
            with self._readers:  # nobody begins to read the spare one
                self._readers.wait_for(lambda: not spare.readers)
            self._is_spare_broken = True
            spare.apply([*self._pending, added])
            self._is_spare_broken = False
            with self._readers:
                self._current, self._spare = spare, self._current
            self._pending = [added]

    def _check(self, events: AddedEvents) -> None:
        """Raise if the events have other columns, or nodes that the model cannot take."""
        current = self._current
        events.require_columns_of(current.events.dataset)
        if current.predictor.run.scorer.stateful:
            ids = current.events.ids
            ends = (list(dict.fromkeys(column)) for column in (events.src, events.dst))
            is_new = [ids.to_node(column, side) < 0 for column, side in zip(ends, SIDES, strict=True)]
            current.predictor.require_known_nodes(int(np.concatenate(is_new).sum()))

    @contextmanager
    def read(self) -> Iterator[Predictor]:
        """Context manager: a predictor over one consistent state; not to be used outside."""
        with self._readers:
            replica = self._current
            replica.readers += 1
        try:
            yield replica.predictor
        finally:
            with self._readers:
                replica.readers -= 1
                self._readers.notify_all()


def require_live_support(predictor: Predictor) -> None:
    """Raise ConfigError unless the run is on a CPU, where the growing tables are, and reads no labels."""
    if predictor.run.shown is not None:
        raise ConfigError(
            "a model that reads the labels of earlier events cannot follow live events, which have none; train one "
            "that does not",
            code="live-reads-labels",
        )
    device = predictor.run.stream.device
    if device.type != "cpu":
        raise ConfigError(f"a live run needs `device='cpu'`; got '{device.type}'", code="live-needs-cpu")
