"""The durable log of events: a SQLite database in WAL mode, synchronous=FULL.

One thread writes, and a transaction is the unit of acknowledgement: an event is acknowledged after its transaction is
on the disk, never before. Events are stored as the state reads them: ids as text, time as a 64-bit float, columns as
JSON of 32-bit floats and category names. So reading the log again needs no parsing of dates or spellings, and gives the
same bits. Each row has a checksum, because SQLite does not notice a flipped bit in a value.
"""

import errno
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dygmamba.core.errors import ConfigError, FileError, WriteError, first_line, make_unreadable_error
from dygmamba.core.files.writing import make_folder

LOG_FILE = "events.sqlite"
MAX_IDS_PER_QUERY = 500  # SQLite takes 999 parameters in its oldest configuration
MAX_CHECKED_BYTES = 1 << 28  # a larger log is not read as a whole when it is opened; `live check` does that
CACHE_KIB = 64 * 1024  # of the writing connection: ids of events are looked up at random
APPLICATION_ID = 0x44796756  # "DygV", in the header of the file
LOG_VERSION = 1

SCHEMA = """
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    src TEXT NOT NULL,
    dst TEXT NOT NULL,
    time REAL NOT NULL,
    columns TEXT,
    received REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE set_aside (
    number INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    src TEXT NOT NULL,
    dst TEXT NOT NULL,
    time REAL NOT NULL,
    columns TEXT,
    received REAL NOT NULL,
    latest REAL NOT NULL
);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    digest TEXT NOT NULL,
    model TEXT NOT NULL,
    dataset TEXT NOT NULL,
    content TEXT NOT NULL,
    base INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    opened REAL NOT NULL
);
CREATE TABLE offsets (source TEXT PRIMARY KEY, offset TEXT NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class LogEvent(NamedTuple):
    """An event as the log stores it; `columns` is JSON, see `encode_columns`, or None if the stream has none."""

    id: str | None
    src: str
    dst: str
    time: float
    columns: str | None = None


class RunRecord(NamedTuple):
    """A run that used this log: `base` events of the log are in its dataset, the next one is the first it observes."""

    path: str
    digest: str  # of settings and weights
    model: str
    dataset: str
    content: str  # digest of the events and ids of its dataset
    base: int
    sequence: int  # of the log when the run was first used


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of a log when it is opened: whether it had been closed, and what SQLite recovered of its journal."""

    was_closed: bool
    recovered_frames: int = 0
    is_writable: bool = True  # else the disk is full or failing, and an append tries again

    def describe(self) -> str:
        if not self.is_writable:
            return "cannot be written, so that no event is accepted until it can be"
        if self.was_closed:
            return "closed properly"
        return f"not closed by its last process; {self.recovered_frames} pages recovered from the journal"


