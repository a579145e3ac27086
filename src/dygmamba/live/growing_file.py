"""A file that grows as a source of events, also while it is rotated.

Rotation renames the file and begins a new one, or copies it and empties it. So a file is recognized by its content: the
bytes at its head and those before the position. Rotated files are searched beside it.
"""

import csv
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from dygmamba.core.errors import make_unreadable_error
from dygmamba.live.event_sources import POLL_SECONDS, Event, SourceBatch

MARK_BYTES = 1_024  # at the head and before the position, by which a file is recognized
CHUNK_BYTES = 1 << 17
MAX_LINE_BYTES = 1 << 20
QUIET_SECONDS = 1.0  # without a change, after which nobody writes to a rotated file any more
UNFINISHED_SECONDS = 10.0  # without a change, after which a last row of CSV needs no line end
CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}
LOST = (
    "{path} was emptied or replaced, and the file that was read last is not beside it, so that lines may be lost; "
    "keep the newest rotated file there, without compression"
)


class ListedFile(NamedTuple):
    """The file or a rotated one; they sort by their last change, of the same moment by the number at the end."""

    changed: int
    order: int
    path: Path
    stat: os.stat_result


class OpenFile:
    """An open file, how far it was read, and the names of its columns if it is CSV."""

    def __init__(self, file: IO[bytes], names: list[str] | None = None) -> None:
        self.file, self.names = file, names or []
        self.position, self._head, self._tail = 0, b"", b""

    def advance(self, data: bytes) -> None:
        """Go on behind bytes that were read."""
        self.position += len(data)
        self._head, self._tail = (self._head + data)[:MARK_BYTES], (self._tail + data)[-MARK_BYTES:]

    def move_to(self, position: int) -> None:
        """Go on from a position of an earlier reader."""
        self.position, start = position, max(0, position - MARK_BYTES)
        self._head, self._tail = self._read(0, min(MARK_BYTES, position)), self._read(start, position - start)

    def describe(self) -> dict[str, Any]:
        """Return the offset, by which the file is found again."""
        marks = {"head": _hash(self._head), "tail": _hash(self._tail)}
        return {"position": self.position, **marks, **({"names": self.names} if self.names else {})}

    def is_intact(self) -> bool:
        """Return whether what was read is still there."""
        return self._read(self.position - len(self._tail), len(self._tail)) == self._tail

    def is_unchanged_for(self, seconds: float) -> bool:
        # a clock that was set back must not make this wait
        return abs(time.time() - self.stat.st_mtime) > seconds

    @property
    def stat(self) -> os.stat_result:
        return os.fstat(self.file.fileno())

    def read_lines(self) -> tuple[list[bytes], bytes]:
        """Return complete lines after the position, and what follows the last of them; of a long line, a part."""
        data = self._read(self.position, CHUNK_BYTES)
        if len(data) == CHUNK_BYTES and b"\n" not in data:
            data = self._read(self.position, MAX_LINE_BYTES)
        *lines, rest = data.split(b"\n")
        if not lines and len(rest) == MAX_LINE_BYTES:  # cannot be parsed, and is counted
            return [rest], b""
        return [line + b"\n" for line in lines], rest

    def read_header(self) -> bytes:
        return self._read(0, MAX_LINE_BYTES).partition(b"\n")[0]

    def _read(self, start: int, most: int) -> bytes:
        self.file.seek(start)
        return self.file.read(most)


