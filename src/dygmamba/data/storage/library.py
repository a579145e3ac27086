"""The library of saved datasets: open them by name, save new versions, list and remove versions.

NAME.safetensors is the newest version of a dataset. NAME@VERSION.safetensors are older ones, which runs trained on them
still need. VERSION is the beginning of the SHA-256 of events and ids.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from dygmamba.core.errors import DygWarning, FileError, NotFoundError, make_unreadable_error
from dygmamba.core.files.locking import hold_lock
from dygmamba.core.files.writing import make_folder, publish_path, remove_file, write_file
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers import read_dataset
from dygmamba.data.storage.dataset import (
    FORMAT,
    VERSION_LENGTH,
    VERSION_SEPARATOR,
    Dataset,
    load_dataset,
    save_dataset,
)
from dygmamba.data.storage.leaderboard import LEADERBOARD_SUFFIX, read_published_leaderboard, save_leaderboard
from dygmamba.data.storage.locations import (
    DATASET_SUFFIX,
    GENERATED,
    check_dataset_name,
    data_folders,
    find_dataset_files,
    find_index_files,
    looks_like_path,
    make_unknown_dataset_error,
)

if TYPE_CHECKING:
    from dygmamba.data.generate.config import GeneratorConfig

COPY_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Path of a saved dataset, and what happened to the previous dataset of that name."""

    path: Path
    how: str  # "new", "newer" (it replaced another version) or "same" (nothing was written)
    kept: Path | None = None  # where the replaced version is now


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """A dataset file as described by its header."""

    path: Path
    name: str
    version: str
    digest: str
    nodes: int
    events: int

    @property
    def newest(self) -> bool:
        """Whether the name without a version means this file."""
        return VERSION_SEPARATOR not in self.path.name


def save_dataset_version(dataset: Dataset, folder: Path) -> SaveResult:
    """Write NAME.safetensors and keep another dataset of that name as an older version.

    Saving the same content again changes nothing. A leaderboard's split, negatives and labels are saved next to it.
    """
    with lock_dataset(dataset.name, folder):
        return save_locked_dataset(dataset, folder)


@contextmanager
def lock_dataset(name: str, folder: Path) -> Iterator[None]:
    """Let no other process save a dataset of this name, new or not, until the end of the block."""
    is_new = not folder.exists()
    make_folder(folder)
    try:
        with hold_lock(folder / f".{check_dataset_name(name)}.lock"):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # nothing was saved if it is empty
                folder.rmdir()


def save_locked_dataset(dataset: Dataset, folder: Path) -> SaveResult:
    """Save as `save_dataset_version` does, inside `lock_dataset`."""
    if (leaderboard := read_published_leaderboard(dataset)) is not None:
        save_leaderboard(leaderboard, dataset, folder)
    path = folder / (dataset.name + DATASET_SUFFIX)
    if not path.exists():
        return SaveResult(save_dataset(dataset, folder), "new")
    _require_readable(path)  # otherwise it would count as damaged, and be replaced
    current = read_version(path)
    if current is not None and current.version == dataset.version and _is_loadable(path):
        return SaveResult(path, "same")
    kept = None if current is None else _get_versioned_path(path, current.version)
    if kept is not None and not kept.exists():
        write_file(kept, _read_chunks(path))
    save_dataset(dataset, folder)
    if _get_versioned_path(path, dataset.version).exists():  # an older version becomes the newest again
        remove_file(_get_versioned_path(path, dataset.version))
    return SaveResult(path, "new" if kept is None else "newer", kept)


def list_versions(folder: Path, name: str | None = None) -> list[DatasetVersion]:
    """List the versions in a folder, of one dataset or of all; newest first for each name."""
    pattern = f"*{DATASET_SUFFIX}" if name is None else f"{name}*{DATASET_SUFFIX}"
    versions = [version for path in folder.glob(pattern) if (version := read_version(path)) is not None]
    wanted = [version for version in versions if name in (None, version.name)]  # NAME* also matches NAME2
    return sorted(
        wanted, key=lambda version: (version.name, not version.newest, -_get_modified_time(version.path))
    )


