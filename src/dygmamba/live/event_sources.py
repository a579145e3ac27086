"""Sources of events beside calls of `append`: a file that grows, a topic of Kafka.

A source yields batches of events, each with the offset to go on from. The offset is written to the log in the same
transaction as the events, so that after a crash no event is lost or taken twice.
"""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dygmamba.core.errors import WriteError

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
