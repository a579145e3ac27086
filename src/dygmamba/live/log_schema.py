"""Tables of the log of events, and the check that a file is such a log."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from dygmamba.core.errors import FileError

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