class GrowingFile:
    """Lines that other programs add to a file: JSON objects, or CSV below a header (.csv, .tsv).

    A rotated file is read to its end, then those that were rotated since, then the file itself from its start. The last
    line needs no end: JSON is taken when it is complete, CSV when nothing is added any more.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._delimiter = CSV_SUFFIXES.get(path.suffix.lower())
        self._rotated = re.compile(rf"{re.escape(path.name)}[.-](\d[\dT:._-]*)")

    @property
    def name(self) -> str:
        return f"file:{self.path.absolute()}"

    def read(self, offset: Any, stop: threading.Event) -> Iterator[SourceBatch]:
        """Yield the lines after an offset, and those that are added later.

        Raises:
            FileError: The file cannot be read.
        """
        reading = None if offset is None else self._find_again(offset)
        is_lost, names = offset is not None and reading is None, (offset or {}).get("names", [])
        # kept open, so that no other file gets its inode number
        previous = None if reading is not None and reading.position else self._open_newest()
        try:
            while not stop.is_set():
                if (reading := reading or self._open_next(previous, names)) is None:  # not written yet
                    stop.wait(POLL_SECONDS)
                    continue
                if is_lost:
                    yield SourceBatch([], reading.describe(), warning=LOST.format(path=self.path))
                    is_lost = False
                is_read = yield from self._read_file(reading, previous, stop)
                names = reading.names
                if is_read:
                    _close(previous)
                    previous, reading = reading, None
                elif not stop.is_set():
                    offset = reading.describe()
                    _close(reading)
                    reading = self._find_again(offset) if offset["position"] else None
                    if is_lost := bool(offset["position"]) and reading is None:
                        _close(previous)
                        previous = self._open_newest()
        finally:
            _close(previous)
            _close(reading)

    def _read_file(
        self, reading: OpenFile, previous: OpenFile | None, stop: threading.Event
    ) -> Generator[SourceBatch, None, bool]:
        """Yield the lines of a file until it was rotated and is read (returns True), or until it was emptied."""
        while not stop.is_set():
            lines, rest = reading.read_lines()
            if is_finished := not lines and self._is_finished(reading):
                lines, rest = reading.read_lines()  # some may have been added before its writer turned
            if not lines and rest and (is_finished or self._is_complete(reading, rest)):
                lines = [rest]
            # asked last: the lines may be those of another content
            if not self._is_intact(reading, previous):
                return False
            if lines:
                data = b"".join(lines)
                if self._delimiter is not None and reading.position == 0:
                    lines = self._take_header(reading, lines)
                found = [self._parse(line, reading.names) for line in lines if line.strip(b"\0 \t\r\n")]
                events = [event for event in found if event is not None]
                reading.advance(data)
                yield SourceBatch(events, reading.describe(), len(found) - len(events))
            elif is_finished:
                return True
            else:
                stop.wait(POLL_SECONDS)
        return False

    def _is_intact(self, reading: OpenFile, previous: OpenFile | None) -> bool:
        """Return whether what was read of a file is still there; before that, whether no copy of it must come first."""
        if reading.position:
            return reading.is_intact()
        following = self._list_following(previous)
        return not following or os.path.samestat(following[0].stat, reading.stat)

    def _is_finished(self, reading: OpenFile) -> bool:
        """Return whether a file was rotated, and its writer has turned to the next one."""
        try:
            if os.path.samestat(self.path.stat(), reading.stat):
                return False
        except OSError:
            pass
        following = self._list_following(reading)
        is_begun = len(following) > 1 or any(one.stat.st_size for one in following)
        return is_begun and reading.is_unchanged_for(QUIET_SECONDS)

    def _is_complete(self, reading: OpenFile, rest: bytes) -> bool:
        """Return whether a line without an end is an event: no part of a JSON object is an object, but a row may be."""
        if self._delimiter is not None and (
            reading.position == 0 or not reading.is_unchanged_for(UNFINISHED_SECONDS)
        ):
            return False
        return self._parse(rest, reading.names) is not None

    def _take_header(self, reading: OpenFile, lines: list[bytes]) -> list[bytes]:
        """Read the names in the first line; a file that was emptied goes on without a header, under the old names."""
        names = self._split_names(lines[0])
        if reading.names and not set(names) & set(reading.names):
            return lines
        reading.names = names
        return lines[1:]

    def _split_names(self, line: bytes) -> list[str]:
        text = line.decode("utf-8-sig", "replace").strip("\r\n")
        return [name.strip() for name in next(csv.reader([text], delimiter=self._delimiter or ","), [])]

    def _parse(self, line: bytes, names: list[str]) -> Event | None:
        try:
            text = line.decode("utf-8").strip("\0 \t\r\n")  # zeros: written behind the end of an emptied file
            if self._delimiter is None:
                event = json.loads(text)
            else:
                event = dict(zip(names, next(csv.reader([text], delimiter=self._delimiter)), strict=True))
            return event if isinstance(event, dict) else None
        except (ValueError, RecursionError, csv.Error):
            return None

    def _find_again(self, offset: Any) -> OpenFile | None:
        """Return the file that an offset is about: the present one, one that it was renamed to, or a copy."""
        files = self._list_files()
        for listed in reversed(files):
            if (found := self._open(listed.path)) is None:
                continue
            found.move_to(offset["position"])
            known = found.describe() if found.stat.st_size >= offset["position"] else {}
            if all(known.get(key) == offset[key] for key in ("head", "tail") if key in offset):
                found.names = offset.get("names") or (
                    self._split_names(found.read_header()) if self._delimiter else []
                )
                return found
            _close(found)
        # it may have got a name meanwhile that was not in the list
        if [(one.path, one.stat.st_ino) for one in files] != [
            (one.path, one.stat.st_ino) for one in self._list_files()
        ]:
            return self._find_again(offset)
        return None

    def _open_next(self, previous: OpenFile | None, names: list[str]) -> OpenFile | None:
        following = self._list_following(previous)
        found = self._open(following[0].path, names) if following else None
        if found is not None and not os.path.samestat(found.stat, following[0].stat):  # renamed meanwhile
            _close(found)
            return None
        return found

    def _open_newest(self) -> OpenFile | None:
        """Open the newest of the files that were rotated before, which are not read."""
        rotated = [one for one in self._list_files() if one.path != self.path]
        return self._open(rotated[-1].path) if rotated else None

    def _list_following(self, previous: OpenFile | None) -> list[ListedFile]:
        """Return the files that were begun after one, the oldest first."""
        files = self._list_files()
        if previous is None:
            return files
        for place, one in enumerate(files):
            if os.path.samestat(one.stat, previous.stat):
                return files[place + 1 :]
        return [one for one in files if one.changed > previous.stat.st_mtime_ns or one.path == self.path]

    def _list_files(self) -> list[ListedFile]:
        """Return the rotated files, the oldest first, and the present one; again, while names are changing."""
        found = self._scan()
        while (again := self._scan()).keys() != found.keys():
            found = again
        return sorted(found.values(), key=lambda one: (one.path == self.path, *one[:3]))

    def _scan(self) -> dict[tuple[str, int], ListedFile]:
        found: dict[tuple[str, int], ListedFile] = {}
        try:
            names = os.listdir(self.path.parent)
        except OSError:  # files in a folder that may not be listed can be opened by name
            names = [self.path.name]
        for name in names:
            match = self._rotated.fullmatch(name)
            if match is None and name != self.path.name:
                continue
            path, digits = self.path.with_name(name), match[1] if match else ""
            try:
                stat = path.stat()
            except OSError:  # not written yet, or renamed meanwhile
                continue
            # numbers grow with age, dates do not
            order = -int(digits) if digits.isdigit() and len(digits) < 5 else 0
            found[name, stat.st_ino] = ListedFile(stat.st_mtime_ns, order, path, stat)
        return found

    def _open(self, path: Path, names: list[str] | None = None) -> OpenFile | None:
        try:
            # without a buffer, which would show bytes that are no longer there
            return OpenFile(path.open("rb", buffering=0), names)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise make_unreadable_error(path, error) from error


def _close(opened: OpenFile | None) -> None:
    if opened is not None:
        opened.file.close()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
