"""Sources of events beside calls of `append`: a file that grows, a recorded stream, a topic of Kafka.

A source yields batches of events, each with the offset to go on from. The offset is written to the log in the same
transaction as the events, so that after a crash no event is lost or taken twice.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from dygmamba.core.clock import SYSTEM_CLOCK, Clock
from dygmamba.core.errors import WriteError
from dygmamba.data.storage.dataset import Dataset

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun
    from dygmamba.live.verdicts import Acknowledgement

Event = dict[str, Any]
BATCH_EVENTS = 1_000
POLL_SECONDS = 0.2  # between looks at a file that has no new lines
RETRY_SECONDS = 5.0  # after a failed write to the log


class SourceBatch(NamedTuple):
    """Events, and the offset after them: any JSON value that the source understands.

    Attributes:
        unreadable: Lines or messages before the offset that are no events.
        warning: Which events before the batch may be lost.
    """

    events: list[Event]
    offset: Any
    unreadable: int = 0
    warning: str = ""


class EventSource(Protocol):
    """A stream of events that can be read again from any offset that it gave."""

    @property
    def name(self) -> str:
        """Name under which the offset is stored; the same after a restart."""
        ...

    def read(self, offset: Any, stop: threading.Event) -> Iterator[SourceBatch]:
        """Yield batches after `offset` (None: from the beginning) until the end, or until `stop` is set."""
        ...


def follow_source(
    live: "LiveRun",
    source: EventSource,
    stop: threading.Event,
    on_batch: "Callable[[SourceBatch, Acknowledgement], None]" = lambda batch, answer: None,
) -> None:
    """Append the events of a source until it ends or `stop` is set; while the disk is full, wait and try again."""
    for batch in source.read(live.offsets.get(source.name), stop):
        while not stop.is_set():
            try:
                answer = live.append(batch.events, source=source.name, offset=batch.offset, wait=False)
            except WriteError:
                stop.wait(RETRY_SECONDS)
                continue
            on_batch(batch, answer)
            break
        if stop.is_set():
            return


class RecordedStream:
    """A dataset as a source: its events in order, with the gaps between them divided by `speed`."""

    def __init__(self, data: Dataset, speed: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.data, self.speed, self._clock = data, speed, clock

    @property
    def name(self) -> str:
        return f"replay:{self.data.content[:16]}"

    def read(self, offset: Any, stop: threading.Event) -> Iterator[SourceBatch]:
        """Yield events when they are due; all that are due at once are a batch."""
        table, first = _as_plain_table(self.data), 0 if offset is None else int(offset)
        if first >= table.num_rows:
            return
        time = self.data.store.time.numpy()
        due, started = (time - time[first]) / self.speed, self._clock.monotonic()
        while first < len(due) and not stop.is_set():
            passed = self._clock.monotonic() - started
            last = min(int(np.searchsorted(due, passed, side="right")), first + BATCH_EVENTS)
            if last > first:
                yield SourceBatch(table.slice(first, last - first).to_pylist(), last)
                first = last
            else:
                stop.wait(min(POLL_SECONDS, float(due[first]) - passed))


def _as_plain_table(data: Dataset) -> pa.Table:
    """Return the events as they were read, without labels; dates as ISO dates, which keep every digit."""
    table = data.to_arrow()
    if "label" in table.column_names:
        table = table.drop_columns(["label"])
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table
