"""Readers: turn a file, folder or in-memory table of events into a `Dataset`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.core.choices import check_choice
from dygmamba.core.errors import ConfigError, EventError, FileError
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS, detect_folder_format
from dygmamba.data.readers import jodie_dyglib, numpy_files, tgb
from dygmamba.data.readers.databases import DATABASE_FORMATS
from dygmamba.data.readers.options import FORMATS, TABLE_FORMAT, ReadOptions
from dygmamba.data.readers.sources import Detected, detect, detect_format, open_source
from dygmamba.data.readers.table import read_events
from dygmamba.data.storage.locations import check_dataset_name

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.dataset import Dataset

# formats with fixed columns; all others are tables
PUBLISHED_READERS: dict[str, Callable[[Path, ReadOptions], "Dataset"]] = {
    "jodie": jodie_dyglib.read_jodie,
    "dyglib": jodie_dyglib.read_dyglib,
    "npz": numpy_files.read_npz,
    "tgb": tgb.read_tgb,
    "tgb-seq": tgb.read_tgb_seq,
}

TABLE_FORMATS = ("csv", "jsonl", "parquet", "arrow", TABLE_FORMAT)  # their columns have names

__all__ = [
    *(
        "FORMATS",
        "ReadOptions",
        "append_file",
        "detect_format",
        "read_dataset",
        "read_files",
        "read_in_memory",
    ),
    "read_more_events",
]


def read_dataset(
    path: Path, options: ReadOptions | None = None, *, format: str = "auto", name: str | None = None
) -> "Dataset":
    """Read the events of a file or leaderboard folder.

    Args:
        path: the file, or a folder as TGB or TGB-Seq publish it.
        options: which columns to read and how; what they leave open is detected.
        format: one of `FORMATS`; "auto" detects it.
        name: name of the dataset; default: derived from the path.
    """
    options = options or ReadOptions()
    check_choice("format", format, FORMATS)
    is_found = format == "auto" and detect_folder_format(path) is not None
    if not (path.is_dir() and (is_found or format in LEADERBOARD_FORMATS)):
        require_regular_file(path)
    detected = detect(path, options) if format == "auto" else Detected(format)
    if options.query is not None and detected.format not in DATABASE_FORMATS:
        raise ConfigError(
            f"`query` is for database files, and {path} is not one; leave it out",
            code="option-not-applicable",
        )
    if detected.format in PUBLISHED_READERS:
        dataset = PUBLISHED_READERS[detected.format](path, options)
    else:
        with open_source(path, options, detected) as source:
            dataset = read_events(source, options)
    origin = replace(
        dataset.origin,
        encoding="" if options.encoding == "utf-8" else options.encoding,
        decimal=options.decimal or dataset.origin.decimal,
        fill="" if options.fill is None else repr(options.fill),
    )
    name = dataset.name if name is None else check_dataset_name(name)
    return replace(dataset, name=name, origin=origin, path=path.absolute())


def read_more_events(path: Path, options: ReadOptions, dataset: "Dataset") -> "Dataset":
    """Read another file of a dataset's events: as its own file was read, except for what the options say."""
    origin, kind = dataset.origin, detect_format(path, options.recall(dataset.origin))
    if kind in ("jodie", "dyglib") and origin.format in TABLE_FORMATS:
        kind = "csv"  # the dataset's file was read as a plain table too
    if kind in TABLE_FORMATS:
        options = options.resemble(origin, dataset.store.bipartite)
    return read_dataset(path, options, format=kind)


def read_files(
    paths: Sequence[Path], options: ReadOptions, *, format: str = "auto", name: str | None = None
) -> "Dataset":
    """Read files with the same columns as one dataset; the arguments are those of `read_dataset`."""
    first, *more = paths
    dataset = read_dataset(first, options, format=format, name=name)
    for path in more:
        dataset = append_file(dataset, path, options)
    return dataset


def append_file(dataset: "Dataset", path: Path, options: ReadOptions) -> "Dataset":
    """Return the dataset with the events of another file, which is read as its own file was."""
    from dygmamba.data.storage.extension import check_time_scale, extend_dataset

    label = options.label or dataset.origin.label or None
    more = read_more_events(path, replace(options, label=label), dataset)
    check_time_scale(dataset, str(path), bool(more.origin.time_origin), more.store.time.numpy())
    try:
        return replace(extend_dataset(dataset, more), path=dataset.path)
    except EventError as error:
        raise FileError(f"{path}: {error}", code=error.code) from error


def read_in_memory(table: Any, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """Read the events of a table in memory.

    `bipartite` is the caller's setting; None means that the table's metadata decides.
    """
    with open_source(table, options) as source:
        return read_events(source, options, bipartite)
