"""The state of a live run: a predictor that events are appended to while other threads read it.

There are two replicas of everything. The writer changes the one that nobody reads and publishes it with one assignment.
The other one gets the same change together with the next one, so an append changes one replica. A reader never waits
for a writer, and sees the state after some number of whole appends. A writer waits only for readers that stay across
two appends.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from threading import Condition, Lock
from typing import Any

import numpy as np

from dygmamba.core.errors import ConfigError, FileError, first_line, make_unreadable_error
from dygmamba.core.files.writing import create_anonymous_file
from dygmamba.data.events.categories import Category
from dygmamba.data.events.ids import IdIndex, Side
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents
from dygmamba.live.growing_events import GrowingEvents
from dygmamba.live.replica import Replica, SavedState
from dygmamba.live.state_files import (
    ArrayWriter,
    copy_arrays,
    map_arrays,
    read_description,
    write_state,
)
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import PLACEHOLDER_NODES
from dygmamba.sampling.live_index import LiveIndex

SIDES: tuple[Side, Side] = ("src", "dst")
SHARED_EVENTS = 1 << 18  # replicas of longer streams share a file


class LiveState:
    """A run and all events known to it; events may be appended at any time and in any order of time.

    Scores equal those of `Predictor.with_events` with all events at once, bit for bit.
    """

    def __init__(self, predictor: Predictor, base_ids: IdIndex, current: Replica, spare: Replica) -> None:
        self._opened = predictor, base_ids
        self._current, self._spare = current, spare
        self._is_spare_broken = False  # a change of it failed half-way
        self._pending: list[AddedEvents] = []  # changes that the spare replica lacks
        self._writing = Lock()  # held by the one thread that appends
        self._readers = Condition()  # guards the counts of readers and `_current`, for an instant each

    @staticmethod
    def open(predictor: Predictor) -> "LiveState":
        """Return the state of a run with the events of its dataset."""
        require_live_support(predictor)
        base = IdIndex(predictor.dataset.ids)
        if len(predictor.dataset.store) < SHARED_EVENTS:
            first = Replica(predictor, GrowingEvents(predictor.dataset, base))
            second = Replica.restore(predictor, base, copy_arrays(first.tables), first.describe())
            return LiveState(predictor, base, first, second)
        handle = create_anonymous_file(Path(gettempdir()))
        try:
            writer = ArrayWriter(handle, Path(gettempdir()))
            about = _build_tables(predictor, base, writer).describe()
            maps = (map_arrays(handle, writer.layout) for _ in range(2))
            return LiveState(
                predictor, base, *(Replica.restore(predictor, base, arrays, about) for arrays in maps)
            )
        finally:
            os.close(handle)

    @staticmethod
    def build(predictor: Predictor, folder: Path) -> None:
        """Write the state of a run with the events of its dataset to a folder, to be loaded; one table is in memory."""
        require_live_support(predictor)
        with write_state(folder) as (writer, finish):
            replica = _build_tables(predictor, IdIndex(predictor.dataset.ids), writer)
            finish(replica.tables, _describe_replica(replica))

    @staticmethod
    def load(predictor: Predictor, folder: Path) -> "LiveState":
        """Return a state that `save` wrote, of the same run; its arrays are mapped, not read.

        Raises:
            FileError: There is none, it is damaged, or it belongs to another run or dataset.
        """
        require_live_support(predictor)
        facts = read_description(folder)
        base = IdIndex(predictor.dataset.ids)
        try:
            saved = facts["about"]
            if saved["dataset"] != predictor.dataset.digest:
                raise ValueError("its dataset is another one")
            categories = tuple(Category(name, tuple(values)) for name, values in saved["categories"])
            new_ids = [(key, side) for key, side in saved["new_ids"]]
            about = SavedState(facts["integers"], saved["applied"], new_ids, categories)
            with open(folder / facts["file"], "rb") as file:
                maps = [map_arrays(file.fileno(), facts["arrays"]) for _ in range(2)]
            replicas = (Replica.restore(predictor, base, arrays, about) for arrays in maps)
            return LiveState(predictor, base, *replicas)
        except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{folder} is no state of {predictor.run.folder.path} ({first_line(error)}); delete it, so that it is "
                "built again",
                code="damaged-state",
            ) from error
        except OSError as error:  # not damaged: no memory left, or no permission
            raise make_unreadable_error(folder, error) from error

    def save(self, folder: Path) -> int:
        """Write the state to a folder; return how many appended events it has.

        Reading goes on. So does one append; later ones wait until the state is written.
        """
        with self.read_replica() as replica, write_state(folder) as (_, finish):
            finish(replica.tables, _describe_replica(replica))
            return replica.applied

    @property
    def applied(self) -> int:
        """Number of events appended since those of the dataset."""
        return self._current.applied

    def append(self, events: Dataset | AddedEvents) -> None:
        """Append events of any times; an error about them leaves the state as it was."""
        added = AddedEvents.from_dataset(events) if isinstance(events, Dataset) else events
        with self._writing:
            self._check(added)
            if self._is_spare_broken:
                self._copy_current()
            spare = self._spare
            with self._readers:  # nobody begins to read the spare one
                self._readers.wait_for(lambda: not spare.readers)
            self._is_spare_broken = True
            spare.apply([*self._pending, added])
            self._is_spare_broken = False
            with self._readers:
                self._current, self._spare = spare, self._current
            self._pending = [added]

    def _copy_current(self) -> None:
        """Replace the spare replica by a copy of the current one, which only this thread may change."""
        current = self._current
        arrays = copy_arrays(current.tables)
        self._spare = Replica.restore(*self._opened, arrays, current.describe())
        self._pending, self._is_spare_broken = [], False

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


def _build_tables(predictor: Predictor, base_ids: IdIndex, writer: ArrayWriter) -> Replica:
    """Return a replica with the events of the dataset; each table is moved to the file when it is complete."""
    events = GrowingEvents(predictor.dataset, base_ids)
    index = LiveIndex(events.build_store(PLACEHOLDER_NODES))
    tables = {"events": events, "index": index}
    writer.move(tables)
    for request in predictor.run.scorer.requests:
        index.store = events.build_store(PLACEHOLDER_NODES)  # of the columns in the file
        index.prepare((request,))
        writer.move(tables)
    return Replica(predictor, events, index)


def _describe_replica(replica: Replica) -> dict[str, Any]:
    about = replica.describe()
    return {
        "dataset": replica.events.dataset.digest,
        "applied": about.applied,
        "new_ids": about.new_ids,
        "categories": [(part.name, part.values) for part in about.categories],
    }


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
