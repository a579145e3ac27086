"""Sources of events beside calls of `append`: a file that grows, a recorded stream, a topic of Kafka.

A source yields batches of events, each with the offset to go on from. The offset is written to the log in the same
transaction as the events, so that after a crash no event is lost or taken twice.
"""

import csv
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from dygmamba.core.clock import SYSTEM_CLOCK, Clock
from dygmamba.core.errors import FileError, WriteError, make_unreadable_error
from dygmamba.data.storage.dataset import Dataset

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun
    from dygmamba.live.verdicts import Acknowledgement

Event = dict[str, Any]
BATCH_EVENTS = 1_000
POLL_SECONDS = 0.2  # between looks at a file that has no new lines
HEAD_BYTES = 1_024  # by which a file is recognized
MAX_LINE_BYTES = 1 << 20
RETRY_SECONDS = 5.0  # after a failed write to the log
CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}


class SourceBatch(NamedTuple):
    """Events, and the offset after them: any JSON value that the source understands."""

    events: list[Event]
    offset: Any


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
    on_batch: "Callable[[Sequence[Event], Acknowledgement], None]" = lambda events, answer: None,
) -> None:
    """Append the events of a source until it ends or `stop` is set; while the disk is full, wait and try again."""
    for batch in source.read(live.offsets.get(source.name), stop):
        while not stop.is_set():
            try:
                answer = live.append(batch.events, source=source.name, offset=batch.offset, wait=False)
            except WriteError:
                stop.wait(RETRY_SECONDS)
                continue
            on_batch(batch.events, answer)
            break
        if stop.is_set():
            return


class GrowingFile:
    """Lines that other programs add to a file: JSON objects, or CSV below a header (.csv, .tsv).

    Only complete lines are read. A line that is not an event is left out and counted in `bad_lines`. A file that is
    replaced by another one, as log rotation does, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.bad_lines = path, 0
        self._delimiter = CSV_SUFFIXES.get(path.suffix.lower())

    @property
    def name(self) -> str:
        return f"file:{self.path.absolute()}"

    def read(self, offset: Any, stop: threading.Event) -> Iterator[SourceBatch]:
        """Yield the lines after an offset, and those that are added later.

        Raises:
            FileError: The file cannot be read, or became shorter.
        """
        while not stop.is_set():
            try:
                file = self.path.open("rb")
            except FileNotFoundError:  # not written yet, or just being replaced
                stop.wait(POLL_SECONDS)
                continue
            except OSError as error:
                raise make_unreadable_error(self.path, error) from error
            with file:
                yield from self._read_file(file, self._find_start(file, offset), stop)
            offset = None  # the next file of this name

    def _find_start(self, file: IO[bytes], offset: Any) -> int:
        """Return the position to go on from: 0 unless this is the file that the offset is about."""
        if offset is None or offset["head"] != _hash_head(file, offset["position"]):
            return 0
        if os.fstat(file.fileno()).st_size < offset["position"]:
            raise self._cut_error()
        return offset["position"]

    def _read_file(self, file: IO[bytes], start: int, stop: threading.Event) -> Iterator[SourceBatch]:
        names = self._read_names(file, stop)
        position = max(start, file.tell())
        while not stop.is_set():
            file.seek(position)
            lines = _read_lines(file)
            if lines:
                position += sum(map(len, lines))
                events = [event for line in lines if (event := self._parse(line, names)) is not None]
                yield SourceBatch(events, {"position": position, "head": _hash_head(file, position)})
                continue
            if os.fstat(file.fileno()).st_size < position:
                raise self._cut_error()
            if self._is_replaced(file):
                return
            stop.wait(POLL_SECONDS)

    def _read_names(self, file: IO[bytes], stop: threading.Event) -> list[str]:
        """Return the names in the header of a CSV file, and leave the file behind it."""
        while self._delimiter is not None and not stop.is_set():
            file.seek(0)
            if lines := _read_lines(file, 1):
                file.seek(len(lines[0]))
                text = lines[0].decode("utf-8-sig", "replace").strip("\r\n")
                return [name.strip() for name in next(csv.reader([text], delimiter=self._delimiter), [])]
            stop.wait(POLL_SECONDS)
        file.seek(0)
        return []

    def _parse(self, line: bytes, names: list[str]) -> Event | None:
        try:
            text = line.decode("utf-8").strip()
            if not text:
                return None
            if self._delimiter is None:
                event = json.loads(text)
            else:
                event = dict(zip(names, next(csv.reader([text], delimiter=self._delimiter)), strict=True))
            if isinstance(event, dict):
                return event
        except (ValueError, RecursionError, csv.Error):
            pass
        self.bad_lines += 1
        return None

    def _is_replaced(self, file: IO[bytes]) -> bool:
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(file.fileno()))
        except OSError:
            return False

    def _cut_error(self) -> FileError:
        return FileError(
            f"{self.path} became shorter than what was read of it; append to it only, or replace it by another file",
            code="source-cut",
        )


def _read_lines(file: IO[bytes], most: int = BATCH_EVENTS) -> list[bytes]:
    """Return complete lines from the present position; a line that is too long counts as one, and cannot be parsed."""
    lines = []
    while len(lines) < most:
        line = file.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            break
        lines.append(line)
    return lines


def _hash_head(file: IO[bytes], position: int) -> str:
    place = file.tell()
    file.seek(0)
    head = file.read(min(HEAD_BYTES, position))
    file.seek(place)
    return hashlib.sha256(head).hexdigest()


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
