"""A name is not a dataset: what was imported under it before is kept beside it, for the runs that were trained on it.

NAME.safetensors is the newest, NAME@VERSION.safetensors are older ones; a version is the beginning of the sha256 of
events and ids.

Datasets by name: in the folder that is given, in $DYGMAMBA_DATA, in the user's cache.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from dygmamba.core.errors import DygWarning, FileError, NotFoundError
from dygmamba.core.files.locking import FileLock
from dygmamba.core.files.writing import make_folder, publish_path, remove_file, write_file
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.readers import read_dataset
from dygmamba.data.storage.dataset import (
    FORMAT,
    SUFFIX,
    VERSION_LENGTH,
    VERSION_SEPARATOR,
    Dataset,
    Origin,
    checked_name,
    load_dataset,
    save_dataset,
)
from dygmamba.data.storage.leaderboard import LEADERBOARD_SUFFIX as BOARD
from dygmamba.data.storage.leaderboard import read_published_leaderboard, save_leaderboard
from dygmamba.data.storage.locations import GENERATED as GENERATED
from dygmamba.data.storage.locations import TABLE_SUFFIXES as TABLE_SUFFIXES
from dygmamba.data.storage.locations import data_folder as data_folder
from dygmamba.data.storage.locations import (
    data_folders,
    find_dataset_files,
    find_index_files,
    make_unknown_dataset_error,
)

if TYPE_CHECKING:
    from dygmamba.data.generate.stream import GeneratorConfig

COPY_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Where a dataset is, whether it is new, newer than one of its name or the same, and where that one is kept."""

    path: Path
    how: str
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class DatasetVersion:
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
        return VERSION_SEPARATOR not in self.path.name


def save_dataset_version(dataset: Dataset, folder: Path) -> SaveResult:
    """Write NAME.safetensors, the other dataset that had this name kept; the same one again changes nothing.

    What a scoreboard says of it lies beside it.
    """
    if (board := read_published_leaderboard(dataset)) is not None:
        save_leaderboard(board, dataset, folder)
    return _save_locked(dataset, folder)


def _save_locked(dataset: Dataset, folder: Path) -> SaveResult:
    path = folder / (checked_name(dataset.name) + SUFFIX)
    make_folder(folder)
    if not path.exists():  # nothing to keep, and a folder that cannot be written to is left as it was
        return SaveResult(save_dataset(dataset, folder), "new")
    lock = FileLock(folder / f".{dataset.name}.lock")
    try:
        now = read_version(path)
        if now is not None and now.version == dataset.version and _is_loadable(path):
            return SaveResult(path, "same")
        kept = None if now is None else _get_versioned_path(path, now.version)
        if kept is not None and not kept.exists():
            write_file(kept, _read_chunks(path))
        save_dataset(dataset, folder)
        if _get_versioned_path(path, dataset.version).exists():  # it is the newest again
            remove_file(_get_versioned_path(path, dataset.version))
        return SaveResult(path, "new" if kept is None else "newer", kept)
    finally:
        lock.release()


def list_versions(folder: Path, name: str | None = None) -> list[DatasetVersion]:
    """The datasets in a folder, of one name or of all: the newest of each name first, then by age."""
    pattern = f"*{SUFFIX}" if name is None else f"{name}*{SUFFIX}"
    found = [version for path in folder.glob(pattern) if (version := read_version(path)) is not None]
    wanted = [version for version in found if name in (None, version.name)]
    return sorted(wanted, key=lambda one: (one.name, not one.newest, -_get_modified_time(one.path)))


