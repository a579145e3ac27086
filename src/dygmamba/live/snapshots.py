"""Snapshots of a state, so that opening a folder reads only the rest of the log.

A snapshot is a folder DIGEST-SEQUENCE below `snapshots/`: the files of the state, and a manifest with their checksums.
It gets its name when all of it is on the disk. A snapshot is never needed: one that is damaged or belongs to another
run or log is left out, and the log is read from its beginning.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, DygWarning, FileError, first_line
from dygmamba.core.files.untrusted import describe_file
from dygmamba.core.files.writing import (
    create_temporary_folder,
    disk,
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
                raise FileError(f"{path} is damaged; delete {self.path}", code="snapshot-damaged")
        # the file of arrays has its checksums in the description of the state, which was compared just now
        if not all("sha256" in entry for entry in files.values()):
            check_arrays(self.path / STATE_FOLDER)


def write_snapshot(folder: Path, record: RunRecord, log: LogReader, save: Callable[[Path], int]) -> Snapshot:
    """Write a snapshot of a run.

    Args:
        folder: The state folder.
        record: The run.
        log: The log of the folder.
        save: Writes the state to a folder and returns how many events it has since those of the dataset.
    """
    parent = folder / SNAPSHOT_FOLDER
    with create_temporary_folder(parent) as scratch:
        path = scratch / "snapshot"
        make_folder(path / STATE_FOLDER)
        sequence = record.base + save(path / STATE_FOLDER)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        manifest = {
            "format": FORMAT,
            "run": record.digest,
            "base": record.base,
            "sequence": sequence,
            "log": log.read_meta().get("log"),
            "last": _checksum_last(log, sequence),
            "files": {str(file.relative_to(path)): _describe(file) for file in files},
        }
        write_text(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        disk.sync_folder(path / STATE_FOLDER)
        target = parent / f"{record.digest[:12]}-{sequence:012d}"
        if target.exists():  # of the same run and events, hence the same
            shutil.rmtree(target)
        publish_path(path, target)
    for old in list_snapshots(folder):  # not needed any more: the log has everything
        if old.path != target:
            shutil.rmtree(old.path, ignore_errors=True)
    return Snapshot(target, manifest)


def _describe(file: Path) -> dict[str, Any]:
    return describe_file(file) if file.name == DESCRIPTION else {"bytes": file.stat().st_size}


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Return the snapshots with a readable manifest, the newest first."""
    found = []
    for path in (folder / SNAPSHOT_FOLDER).glob(f"*-*/{MANIFEST}"):
        try:
            manifest = json.loads(path.read_text("utf-8"))
            if manifest["format"] == FORMAT and isinstance(manifest["files"], dict):
                found.append(Snapshot(path.parent, manifest))
                int(manifest["sequence"])
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
