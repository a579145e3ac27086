"""The log: what is committed is there, in order and to the bit; damage is said; a full disk is one sentence."""

import sqlite3
import struct
from contextlib import closing

import pytest

from dygmamba.core.errors import FileError, WriteError
from dygmamba.live.event_log import LOG_FILE, EventLog, LogEvent, LogReader
from raising import raises

EVENTS = [
    LogEvent(None, "alice", "bob", 0.1 + 0.2, None),
    LogEvent("7", "é\0'; --", "=1+1", -1e300, '[0.10000000149011612,"x"]'),
    LogEvent("8", "7", "7", 1.7e9 + 1e-6, '[-0.0,""]'),
]


def write(log: EventLog, events=EVENTS) -> None:
    with log.transaction() as connection:
        log.append(connection, events, 0.0)


def read(folder, after: int = 0) -> list[LogEvent]:
    with LogReader(folder) as log:
        return [event for events in log.read_events(after, log.read_sequence(), 2) for event in events]


def test_events_are_read_as_they_were_written(tmp_path):
    """For all ids, times and columns: the same values from another connection, also of a closed log."""
    log = EventLog(tmp_path)
    write(log)
    assert read(tmp_path) == EVENTS
    write(log, [EVENTS[0]])
    log.close()
    assert read(tmp_path, 2) == [EVENTS[2], EVENTS[0]]
    assert EventLog(tmp_path).sequence == 4
    assert [struct.pack("<d", event.time) for event in read(tmp_path)[:3]] == [
        struct.pack("<d", event.time) for event in EVENTS
    ]


def test_a_failed_transaction_leaves_nothing(tmp_path):
    """An error anywhere inside: no event, no offset, and the next transaction takes the same numbers."""
    log = EventLog(tmp_path)
    with pytest.raises(TypeError), log.transaction() as connection:  # noqa: PT012 (all of it is undone)
        log.append(connection, EVENTS, 0.0)
        EventLog.write_offset(connection, "topic", "3")
        EventLog.write_meta(connection, {"x": object()})
    write(log)
    assert log.sequence == 3
    with raises("log-not-writable", WriteError), log.transaction() as connection:
        log.append(connection, [EVENTS[1]], 0.0)  # its id is taken
    assert read(tmp_path) == EVENTS
    with LogReader(tmp_path) as reader:
        assert reader.read_offsets() == {}


def test_a_full_disk_is_one_sentence_and_the_log_goes_on_when_there_is_room(tmp_path):
    log = EventLog(tmp_path)
    write(log)
    pages = log._connect().execute("PRAGMA page_count").fetchone()[0]
    log._connect().execute(f"PRAGMA max_page_count = {pages + 1}")
    many = [LogEvent(None, "x" * 500, "y", 1.0, None)] * 100
    with raises("log-full", WriteError):
        write(log, many)
    assert read(tmp_path) == EVENTS
    write(log, many)  # the limit was that of a connection, which was dropped
    assert log.sequence == 103


@pytest.mark.parametrize("how", ["value", "missing", "page", "other", "version", "text"])
def test_a_damaged_log_is_said(tmp_path, how):
    """A flipped value, a lost row, a torn page, a foreign database, a newer one, no database: one sentence each."""
    log = EventLog(tmp_path)
    write(log)
    log.close()
    path = tmp_path / LOG_FILE
    with sqlite3.connect(path) as connection:
        if how == "value":
            connection.execute("UPDATE events SET time = 0.25 WHERE sequence = 2")
        elif how == "missing":
            connection.execute("DELETE FROM events WHERE sequence = 2")
        elif how == "other":
            connection.execute("PRAGMA application_id = 1")
        elif how == "version":
            connection.execute("PRAGMA user_version = 99")
    connection.close()
    content = bytearray(path.read_bytes())
    if how == "page":
        content[4096:8192] = bytes(4096)  # the first page of a table
    elif how == "text":
        content = bytearray(b"src,dst,time\n" * 1000)
    path.write_bytes(content)
    code = {"other": "not-a-log", "version": "unsupported-log-version"}.get(how, "log-damaged")
    with raises(code, FileError), LogReader(tmp_path) as reader:
        reader.check()
    if how in ("other", "version", "text"):
        with raises(code, FileError):
            EventLog(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER gone AFTER INSERT ON events BEGIN DELETE FROM events; END",
        "CREATE VIEW more AS SELECT * FROM events",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON events (upper(src))",
        "ALTER TABLE events ADD COLUMN more",
        "DROP TABLE offsets",
    ],
)
def test_a_log_with_another_schema_is_refused(tmp_path, statement):
    """Whatever a database declares beside the tables of a log, such as a trigger that deletes acknowledged events."""
    log = EventLog(tmp_path)
    write(log)
    log.close()
    with closing(sqlite3.connect(tmp_path / LOG_FILE)) as connection:
        connection.execute(statement)
        connection.commit()
    for opened in (LogReader, EventLog):
        with raises("log-schema", FileError):
            opened(tmp_path)


def test_a_torn_journal_keeps_what_was_committed(tmp_path):
    """For all lengths at which the journal is cut: a prefix of the transactions."""
    source = tmp_path / "source"
    log = EventLog(source)
    for k in range(4):
        write(log, [LogEvent(f"{k}", "a", "b", float(k))])
    database, journal = ((source / f"{LOG_FILE}{end}").read_bytes() for end in ("", "-wal"))
    log.close()
    seen = set()
    for number, cut in enumerate(range(len(journal), 0, -1500)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / LOG_FILE).write_bytes(database)
        (folder / f"{LOG_FILE}-wal").write_bytes(journal[:cut])
        torn = EventLog(folder)
        events = read(folder)
        assert [event.id for event in events] == [str(k) for k in range(len(events))]
        assert not torn.recovery.was_closed
        seen.add(len(events))
        torn.close()
    assert seen == {0, 1, 2, 3, 4}


def test_a_folder_without_a_log(tmp_path):
    with raises("not-a-log", FileError):
        LogReader(tmp_path)
