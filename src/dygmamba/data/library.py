"""Datasets by name: in the folder that is given, in $DYGMAMBA_DATA, in the user's cache."""

from pathlib import Path

from dygmamba.data.formats import detect_format, read_dataset
from dygmamba.data.ids import NodeIds
from dygmamba.data.places import GENERATED as GENERATED
from dygmamba.data.places import TABLE_SUFFIXES as TABLE_SUFFIXES
from dygmamba.data.places import data_folder as data_folder
from dygmamba.data.places import data_folders, dataset_files, unknown
from dygmamba.data.store import SUFFIX, Dataset, Origin, load_dataset
from dygmamba.errors import FileError


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
    raise unknown(name_or_path, folders)


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
