"""Replacement and reading of the files of a shared folder: a reader sees the old files or the new ones.

The manifest decides which files are shared. New files are first written under names made of their checksums; then the
manifest is replaced, which is the one step that makes them the shared ones; then they get their usual names. A reader
looks for a file under its usual name and, if its checksum is another one, under the name made of it. So the folder is
whole after every step, also if the process that pushes is killed there. Folders written before have usual names only
and are read in the same way.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dygmamba.core.errors import FileError, WriteError
from dygmamba.core.files.locking import hold_lock
from dygmamba.core.files.untrusted import read_verified_file
from dygmamba.core.files.writing import (
    TEMPORARY_NAME,
    Bytes,
    publish_path,
    remove_file,
    write_file,
    write_files,
)

LOCK_FILE = ".push.lock"
NEW_NAME = re.compile(r"\.[0-9a-f]{64}\..*\.new")
MAX_ATTEMPTS = 5  # of a reader, while other runs are pushed into the folder

Manifest = TypeVar("Manifest")
Result = TypeVar("Result")
Entries = Mapping[str, Mapping[str, Any]]  # size and SHA-256 by name


def replace_shared_files(
    folder: Path,
    sources: Mapping[str, Path],
    entries: Entries,
    manifest: tuple[str, bytes],
    known_names: Iterable[str],
) -> None:
    """Replace the files of a shared folder, or write the first ones.

    Args:
        folder: The shared folder, which exists.
        sources: The new files by name.
        entries: Their sizes and checksums.
        manifest: Name and content of the manifest.
        known_names: Names of all files that a share may have; those that it has no longer are removed.
    """
    contents: dict[Path, Iterable[Bytes]] = {
        _get_new_path(folder, name, entries[name]): read_verified_file(
            path, entries[name]["bytes"], entries[name]["sha256"]
        )
        for name, path in sources.items()
    }
    manifest_path = folder / manifest[0]
    with hold_lock(folder / LOCK_FILE):
        # those of an interrupted push of the same run may be in use
        unused = [path for path in contents if not path.exists()]
        try:
            write_files(contents)
            write_file(manifest_path, [manifest[1]], follow_links=False)
        except BaseException:
            if not (manifest_path.is_file() and manifest_path.read_bytes() == manifest[1]):
                _remove_files(unused)
            raise
        for name, entry in entries.items():
            publish_path(_get_new_path(folder, name, entry), folder / name)
        for name in sorted(set(known_names) - set(entries)):
            remove_file(folder / name)
        _remove_files(path for path in folder.iterdir() if NEW_NAME.fullmatch(path.name))


def copy_shared_file(folder: Path, name: str, entry: Mapping[str, Any], target: Path) -> None:
    """Copy a file of a shared folder after a comparison with its checksum.

    Raises:
        FileError: It is missing or damaged.
    """
    usual, new = folder / name, _get_new_path(folder, name, entry)
    # the usual name again: if the other one is gone, the file has got its usual name in the meantime
    for path in (usual, new):
        with suppress(FileError):
            return write_file(target, read_verified_file(path, entry["bytes"], entry["sha256"]))
    return write_file(target, read_verified_file(usual, entry["bytes"], entry["sha256"]))


def read_unchanged(read_manifest: Callable[[], Manifest], use: Callable[[Manifest], Result]) -> Result:
    """Call `use(manifest)`; retry with the new manifest if another push replaced it."""
    for _ in range(MAX_ATTEMPTS - 1):
        manifest = read_manifest()
        try:
            return use(manifest)
        except FileError:
            if read_manifest() == manifest:
                raise
    return use(read_manifest())


def is_empty_or_unfinished(folder: Path) -> bool:
    """Return whether a folder has nothing but the files of a first push that was killed before its end."""
    names = (path.name for path in folder.iterdir())
    return all(
        name == LOCK_FILE or NEW_NAME.fullmatch(name) or TEMPORARY_NAME.fullmatch(name) for name in names
    )


def _get_new_path(folder: Path, name: str, entry: Mapping[str, Any]) -> Path:
    """Return where a new file is until it has its usual name."""
    return folder / f".{entry['sha256']}.{name}.new"


def _remove_files(paths: Iterable[Path]) -> None:
    for path in list(paths):
        with suppress(WriteError):
            remove_file(path)
