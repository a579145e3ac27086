"""A run in use: its predictor, the state that follows the log, and the thread that applies events to it."""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from dygmamba.core.errors import ConfigError, DygError, FileError, first_line
from dygmamba.core.files.untrusted import describe_file
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import extend_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.live.event_log import LogEvent, LogReader, RunRecord
from dygmamba.live.event_parsing import EventLayout, EventParser, collect_events
from dygmamba.live.state import LiveState
from dygmamba.runs.predictor import Predictor

log = logging.getLogger("dygmamba.live")
REPLAY_SIZE = 1 << 16  # events appended at a time while the log is read again
MAX_PENDING = 100_000  # events on the disk and not yet applied, before appends wait


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run with a state that knows its dataset and the events of the log after the first `base`."""

    record: RunRecord
    predictor: Predictor
    parser: EventParser
    state: LiveState

    @property
    def layout(self) -> EventLayout:
        return self.parser.layout

    @property
    def applied(self) -> int:
        """Sequence number of the last event that the state knows."""
        return self.record.base + self.state.applied

    def append(self, events: list[LogEvent]) -> None:
        self.state.append(collect_events(events, self.layout))

    def replay(self, log: LogReader, until: int) -> None:
        """Append the events of the log that the state does not know yet, up to a sequence number."""
        for events in log.read_events(self.applied, until, REPLAY_SIZE):
            self.append(events)

    def extend_dataset(self, log: LogReader, until: int) -> Dataset:
        """Return the dataset of the run with the events of the log up to a sequence number."""
        known = self.predictor.dataset
        events = [event for some in log.read_events(self.record.base, until) for event in some]
        return extend_dataset(known, collect_events(events, self.layout)) if events else known

    @contextmanager
    def read(self) -> Iterator[tuple[Predictor, int]]:
        """Context manager: a predictor over one consistent state, and the sequence number of its last event."""
        with self.state.read() as predictor:
            added = len(predictor.dataset.store) - len(self.predictor.dataset.store)
            yield predictor, self.record.base + added


def describe_run(predictor: Predictor, base: int, sequence: int) -> RunRecord:
    """Return what the log records about a run."""
    folder, dataset = predictor.run.folder, predictor.dataset
    return RunRecord(
        str(folder.path.absolute()),
        compute_run_digest(folder),
        str(predictor.run.model),
        dataset.name,
        dataset.content,
        base,
        sequence,
    )


def compute_run_digest(folder: RunDirectory) -> str:
    """SHA-256 of the settings and the weights of a run."""
    weights = describe_file(folder.best)["sha256"] if folder.best.exists() else ""
    return hashlib.sha256(f"{folder.fingerprint} {weights}".encode()).hexdigest()


def count_trained_events(served: ServedRun, log: LogReader, dataset: Dataset) -> int:
    """Return how many events of the log are in the dataset of a newer run.

    Raises:
        ConfigError: It is not the dataset of the present run, followed by the next events of the log.
    """
    old, base = served.predictor.dataset, served.record.base
    if dataset.content == old.content:
        return base
    count = len(dataset.store) - len(old.store)
    is_possible = 0 < count <= log.read_sequence() - base
    if is_possible and _has_same_events(served.extend_dataset(log, base + count), dataset):
        return base + count
    raise ConfigError(
        f"the run was trained on {len(dataset.store):,} events that are not those of '{old.name}' and the next ones of "
        "the log; train it on the present dataset, or on `live.data`",
        code="other-dataset",
    )


def _has_same_events(first: Dataset, second: Dataset) -> bool:
    """Return whether both have the same events in the same order, by the user's ids; node numbers may differ."""
    one, two = first.store, second.store
    if len(one) != len(two) or not one.time.equal(two.time) or not one.features.edge.equal(two.features.edge):
        return False
    for nodes, others in ((one.src, two.src), (one.dst, two.dst)):
        ids = (first.ids.to_user(nodes.numpy()), second.ids.to_user(others.numpy()))
        if not ids[0].cast("large_string").equals(ids[1].cast("large_string")):
            return False
    return True


class Applier:
    """Applies events to the run in use, in the order of the log and in a thread of its own."""

    def __init__(self, served: ServedRun) -> None:
        self.lock = threading.Lock()  # held while the state changes, and while the run in use is exchanged
        self._served = served
        self._pending: list[tuple[int, list[LogEvent]]] = []
        self._followed: list[tuple[int, Future[None]]] = []
        self._changed = threading.Condition()
        self._is_closing, self.failure = False, ""
        self._thread = threading.Thread(target=self._run, name="dygmamba-state", daemon=True)
        self._thread.start()

    @property
    def served(self) -> ServedRun:
        return self._served

    def publish(self, first: int, events: list[LogEvent]) -> None:
        """Take events that are on the disk; wait while too many are pending."""
        with self._changed:
            while sum(len(some) for _, some in self._pending) > MAX_PENDING and not self.failure:
                self._changed.wait()
            self._pending.append((first, events))
            self._notify()

    def exchange(self, make: Callable[[ServedRun], ServedRun]) -> None:
        """Replace the run in use, while no event is being applied."""
        with self.lock:
            self._served = make(self._served)
        with self._changed:
            self._notify()

    def require_intact(self) -> None:
        """Raise FileError if the state could not take an event."""
        if self.failure:
            raise FileError(self.failure, code="live-state-failed")

    def follow(self, sequence: int) -> "Future[None]":
        """Return a future that is done when an event is applied; it fails if the state takes no more events."""
        future: Future[None] = Future()
        with self._changed:
            self._followed.append((sequence, future))
            self._notify()
        return future

    def _notify(self) -> None:
        """Wake who waits for a change, which the caller has locked, and finish what is followed up to it."""
        left = []
        for sequence, future in self._followed:
            is_applied = self._served.applied >= sequence
            if not (is_applied or self.failure or future.cancelled()):
                left.append((sequence, future))
            elif future.set_running_or_notify_cancel():
                error = FileError(self.failure, code="live-state-failed")
                future.set_result(None) if is_applied else future.set_exception(error)
        self._followed = left
        self._changed.notify_all()

    def close(self) -> None:
        """Apply what is pending, then end the thread."""
        with self._changed:
            self._is_closing = True
            self._notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._take():
            try:
                with self.lock:
                    self._apply(group)
            except Exception as error:
                why = (
                    str(error)
                    if isinstance(error, DygError)
                    else f"{type(error).__name__}: {first_line(error)}"
                )
                # the message of the error may hold ids, so only its kind is logged
                kind = error.code if isinstance(error, DygError) else type(error).__name__
                log.error("the state takes no more events; restart", extra={"fields": {"error": kind}})
                with self._changed:
                    self.failure = (
                        f"the state could not take an event of the log ({why}); queries go on without it, and all "
                        "acknowledged events are in the log: open the folder again"
                    )
                    self._notify()
                return
            with self._changed:
                self._notify()

    def _take(self) -> list[tuple[int, list[LogEvent]]]:
        with self._changed:
            while not self._pending and not self._is_closing:
                self._changed.wait()
            group, self._pending = self._pending, []
            self._notify()
            return group

    def _apply(self, group: list[tuple[int, list[LogEvent]]]) -> None:
        """Append events that the state does not know: one that was just exchanged may know some already."""
        first, events = group[0][0], [event for _, some in group for event in some]
        known = self._served.applied - first + 1
        if known < len(events):
            self._served.append(events[max(known, 0) :])
