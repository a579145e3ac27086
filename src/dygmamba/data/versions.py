"""A name is not a dataset: what was imported under it before is kept beside it, for the runs that were trained on it.

NAME.safetensors is the newest, NAME@VERSION.safetensors are older ones; a version is the beginning of the sha256 of
events and ids.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dygmamba.data.boards import SUFFIX as BOARD
from dygmamba.data.boards import as_published, save_board
from dygmamba.data.places import index_files
from dygmamba.data.store import (
    FORMAT,
    OLDER,
    SUFFIX,
    VERSION_LETTERS,
    Dataset,
    checked_name,
    load_dataset,
    save_dataset,
)
from dygmamba.errors import FileError
from dygmamba.files.locking import Lock
from dygmamba.files.writing import make_folder, publish, remove_file, write_file

PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a dataset is, whether it is new, newer than one of its name or the same, and where that one is kept."""

    path: Path
    how: str
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One dataset file by its header alone."""

    path: Path
    name: str
    version: str
    digest: str
    nodes: int
    events: int

    @property
    def newest(self) -> bool:
        """Whether its name alone leads to it."""
        return OLDER not in self.path.name


def save_version(dataset: Dataset, folder: Path) -> Saved:
    """Write NAME.safetensors, the other dataset that had this name kept; the same one again changes nothing.

    What a scoreboard says of it lies beside it.
    """
    if (board := as_published(dataset)) is not None:
        save_board(board, dataset, folder)
    return _save(dataset, folder)


def _save(dataset: Dataset, folder: Path) -> Saved:
    path = folder / (checked_name(dataset.name) + SUFFIX)
    make_folder(folder)
    if not path.exists():  # nothing to keep, and a folder that cannot be written to is left as it was
        return Saved(save_dataset(dataset, folder), "new")
    lock = Lock(folder / f".{dataset.name}.lock")
    try:
        now = version_of(path)
        if now is not None and now.version == dataset.version and _is_whole(path):
            return Saved(path, "same")
        kept = None if now is None else _older(path, now.version)
        if kept is not None and not kept.exists():
            write_file(kept, _pieces(path))
        save_dataset(dataset, folder)
        if _older(path, dataset.version).exists():  # it is the newest again
            remove_file(_older(path, dataset.version))
        return Saved(path, "new" if kept is None else "newer", kept)
    finally:
        lock.release()


def versions_in(folder: Path, name: str | None = None) -> list[Version]:
    """The datasets in a folder, of one name or of all: the newest of each name first, then by age."""
    pattern = f"*{SUFFIX}" if name is None else f"{name}*{SUFFIX}"
    found = [version for path in folder.glob(pattern) if (version := version_of(path)) is not None]
    wanted = [version for version in found if name in (None, version.name)]
    return sorted(wanted, key=lambda one: (one.name, not one.newest, -_changed(one.path)))


def version_of(path: Path) -> Version | None:
    """What a dataset file says it is; None where it is none, or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("format") != FORMAT:
                return None
            events, nodes = (file.get_slice(key).get_shape()[0] for key in ("src", "node"))
        content = facts.get("content") or load_dataset(path).content  # older files do not say
        name = path.name.removesuffix(SUFFIX).partition(OLDER)[0]
        return Version(path, name, content[:VERSION_LETTERS], facts.get("digest", ""), nodes, events)
    except (SafetensorError, OSError, FileError, IndexError):
        return None


def remove_version(version: Version) -> None:
    """Delete one dataset; if it was the newest, the one before it takes its name."""
    folder, name = version.path.parent, version.name
    lock = Lock(folder / f".{name}.lock")
    try:
        remove_file(version.path)
        for board in folder.glob(f"{name}{OLDER}{version.version}{BOARD}"):
            remove_file(board)
        rest = versions_in(folder, name)
        if version.newest and rest:
            publish(rest[0].path, folder / f"{name}{SUFFIX}")
        if not any(other.digest == version.digest for other in versions_in(folder)):
            for path in index_files(folder, version.digest):
                remove_file(path)
    finally:
        lock.release()


def _older(path: Path, version: str) -> Path:
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{OLDER}{version}{SUFFIX}")


def _is_whole(path: Path) -> bool:
    try:
        load_dataset(path)
    except FileError:
        return False
    return True


def _changed(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
