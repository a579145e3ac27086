"""Backup of a state folder as one file, restoring it, and the check and the lock of a folder.

A backup is a zip file without compression: the log as of one moment, copied with SQLite's backup while another process
may write, and a manifest with its checksum. Neither the run is in it nor snapshots, which are made of both. Earlier
versions added a snapshot, which is left out when such a backup is restored.
"""

import hashlib
import json
import os
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from dygmamba.core.errors import ConfigError, FileError, WriteError, first_line
from dygmamba.core.files.locking import acquire_lock
from dygmamba.core.files.untrusted import describe_file, require_regular_file
from dygmamba.core.files.writing import (
    create_temporary_file,
    create_temporary_folder,
    make_folder,
    publish_path,
    remove_file,
    sync_file,
    translate_os_errors,
    write_file,
)
from dygmamba.live.event_log import LOG_FILE, LogReader
from dygmamba.live.snapshots import LOAD_ERRORS, list_snapshots

LOCK_FILE = ".lock"
BACKUP_MANIFEST = "backup.json"
FORMAT = "dygmamba-backup-1"
MAX_MANIFEST_BYTES = 1 << 24
CHUNK = 1 << 20
RETRY = "make the backup again, or give another one"


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """Result of checking a state folder; a damaged log is an error instead."""

    sequence: int
    latest: float | None
    set_aside: int
    run: str
    model: str
    dataset: str
    late: float
    offsets: dict[str, Any]
    snapshots: dict[int, str]  # sequence number: "ok" or what is wrong; a snapshot can be written again
    sqlite: str


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was written: the number of events in it, and the size and SHA-256 of the file."""

    path: Path
    sequence: int
    size: int
    digest: str


def check_folder(folder: Path) -> FolderCheck:
    """Read all of a state folder, also while it is in use; raise FileError if the log is damaged."""
    with LogReader(folder) as log:
        log.check()
        facts, runs = log.read_meta(), log.read_runs()
        if not runs:
            raise FileError(f"{folder} was never opened with a run; delete it", code="not-a-log")
        snapshots = {}
        for snapshot in list_snapshots(folder):
            try:
                snapshot.check()
                snapshots[snapshot.sequence] = "ok"
            except LOAD_ERRORS as error:
                snapshots[snapshot.sequence] = first_line(error)
        return FolderCheck(
            log.read_sequence(),
            log.read_latest_time(),
            log.count_set_aside(),
            runs[-1].path,
            runs[-1].model,
            runs[-1].dataset,
            facts.get("late", 0.0),
            log.read_offsets(),
            snapshots,
            sqlite3.sqlite_version,
        )


def write_backup(folder: Path, target: Path) -> Backup:
    """Write a backup of a state folder, which may be in use; an existing file is replaced when the new one is whole."""
    if target.is_dir():
        raise FileError(f"{target} is a folder; give the name of a file", code="is-a-folder")
    part, handle = create_temporary_file(target)
    try:
        with (
            translate_os_errors(target),
            # beside the backup, since the disk of the state folder may be full
            create_temporary_folder(target.absolute().parent) as scratch,
            os.fdopen(handle, "wb") as file,
        ):
            with LogReader(folder) as log:
                log.copy_to(scratch / LOG_FILE)
            with LogReader(scratch) as copy:
                sequence = copy.read_sequence()
            files = {LOG_FILE: describe_file(scratch / LOG_FILE)}
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                archive.write(scratch / LOG_FILE, LOG_FILE)
                archive.writestr(
                    BACKUP_MANIFEST, _seal({"format": FORMAT, "sequence": sequence, "files": files})
                )
            file.flush()
            sync_file(file.fileno(), target)
        publish_path(part, target)
    except BaseException:
        with suppress(WriteError):
            remove_file(part)
        raise
    written = describe_file(target)
    return Backup(target, sequence, written["bytes"], written["sha256"])


def _seal(about: dict[str, Any]) -> str:
    text = json.dumps(about, sort_keys=True)
    return json.dumps(about | {"sha256": hashlib.sha256(text.encode()).hexdigest()}, sort_keys=True)


def restore_backup(backup: Path, folder: Path) -> int:
    """Write a backup into a new or empty folder, after checking all of it; return its last sequence number."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} is not empty; give a new folder", code="folder-not-empty")
    require_regular_file(backup)
    make_folder(folder.absolute().parent)
    try:
        with zipfile.ZipFile(backup) as archive, create_temporary_folder(folder.absolute().parent) as scratch:
            about = _read_manifest(archive, backup)
            copy = scratch / "state"
            make_folder(copy)
            write_file(copy / LOG_FILE, _read_log(archive, about["files"][LOG_FILE]["sha256"], backup))
            try:
                with LogReader(copy) as log:
                    log.check()
                    sequence = log.read_sequence()
            except FileError as error:
                reason = str(error).replace(str(copy / LOG_FILE), "its log").partition(";")[0]
                raise _damaged_error(backup, reason) from error
            if sequence != about["sequence"]:
                raise _damaged_error(backup, "its log has another length")
            for name in (f"{LOG_FILE}-wal", f"{LOG_FILE}-shm"):
                remove_file(copy / name)
            if folder.exists():
                folder.rmdir()
            publish_path(copy, folder)
            return int(about["sequence"])
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError, TypeError, NotImplementedError) as error:
        raise _damaged_error(backup, first_line(error)) from error


def _read_manifest(archive: zipfile.ZipFile, backup: Path) -> dict[str, Any]:
    for name, most in ((BACKUP_MANIFEST, MAX_MANIFEST_BYTES), (LOG_FILE, backup.stat().st_size)):
        info = archive.getinfo(name)
        # backups are not compressed, and what is could inflate to any size
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
            raise _damaged_error(backup, f"{name} is compressed or too large")
    about = json.loads(archive.read(BACKUP_MANIFEST))
    seal = about.pop("sha256")
    if (
        about["format"] != FORMAT
        or seal != hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    ):
        raise _damaged_error(backup, "its manifest does not match its checksum")
    return about


def _read_log(archive: zipfile.ZipFile, digest: str, backup: Path) -> Iterator[bytes]:
    """Yield the content of the log; raise FileError if it does not match its SHA-256."""
    sha = hashlib.sha256()
    with archive.open(LOG_FILE) as file:
        while chunk := file.read(CHUNK):
            sha.update(chunk)
            yield chunk
    if sha.hexdigest() != digest:
        raise _damaged_error(backup, "its log does not match its checksum")


def _damaged_error(backup: Path, what: str) -> FileError:
    return FileError(f"{backup} is damaged or not a backup ({what}); {RETRY}", code="backup-damaged")


def lock_folder(path: Path) -> BaseFileLock:
    """Make a state folder if there is none, and lock it for this process.

    Raises:
        LockedError: Another process has it open.
        ConfigError: It is a run directory.
    """
    if os.path.exists(path / "config.toml") and not os.path.exists(path / LOG_FILE):
        raise ConfigError(
            f"{path} is a run directory; give another folder for the events", code="state-is-a-run"
        )
    make_folder(path)
    return acquire_lock(path / LOCK_FILE)
