"""Datasets by name: in the folder that is given, in $DYGMAMBA_DATA, in the user's cache."""

import difflib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from dygmamba.data.catalogue import catalogue
from dygmamba.data.formats import read_dataset
from dygmamba.data.ids import NodeIds
from dygmamba.data.store import OLDER, SUFFIX, Dataset, Origin, load_dataset
from dygmamba.data.versions import version_of
from dygmamba.errors import DygWarning, FileError, NotFoundError

GENERATED = "generated"  # the embedded default stream, unless a file of that name is found
TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet", ".pq", ".gz"}


def data_folders(data_dir: Path | None = None) -> list[Path]:
    """The folders to look in, in this order."""
    folders = [] if data_dir is None else [data_dir]
    if chosen := os.environ.get("DYGMAMBA_DATA"):
        folders.append(Path(chosen))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [folder.expanduser() for folder in [*folders, Path(cache) / "dygmamba"]]


def data_folder(data_dir: Path | None = None) -> Path:
    """Where to write: the first of the folders that are looked in."""
    return data_folders(data_dir)[0]


def dataset_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of every dataset in a folder, the better form of a name first."""
    patterns = (f"*{SUFFIX}", "*.npz", "ml_*.csv", "*/ml_*.csv")
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            name = path.stem.removeprefix("ml_") if path.suffix == ".csv" else path.stem
            if pattern != "*/ml_*.csv" or path.parent.name == name:
                yield name, path


def open_dataset(name_or_path: str, data_dir: Path | None = None) -> Dataset:
    """The dataset of this name, or in this file."""
    folders = data_folders(data_dir)
    base, older, version = name_or_path.partition(OLDER)
    for folder in folders:
        for name, path in dataset_files(folder):
            if name == name_or_path:
                return _open_file(path)
            if older and name == base and _is_version(path, version):
                return load_dataset(path)
    if name_or_path == GENERATED:
        return generated_dataset()
    path = Path(name_or_path).expanduser()
    if path.is_file() or path.name != name_or_path or path.suffix in {SUFFIX, ".npz", *TABLE_SUFFIXES}:
        return _open_file(path)
    raise _unknown(name_or_path, folders)


def generated_dataset() -> Dataset:
    """The embedded stream, whatever files of that name there may be."""
    from dygmamba.data.generate import generated_dataset_store

    store = generated_dataset_store()
    return Dataset.of(GENERATED, store, NodeIds.identity(store.num_nodes), Origin(format=GENERATED))


def find_dataset(name: str, digest: str, folders: Iterable[Path], version: str = "") -> Dataset | None:
    """The dataset of this name that has these events, however old; of several the one of that version."""
    found = []
    for folder in folders:
        for called, path in dataset_files(folder):
            if called.partition(OLDER)[0] != name:
                continue
            about = version_of(path) if path.suffix == SUFFIX else None
            if about is not None and about.digest == digest:
                found.append((about.version == version, path))
            elif path.suffix != SUFFIX and (dataset := _open_file(path)).digest == digest:
                return dataset
    found.sort(key=lambda one: not one[0])
    return load_dataset(found[0][1]) if found else None


def is_table(path: Path) -> bool:
    """Whether a file is read by columns; other files are datasets as they are."""
    return path.suffix not in (SUFFIX, ".npz") and not path.name.startswith("ml_")


def _is_version(path: Path, version: str) -> bool:
    about = version_of(path) if path.suffix == SUFFIX else None
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


def _unknown(name: str, folders: list[Path]) -> NotFoundError:
    known = {known for folder in folders for known, _ in dataset_files(folder)}
    by_lower = {entry.lower(): entry for entry in sorted(known)}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    looked = ", ".join(str(folder) for folder in folders)
    public = {entry.lower(): entry for entry in catalogue()}.get(name.lower())
    get = f"get it with 'dygmamba data fetch {public}', or " if public else ""
    return NotFoundError(
        f"there is no dataset {name!r} in {looked}{meant}; {get}bring your own with `dygmamba.read('FILE')`"
    )