def read_version(path: Path) -> DatasetVersion | None:
    """What a dataset file says it is; None where it is none, or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("format") != FORMAT:
                return None
            events, nodes = (file.get_slice(key).get_shape()[0] for key in ("src", "node"))
        content = facts.get("content") or load_dataset(path).content  # older files do not say
        name = path.name.removesuffix(SUFFIX).partition(VERSION_SEPARATOR)[0]
        return DatasetVersion(path, name, content[:VERSION_LENGTH], facts.get("digest", ""), nodes, events)
    except (SafetensorError, OSError, FileError, IndexError):
        return None


def remove_version(version: DatasetVersion) -> None:
    """Delete one dataset; if it was the newest, the one before it takes its name."""
    folder, name = version.path.parent, version.name
    lock = FileLock(folder / f".{name}.lock")
    try:
        remove_file(version.path)
        for board in folder.glob(f"{name}{VERSION_SEPARATOR}{version.version}{BOARD}"):
            remove_file(board)
        rest = list_versions(folder, name)
        if version.newest and rest:
            publish_path(rest[0].path, folder / f"{name}{SUFFIX}")
        if not any(other.digest == version.digest for other in list_versions(folder)):
            for path in find_index_files(folder, version.digest):
                remove_file(path)
    finally:
        lock.release()


def _get_versioned_path(path: Path, version: str) -> Path:
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{VERSION_SEPARATOR}{version}{SUFFIX}")


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
        while piece := file.read(COPY_CHUNK_BYTES):
            yield piece


def open_dataset(name_or_path: str, data_dir: Path | None = None) -> Dataset:
    """The dataset of this name, or in this file."""
    folders = data_folders(data_dir)
    base, older, version = name_or_path.partition(VERSION_SEPARATOR)
    for folder in folders:
        for name, path in find_dataset_files(folder):
            if name == name_or_path:
                return _open_file(path)
            if older and name == base and _has_version(path, version):
                return load_dataset(path)
    if name_or_path == GENERATED:
        return generate_default_dataset()
    path = Path(name_or_path).expanduser()
    if path.is_file() or path.name != name_or_path or path.suffix in {SUFFIX, ".npz", *TABLE_SUFFIXES}:
        return _open_file(path)
    raise make_unknown_dataset_error(name_or_path, folders)


def generate_default_dataset() -> Dataset:
    """The embedded stream, whatever files of that name there may be."""
    from dygmamba.data.generate.stream import GeneratorConfig

    return generate_dataset(GENERATED, GeneratorConfig())


def generate_dataset(name: str, config: "GeneratorConfig", scratch: Path | None = None) -> Dataset:
    """A generated stream under a name; one that is large is made on the disk, in that folder."""
    from dygmamba.data.generate.stream import generate_stream

    store = generate_stream(config, scratch)
    return Dataset.of(checked_name(name), store, NodeIds.identity(config.nodes), Origin(format=GENERATED))


def find_dataset(name: str, digest: str, folders: Iterable[Path], version: str = "") -> Dataset | None:
    """The dataset of this name that has these events, however old; of several the one of that version."""
    found = []
    for folder in folders:
        for called, path in find_dataset_files(folder):
            if called.partition(VERSION_SEPARATOR)[0] != name:
                continue
            about = read_version(path) if path.suffix == SUFFIX else None
            if about is not None and about.digest == digest:
                found.append((about.version == version, path))
            elif path.suffix != SUFFIX and (dataset := _open_file(path)).digest == digest:
                return dataset
    found.sort(key=lambda one: not one[0])
    return load_dataset(found[0][1]) if found else None


def is_table_file(path: Path) -> bool:
    """Whether a file is read by columns; other files are datasets as they are."""
    return path.suffix not in (SUFFIX, ".npz") and not path.name.startswith("ml_")


def _has_version(path: Path, version: str) -> bool:
    about = read_version(path) if path.suffix == SUFFIX else None
    return about is not None and about.version == version


def _open_file(path: Path) -> Dataset:
    if path.suffix == SUFFIX:
        return load_dataset(path)
    try:
        dataset = read_dataset(path)
    except NotFoundError as error:
        raise FileError(
            f"{str(error).split(';')[0]}; name the columns once, and use the dataset from then on: "
            f"`dygmamba.read('{path}')`"
        ) from error
    origin = dataset.origin
    if not origin.header:
        told = f"{origin.src} is the source, {origin.dst} the destination, {origin.time} the time"
        said = f"the first line of {path} is an event, so its columns are called by number: {told}"
        warnings.warn(DygWarning(said), stacklevel=3)
    return dataset