class EventLog:
    """The writing connection of a log; for one thread at a time, whose owner holds the lock of the folder.

    A log that exists is also opened if the disk is full: its events can be read, and each transaction tries again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_FILE
        make_folder(folder)
        was_closed = not _has_journal(self.path)
        self._connection: sqlite3.Connection | None = None
        try:
            with translate_sqlite_errors(self.path):
                connection = self._connect()
                frames = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        except WriteError as error:
            self._discard()
            try:
                with LogReader(folder) as reader:
                    self.sequence = reader.read_sequence()
            except FileError:
                raise error from None
            self.recovery = Recovery(was_closed, is_writable=False)
            return
        self.recovery = Recovery(was_closed, 0 if was_closed else max(frames, 0))
        if not was_closed and self.path.stat().st_size <= MAX_CHECKED_BYTES:
            check_pages(connection, self.path, "quick_check")
        self.sequence = int(connection.execute("SELECT coalesce(max(sequence), 0) FROM events").fetchone()[0])

    def _connect(self) -> sqlite3.Connection:
        """Return the open connection, or open one: after an error of the disk the old one was closed."""
        if self._connection is not None:
            return self._connection
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")  # of macOS; others flush the drive's cache anyway
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            create_tables(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Context manager: changes are one transaction, which is on the disk after an exit without an error.

        Raises:
            WriteError: The disk is full or failing; nothing was acknowledged, and the next transaction tries again.
        """
        sequence = self.sequence
        try:
            with translate_sqlite_errors(self.path):
                connection = self._connect()
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except BaseException:
            self.sequence = sequence
            self._discard()
            raise

    def _discard(self) -> None:
        """Roll back, and drop the connection: after a failed write its view of the journal is not to be trusted."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with closing(connection):
                try:
                    connection.rollback()
                except sqlite3.Error:
                    return

    def append(
        self, connection: sqlite3.Connection, events: Sequence[LogEvent], received: float
    ) -> Iterable[int]:
        """Insert events with the next sequence numbers, inside `transaction`; return the numbers."""
        numbers = range(self.sequence + 1, self.sequence + 1 + len(events))
        connection.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (number, *event, received, checksum_event(number, event))
                for number, event in zip(numbers, events, strict=True)
            ],
        )
        self.sequence += len(events)
        return numbers

    @staticmethod
    def set_aside(connection: sqlite3.Connection, event: LogEvent, received: float, latest: float) -> None:
        """Keep an event that is late or ahead, once for each id; `latest` is the watermark then."""
        connection.execute(
            "INSERT OR IGNORE INTO set_aside (id, src, dst, time, columns, received, latest) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*event, received, latest),
        )

    @staticmethod
    def read_set_aside(connection: sqlite3.Connection) -> dict[int, LogEvent]:
        """Return the events that were set aside by their numbers, inside `transaction`."""
        rows = connection.execute("SELECT number, id, src, dst, time, columns FROM set_aside ORDER BY number")
        return {number: LogEvent(*event) for number, *event in rows}

    @staticmethod
    def drop_set_aside(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
        connection.executemany("DELETE FROM set_aside WHERE number = ?", [(number,) for number in numbers])

    @staticmethod
    def find_ids(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
        """Return the sequence of each of these event ids that the log holds."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), MAX_IDS_PER_QUERY):
            some = ids[start : start + MAX_IDS_PER_QUERY]
            marks = ", ".join("?" * len(some))
            found |= dict(
                connection.execute(f"SELECT id, sequence FROM events WHERE id IN ({marks})", some).fetchall()
            )
        return found

    @staticmethod
    def write_offset(connection: sqlite3.Connection, source: str, offset: str) -> None:
        """Record how far a source of events was read, as JSON, in the transaction of its events."""
        connection.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?)", (source, offset))

    @staticmethod
    def write_meta(connection: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(key, json.dumps(value)) for key, value in facts.items()],
        )

    @staticmethod
    def write_run(connection: sqlite3.Connection, run: RunRecord, now: float) -> None:
        connection.execute(
            "INSERT INTO runs (path, digest, model, dataset, content, base, sequence, opened) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*run, now),
        )

    def close(self) -> None:
        """Close the connection, which folds the journal into the database file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def require_readable(folder: Path) -> None:
    """Raise FileError if the files of a folder may not be opened: SQLite would not say why."""
    for path in (folder, folder / LOG_FILE):
        mode = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        if os.path.exists(path) and not os.access(path, mode):
            raise make_unreadable_error(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


class LogReader:
    """A reading connection, also beside a process that writes; each query sees what was committed when it began."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_FILE
        require_readable(folder)
        if not os.path.isfile(self.path):
            raise FileError(
                f"{folder} holds no log of events; give the state folder of a live run", code="not-a-log"
            )
        with translate_sqlite_errors(self.path):
            try:
                self.connection = self._open(_describe_access(self.path))
            except sqlite3.OperationalError:  # a full disk has no room for the index of the journal
                if _has_journal(self.path):
                    raise
                self.connection = self._open(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1")

    def _open(self, address: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False, timeout=10
        )
        try:
            connection.execute("PRAGMA query_only = ON")
            require_log(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def read_meta(self) -> dict[str, Any]:
        rows = self._select("SELECT key, value FROM meta")
        return {key: json.loads(value) for key, value in rows}

    def read_offsets(self) -> dict[str, Any]:
        rows = self._select("SELECT source, offset FROM offsets ORDER BY source")
        return {source: json.loads(offset) for source, offset in rows}

    def read_runs(self) -> list[RunRecord]:
        rows = self._select(
            "SELECT path, digest, model, dataset, content, base, sequence FROM runs ORDER BY number"
        )
        return [RunRecord(*row) for row in rows]

    def read_sequence(self) -> int:
        return int(self._select("SELECT coalesce(max(sequence), 0) FROM events")[0][0])

    def read_latest_time(self) -> float | None:
        return self._select("SELECT max(time) FROM events")[0][0]

    def count_set_aside(self) -> int:
        return int(self._select("SELECT count(*) FROM set_aside")[0][0])

    def read_set_aside(self) -> list[tuple[LogEvent, float]]:
        """Return the events that were set aside, each with the watermark when it came."""
        rows = self._select("SELECT id, src, dst, time, columns, latest FROM set_aside ORDER BY number")
        return [(LogEvent(*row[:5]), row[5]) for row in rows]

    def read_events(self, after: int, until: int, size: int = 1 << 14) -> Iterator[list[LogEvent]]:
        """Yield the events with sequence numbers after+1 to until, in lists of at most `size`.

        Raises:
            FileError: An event is missing or does not match its checksum.
        """
        while after < until:
            with translate_sqlite_errors(self.path):
                rows = self.connection.execute(
                    "SELECT sequence, id, src, dst, time, columns, checksum FROM events "
                    "WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?",
                    (after, until, size),
                ).fetchall()
            events = []
            for number, row in enumerate(rows, after + 1):
                event = LogEvent(*row[1:6])
                if row[0] != number or row[6] != checksum_event(number, event):
                    raise _damaged_error(
                        self.path, f"event {number} is missing or does not match its checksum"
                    )
                events.append(event)
            if not events:
                raise _damaged_error(self.path, f"event {after + 1} is missing")
            yield events
            after += len(events)

    def check(self) -> None:
        """Read everything: pages and indices by SQLite, each event by its checksum; raise FileError if damaged."""
        check_pages(self.connection, self.path, "integrity_check")
        for _ in self.read_events(0, self.read_sequence()):
            pass

    def copy_to(self, target: Path) -> None:
        """Copy the log as of one moment, while another process may write, with SQLite's backup."""
        with translate_sqlite_errors(target), closing(sqlite3.connect(target)) as copy:
            self.connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        with translate_sqlite_errors(self.path):
            return self.connection.execute(query).fetchall()


def checksum_event(sequence: int, event: LogEvent) -> int:
    """CRC-32 of a row: all of its values, so that no flipped bit goes unnoticed when the log is read."""
    text = f"{sequence}\0{event.id}\0{event.src}\0{event.dst}\0{event.time!r}\0{event.columns}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def check_pages(connection: sqlite3.Connection, path: Path, pragma: str) -> None:
    """Let SQLite check the pages of the file; `integrity_check` also compares indices with their tables."""
    with translate_sqlite_errors(path):
        (answer,) = connection.execute(f"PRAGMA {pragma}(1)").fetchone()
    if answer != "ok":
        raise _damaged_error(path, first_line(ValueError(answer)))


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into those of the package: WriteError for the disk, FileError for a damaged file."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise ConfigError(
            f"{path} is closed ({first_line(error)}); open the folder again", code="live-closed"
        ) from error
    except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_CORRUPT"):
            raise _damaged_error(path, first_line(error)) from error
        full = name.startswith("SQLITE_FULL") or "full" in str(error)
        raise WriteError(
            f"cannot write {path}: {first_line(error)}; "
            + (
                "free space on the disk, then append again"
                if full
                else "nothing was acknowledged; check the disk and the folder, then append again"
            ),
            code="log-full" if full else "log-not-writable",
        ) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _damaged_error(path, first_line(error)) from error


def _describe_access(path: Path) -> str:
    """Return the address under which a log can be read, also in a folder that may not be written to.

    SQLite would make its index of the journal there. It needs none if there is no journal, nor if a writer made it.
    A journal is opened for reading only: otherwise closing folds it away, and the next writer could not tell that the
    last one was killed.
    """
    address = path.absolute().as_uri()
    if _has_journal(path):
        return f"{address}?mode=ro"
    return address if os.access(path.parent, os.W_OK) else f"{address}?mode=ro&immutable=1"


def _has_journal(path: Path) -> bool:
    try:
        return os.path.getsize(f"{path}-wal") > 0
    except OSError:
        return False


def _damaged_error(path: Path, what: str) -> FileError:
    return FileError(f"{path} is damaged ({what}); restore a backup of it", code="log-damaged")


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new log, or check that the file is a log of this version."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        require_log(connection, path)
        return
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {LOG_VERSION}")
    connection.execute("COMMIT")


def require_log(connection: sqlite3.Connection, path: Path) -> None:
    """Raise FileError unless the database is a log of this version with exactly its tables."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise FileError(f"{path} is a database of another program; give another folder", code="not-a-log")
    if version != LOG_VERSION:
        raise FileError(
            f"{path} has log version {version}, this program reads {LOG_VERSION}; use the program that wrote it",
            code="unsupported-log-version",
        )
    found, expected = _read_schema(connection), _read_expected_schema()
    if odd := sorted(name for _, name, _ in found ^ expected):
        # a trigger could delete what was acknowledged
        raise FileError(
            f"{path} has tables, indices, views or triggers that differ from those of a log ({odd[0][:60]!r}); restore "
            "a backup that you trust",
            code="log-schema",
        )


def _read_schema(connection: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    """Return type, name and definition of all that the database declares."""
    rows = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return frozenset((str(kind), str(name), str(text)) for kind, name, text in rows)


@cache
def _read_expected_schema() -> frozenset[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _read_schema(connection)
