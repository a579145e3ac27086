"""Datasets by name: in the folder that is given, in $DYGMAMBA_DATA, in the user's cache."""

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from dygmamba.data.catalogue import catalogue
from dygmamba.data.formats import detect_format, read_dataset
from dygmamba.data.ids import NodeIds
from dygmamba.data.store import SUFFIX, Dataset, Origin, load_dataset
from dygmamba.errors import FileError, NotFoundError

GENERATED = "generated"  # the embedded default stream, unless a file of that name is found
TABLE_SUFFIXES = {".csv", ".tsv", ".parquet", ".pq", ".gz"}


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
    for folder in folders:
        for name, path in dataset_files(folder):
            if name == name_or_path:
                return _open_file(path)
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


def _open_file(path: Path) -> Dataset:
    if path.suffix == SUFFIX:
        return load_dataset(path)
    ready = path.suffix == ".npz" or (path.is_file() and detect_format(path) == "dyglib")
    if not ready and path.is_file() and TABLE_SUFFIXES & set(path.suffixes):
        raise FileError(f"{path} is a table and not a dataset yet; use: `dygmamba.read('{path}')`")
    return read_dataset(path)


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
