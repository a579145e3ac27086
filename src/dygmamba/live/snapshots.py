"""Snapshots of a state, so that opening a folder reads only the rest of the log.

A snapshot is a folder DIGEST-SEQUENCE below `snapshots/`: the files of the state, and a manifest with their checksums.
It gets its name when all of it is on the disk. A snapshot is never needed: one that is damaged or belongs to another
run or log is left out, and the log is read from its beginning.
"""

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, DygWarning, FileError, WriteError, first_line
from dygmamba.core.files.untrusted import describe_file, locate_inside
from dygmamba.core.files.writing import (
    create_temporary_folder,
    make_folder,
    publish_path,
    write_text,
)
from dygmamba.live.event_log import LogReader, RunRecord, checksum_event
from dygmamba.live.state import LiveState
from dygmamba.live.state_files import DESCRIPTION, check_arrays
from dygmamba.runs.predictor import Predictor

SNAPSHOT_FOLDER, MANIFEST, STATE_FOLDER = "snapshots", "manifest.json", "state"
FORMAT = "dygmamba-snapshot-1"
LOAD_ERRORS = (DygError, OSError, ValueError, KeyError, TypeError, EOFError)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot on the disk."""

    path: Path
    manifest: dict[str, Any]

    @property
    def sequence(self) -> int:
        return int(self.manifest["sequence"])

    def check(self) -> None:
        """Compare every file with its checksum; raise FileError if one differs."""
        files = self.manifest["files"]
        for name, entry in files.items():
            path = self.path / name
            found = describe_file(path) if "sha256" in entry else {"bytes": path.stat().st_size}
            if found != entry:
                raise FileError(f"{path} is damaged; delete {self.path}", code="damaged-state")
        # the file of arrays has its checksums in the description of the state, which was compared just now
        if not all("sha256" in entry for entry in files.values()):
            check_arrays(self.path / STATE_FOLDER)


def write_snapshot(
    folder: Path, record: RunRecord, log: LogReader, save: Callable[[Path], int], applied: int | None = None
) -> Snapshot:
    """Write a snapshot of a run and remove all others.

    Args:
        folder: The state folder.
        record: The run.
        log: The log of the folder.
        save: Writes the state to a folder and returns how many events it has since those of the dataset.
        applied: How many events the state has now: an intact snapshot of the same events stays as it is, and nothing
            is written. None writes in any case.
    """
    parent = folder / SNAPSHOT_FOLDER
    with create_temporary_folder(parent) as scratch:
        # one of the same events may be mapped, and Windows moves no mapped file
        snapshot = None if applied is None else _find_intact(parent, record, log, record.base + applied)
        snapshot = snapshot or _write(parent, scratch, record, log, save)
        for old in parent.glob("[0-9a-f]*-*"):  # not needed any more: the log has everything
            if old != snapshot.path:
                with suppress(WriteError):
                    publish_path(old, scratch / old.name)
    return snapshot


def _write(
    parent: Path, scratch: Path, record: RunRecord, log: LogReader, save: Callable[[Path], int]
) -> Snapshot:
    path = scratch / "snapshot"
    make_folder(path / STATE_FOLDER)
    sequence = record.base + save(path / STATE_FOLDER)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    manifest = _identify(record, log, sequence)
    manifest["files"] = {file.relative_to(path).as_posix(): _describe(file) for file in files}
    write_text(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    target = _locate(parent, record, sequence)
    if target.exists():  # damaged; moved as a whole, so that no half of it is ever found
        publish_path(target, scratch / "replaced")
    publish_path(path, target)
    return Snapshot(target, manifest)


def _find_intact(parent: Path, record: RunRecord, log: LogReader, sequence: int) -> Snapshot | None:
    """Return the snapshot of a run with this many events, if it is there and undamaged."""
    path = _locate(parent, record, sequence)
    try:
        snapshot = _read(path)
        expected = _identify(record, log, sequence)
        if {name: snapshot.manifest[name] for name in expected} != expected:
            return None
        snapshot.check()
        return snapshot
    except LOAD_ERRORS:
        return None


def _locate(parent: Path, record: RunRecord, sequence: int) -> Path:
    return parent / f"{record.digest[:12]}-{sequence:012d}"


def _identify(record: RunRecord, log: LogReader, sequence: int) -> dict[str, Any]:
    """Return the entries of a manifest that say which run and which events a snapshot is of."""
    return {
        "format": FORMAT,
        "run": record.digest,
        "base": record.base,
        "sequence": sequence,
        "log": log.read_meta().get("log"),
        "last": _checksum_last(log, sequence),
    }


def _describe(file: Path) -> dict[str, Any]:
    return describe_file(file) if file.name == DESCRIPTION else {"bytes": file.stat().st_size}


def _read(path: Path) -> Snapshot:
    """Read a snapshot, whose manifest names files of its folder only; raise one of LOAD_ERRORS if it is damaged."""
    manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    for name in dict(manifest["files"]):
        locate_inside(path, name, path / MANIFEST)
    return Snapshot(path, manifest)


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots with a readable manifest, the newest first."""
    found = []
    for path in (folder / SNAPSHOT_FOLDER).glob(f"*-*/{MANIFEST}"):
        try:
            snapshot = _read(path.parent)
            if snapshot.sequence >= 0 and snapshot.manifest["format"] == FORMAT:
                found.append(snapshot)
        except LOAD_ERRORS:
            continue
    return sorted(found, key=lambda snapshot: snapshot.sequence, reverse=True)


def load_newest(folder: Path, record: RunRecord, predictor: Predictor, log: LogReader) -> LiveState | None:
    """Return the state of the newest usable snapshot of a run, None if there is none."""
    sequence, facts = log.read_sequence(), log.read_meta()
    for snapshot in list_snapshots(folder):
        about = snapshot.manifest
        if (about.get("run"), about.get("base")) != (record.digest, record.base):
            continue
        if not record.base <= snapshot.sequence <= sequence or about.get("log") != facts.get("log"):
            continue
        try:
            if about["last"] != _checksum_last(log, snapshot.sequence):
                continue  # of other events: the log was replaced by an older copy, which then went on
            snapshot.check()
            state = LiveState.load(predictor, snapshot.path / STATE_FOLDER)
            if state.applied == snapshot.sequence - record.base:
                return state
            reason = f"it holds {state.applied:,} events"
        except LOAD_ERRORS as error:
            reason = first_line(error)
        warnings.warn(
            DygWarning(f"the snapshot {snapshot.path} cannot be used ({reason}); the log is read instead"),
            stacklevel=2,
        )
    return None


def _checksum_last(log: LogReader, sequence: int) -> int:
    """Return the checksum of one event, which tells whether a snapshot and a log belong together; 0 without any."""
    for events in log.read_events(max(sequence - 1, 0), sequence):
        return checksum_event(sequence, events[0])
    return 0
