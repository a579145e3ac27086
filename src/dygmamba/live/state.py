"""The state of a live run: a predictor that events are appended to while other threads read it.

There are two replicas of everything. The writer changes the one that nobody reads, publishes it with one assignment,
and makes the same change in the other one as soon as its readers have left. So a reader never waits for a writer, and
it sees the state after some number of whole appends. A writer waits only for readers that stay across two appends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock

import numpy as np

from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.dataset import Dataset
from dygmamba.live.growing_events import AddedEvents, GrowingEvents
from dygmamba.live.node_ids import BaseIds
from dygmamba.live.replica import Replica
from dygmamba.runs.predictor import Predictor


class LiveState:
    """A run and all events known to it; events may be appended at any time and in any order of time.

    Scores equal those of `Predictor.with_events` with all events at once, bit for bit.
    """

    def __init__(self, current: Replica, spare: Replica) -> None:
        self._current, self._spare = current, spare
        self._pending: list[AddedEvents] = []  # changes that the spare replica lacks
        self._writing = Lock()  # held by the one thread that appends
        self._readers = Condition()  # guards the counts of readers and `_current`, for an instant each

    @staticmethod
    def open(predictor: Predictor) -> "LiveState":
        """Return the state of a run with the events of its dataset."""
        require_cpu(predictor)
        base = BaseIds(predictor.dataset.ids)
        return LiveState(*(Replica(predictor, GrowingEvents(predictor.dataset, base)) for _ in range(2)))

    @property
    def applied(self) -> int:
        """Number of events appended since those of the dataset."""
        return self._current.applied

    def append(self, events: Dataset) -> None:
        """Append events of any times; an error about them leaves the state as it was."""
        with self._writing:
            self._check(events)
            added = AddedEvents.from_dataset(events)
            spare = self._spare
            self._catch_up(wait=True)
            spare.apply(added)
            spare.applied += len(added)
            with self._readers:
                self._current, self._spare = spare, self._current
            self._pending.append(added)
            self._catch_up(wait=False)

    def _check(self, events: Dataset) -> None:
        """Raise if the events have other columns, or nodes that the model cannot take."""
        current = self._current
        current.events.check(events)
        if current.predictor.run.scorer.stateful:
            ids, store = current.events.ids, events.store
            src, dst = (events.ids.to_user(column.unique().numpy()) for column in (store.src, store.dst))
            is_new = np.concatenate([ids.to_node(src, "src"), ids.to_node(dst, "dst")]) < 0
            current.predictor.require_known_nodes(int(is_new.sum()))

    def _catch_up(self, wait: bool) -> None:
        """Make the pending changes in the spare replica if nobody reads it, or once nobody does."""
        spare = self._spare
        with self._readers:
            if wait:
                self._readers.wait_for(lambda: not spare.readers)
            elif spare.readers:
                return
        # nobody begins to read it: readers take the current one
        while self._pending:
            added = self._pending[0]
            spare.apply(added)
            spare.applied += len(added)
            self._pending.pop(0)

    @contextmanager
    def read(self) -> Iterator[Predictor]:
        """Context manager: a predictor over one consistent state; not to be used outside."""
        with self.read_replica() as replica:
            yield replica.predictor

    @contextmanager
    def read_replica(self) -> Iterator[Replica]:
        """Context manager: the replica to read; it does not change inside, so `applied` belongs to the predictor."""
        with self._readers:
            replica = self._current
            replica.readers += 1
        try:
            yield replica
        finally:
            with self._readers:
                replica.readers -= 1
                self._readers.notify_all()


def require_cpu(predictor: Predictor) -> None:
    """Raise ConfigError unless the run is on a CPU, where the growing tables are."""
    device = predictor.run.stream.device
    if device.type != "cpu":
        raise ConfigError(f"a live run needs `device='cpu'`; got '{device.type}'", code="live-needs-cpu")
