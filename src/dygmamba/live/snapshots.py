"""Snapshots of a state, so that opening a folder reads only the rest of the log.

A snapshot is one file DIGEST-SEQUENCE.state2 below `snapshots/`: the arrays of a replica, a description with their
checksums as JSON, and its length and CRC-32 at the end. It gets its name when all of it is on the disk. A snapshot is
never needed: one that is damaged or belongs to another run or log is left out, and the log is read from its beginning.
"""

import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, DygWarning, FileError, WriteError, first_line
from dygmamba.core.files import writing
from dygmamba.core.files.writing import create_temporary_file, publish_path, remove_file, sync_file, write_at
from dygmamba.live.array_file import ArrayWriter, check_arrays, map_arrays
from dygmamba.live.event_log import LogReader, RunRecord, checksum_event
from dygmamba.live.replica import Replica, restore_replicas
from dygmamba.runs.predictor import Predictor

SNAPSHOT_FOLDER = "snapshots"
SUFFIX = (
    ".state2"  # of this format: files and folders of others are left out, and removed with the next snapshot
)
TRAILER = struct.Struct("<QI")
LOAD_ERRORS = (DygError, OSError, ValueError, KeyError, TypeError, struct.error)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on the disk."""

    path: Path

    @property
    def sequence(self) -> int:
        return int(self.path.stem.partition("-")[2])

    def read(self) -> dict[str, Any]:
        """Return the description; raise one of LOAD_ERRORS if it is damaged."""
        with self.path.open("rb") as file:
            end = file.seek(-TRAILER.size, os.SEEK_END)
            length, checksum = TRAILER.unpack(file.read())
            file.seek(end - length)
            text = file.read(length)
        if zlib.crc32(text) != checksum:
            raise FileError(f"{self.path} is damaged; delete it", code="damaged-state")
        return json.loads(text)

    def check(self) -> None:
        """Compare all of the file with its checksums; raise one of LOAD_ERRORS if it is damaged."""
        check_arrays(self.path, self.read()["arrays"])

    def load(self, predictor: Predictor, copies: int) -> list[Replica]:
        """Return replicas whose arrays are mapped, not read; raise one of LOAD_ERRORS if they are not of this run."""
        about = self.read()
        with self.path.open("rb") as file:
            maps = [map_arrays(file.fileno(), about["arrays"]) for _ in range(copies)]
        return restore_replicas(predictor, maps, about)


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots of a state folder, the newest first."""
    found = map(Snapshot, (folder / SNAPSHOT_FOLDER).glob(f"[0-9a-f]*-[0-9]*{SUFFIX}"))
    return sorted(found, key=lambda snapshot: snapshot.sequence, reverse=True)


def write_snapshot(
    folder: Path, record: RunRecord, log: LogReader, make_replica: Callable[[ArrayWriter], Replica]
) -> Snapshot:
    """Write a snapshot of a run and remove all others.

    Args:
        folder: The state folder.
        record: The run.
        log: The log of the folder.
        make_replica: Returns the replica to be written; it may have moved some of its tables to the file already.
    """
    parent = folder / SNAPSHOT_FOLDER
    part, handle = create_temporary_file(parent / "snapshot")
    try:
        try:
            writer = ArrayWriter(handle, part)
            replica = make_replica(writer)
            writer.write(replica.tables)
            sequence = record.base + replica.applied
            about = _identify(record, log, sequence) | replica.describe() | {"arrays": writer.layout}
            text = json.dumps(about).encode()
            write_at(handle, writer.end, text + TRAILER.pack(len(text), zlib.crc32(text)), part)
            sync_file(handle, part)
        finally:
            os.close(handle)  # Windows renames no open file
        snapshot = Snapshot(parent / f"{record.digest[:12]}-{sequence:012d}{SUFFIX}")
        publish_path(part, snapshot.path)
    except BaseException:
        with suppress(WriteError):
            remove_file(part)
        raise
    remove_others(folder, snapshot)
    return snapshot


def remove_others(folder: Path, kept: Snapshot) -> None:
    """Remove all snapshots but one; they are not needed, since the log has everything."""
    for old in (folder / SNAPSHOT_FOLDER).glob("[0-9a-f]*-*"):
        if old.is_dir():
            writing.disk.remove_folder(old)
        elif old != kept.path:
            with suppress(WriteError):  # Windows deletes no mapped file
                remove_file(old)


def load_newest(
    folder: Path, record: RunRecord, predictor: Predictor, log: LogReader, copies: int
) -> tuple[Snapshot | None, list[Replica]]:
    """Return the newest usable snapshot of a run, and replicas of it; None and no replicas if there is none."""
    for snapshot in list_snapshots(folder):
        if not record.base <= snapshot.sequence <= log.read_sequence():
            continue
        try:
            about, expected = snapshot.read(), _identify(record, log, snapshot.sequence)
            if {name: about[name] for name in expected} != expected:
                continue  # of another run, or of a log that was replaced by an older copy, which then went on
            snapshot.check()
            return snapshot, snapshot.load(predictor, copies)
        except LOAD_ERRORS as error:
            text = (
                f"the snapshot {snapshot.path} cannot be used ({first_line(error)}); the log is read instead"
            )
            warnings.warn(DygWarning(text), stacklevel=2)
    return None, []


def _identify(record: RunRecord, log: LogReader, sequence: int) -> dict[str, Any]:
    """Return the entries of a description that say which run and which events a snapshot is of."""
    # the checksum of the last event tells whether a snapshot and a log belong together
    events = log.read_events(max(sequence - 1, 0), sequence)
    last = next((checksum_event(sequence, some[0]) for some in events), 0)
    log_id = log.read_meta().get("log")
    return {"run": record.digest, "base": record.base, "sequence": sequence, "log": log_id, "last": last}