def read_version(path: Path) -> DatasetVersion | None:
    """Read the header of a dataset file; None if it is not a dataset or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                return None
            events, nodes = (file.get_slice(key).get_shape()[0] for key in ("src", "node"))
        content = metadata.get("content") or load_dataset(path).content  # files of earlier versions lack it
        name = path.name.removesuffix(DATASET_SUFFIX).partition(VERSION_SEPARATOR)[0]
        return DatasetVersion(path, name, content[:VERSION_LENGTH], metadata.get("digest", ""), nodes, events)
    except (SafetensorError, OSError, FileError, IndexError):
        return None


def remove_version(version: DatasetVersion) -> None:
    """Delete a version; if it was the newest, the one before it becomes the newest."""
    folder, name = version.path.parent, version.name
    with lock_dataset(name, folder):
        remove_file(version.path)
        for leaderboard in folder.glob(f"{name}{VERSION_SEPARATOR}{version.version}{LEADERBOARD_SUFFIX}"):
            remove_file(leaderboard)
        rest = list_versions(folder, name)
        if version.newest and rest:
            publish_path(rest[0].path, folder / f"{name}{DATASET_SUFFIX}")
        if not any(other.digest == version.digest for other in list_versions(folder)):
            for path in find_index_files(folder, version.digest):
                remove_file(path)


def _get_versioned_path(path: Path, version: str) -> Path:
    return path.with_name(
        f"{path.name.removesuffix(DATASET_SUFFIX)}{VERSION_SEPARATOR}{version}{DATASET_SUFFIX}"
    )


def _require_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise make_unreadable_error(path, error) from error


def _is_loadable(path: Path) -> bool:
    try:
        load_dataset(path)
    except FileError:
        return False
    return True


def _get_modified_time(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(COPY_CHUNK_BYTES):
            yield chunk


def open_dataset(name_or_path: str, data_dir: Path | None = None) -> Dataset:
    """Open a dataset by name, by NAME@VERSION, or from a file."""
    folders = data_folders(data_dir)
    base, separator, version = name_or_path.partition(VERSION_SEPARATOR)
    for folder in folders:
        for name, path in find_dataset_files(folder):
            if name == name_or_path:
                return _open_file(path)
            if separator and name == base and _has_version(path, version):
                return load_dataset(path)
    if name_or_path == GENERATED:
        return generate_default_dataset()
    path = Path(name_or_path).expanduser()
    if path.is_file() or looks_like_path(name_or_path):
        return _open_file(path)
    raise make_unknown_dataset_error(name_or_path, folders)


def generate_default_dataset() -> Dataset:
    """Generate the built-in synthetic dataset, even if there is a file of that name."""
    from dygmamba.data.generate.stream import GeneratorConfig

    return generate_dataset(GENERATED, GeneratorConfig())


def generate_dataset(name: str, config: "GeneratorConfig", scratch: Path | None = None) -> Dataset:
    """Generate a synthetic dataset; a large one is generated on disk, in the folder `scratch`."""
    from dygmamba.data.generate.stream import generate_stream

    store = generate_stream(config, scratch)
    return Dataset.from_events(
        check_dataset_name(name), store, NodeIds.identity(config.nodes), Origin(format=GENERATED)
    )


def find_dataset(name: str, digest: str, folders: Iterable[Path], version: str = "") -> Dataset | None:
    """Find the version of a dataset with this events digest; of several prefer `version`."""
    matches = []
    for folder in folders:
        for stem, path in find_dataset_files(folder):
            if stem.partition(VERSION_SEPARATOR)[0] != name:
                continue
            about = read_version(path) if path.suffix == DATASET_SUFFIX else None
            if about is not None and about.digest == digest:
                matches.append((about.version == version, path))
            elif path.suffix != DATASET_SUFFIX and (dataset := _open_file(path)).digest == digest:
                return dataset
    matches.sort(key=lambda match: not match[0])  # stable: the first folder wins
    return load_dataset(matches[0][1]) if matches else None


def is_table_file(path: Path) -> bool:
    """Return whether a file is a table whose columns are chosen; other files have a fixed layout."""
    return path.suffix not in (DATASET_SUFFIX, ".npz") and not path.name.startswith("ml_")


def _has_version(path: Path, version: str) -> bool:
    about = read_version(path) if path.suffix == DATASET_SUFFIX else None
    return about is not None and about.version == version


def _open_file(path: Path) -> Dataset:
    if path.suffix == DATASET_SUFFIX:
        return load_dataset(path)
    try:
        dataset = read_dataset(path)
    except NotFoundError as error:
        raise FileError(
            f"{str(error).split(';')[0]}; import the file once with the names of its columns, then use the dataset: "
            f"`dygmamba.read('{path}')`",
            code=error.code,
        ) from error
    origin = dataset.origin
    if not origin.header:
        columns = f"{origin.src} is the source, {origin.dst} the destination, {origin.time} the time"
        message = f"{path} has no header line, so its columns are numbered: {columns}"
        warnings.warn(DygWarning(message), stacklevel=3)
    return dataset
