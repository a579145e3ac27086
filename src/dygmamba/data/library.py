"""Datasets by name: in the folder that is given, in $DYGMAMBA_DATA, in the user's cache."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.data.formats import read_dataset
from dygmamba.data.ids import NodeIds
from dygmamba.data.places import GENERATED as GENERATED
from dygmamba.data.places import TABLE_SUFFIXES as TABLE_SUFFIXES
from dygmamba.data.places import data_folder as data_folder
from dygmamba.data.places import data_folders, dataset_files, unknown
from dygmamba.data.store import OLDER, SUFFIX, Dataset, Origin, checked_name, load_dataset
from dygmamba.data.versions import version_of
from dygmamba.errors import DygWarning, FileError, NotFoundError

if TYPE_CHECKING:
    from dygmamba.data.generate import GeneratorConfig


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
    raise unknown(name_or_path, folders)


def generated_dataset() -> Dataset:
    """The embedded stream, whatever files of that name there may be."""
    from dygmamba.data.generate import GeneratorConfig

    return generated_as(GENERATED, GeneratorConfig())


def generated_as(name: str, config: "GeneratorConfig", scratch: Path | None = None) -> Dataset:
    """A generated stream under a name; one that is large is made on the disk, in that folder."""
    from dygmamba.data.generate import generate_stream

    store = generate_stream(config, scratch)
    return Dataset.of(checked_name(name), store, NodeIds.identity(config.nodes), Origin(format=GENERATED))


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
