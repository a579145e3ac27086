"""Readers: turn a file, folder or in-memory table of events into a `Dataset`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS, detect_folder_format
from dygmamba.data.readers import (
    columnar,
    databases,
    delimited,
    jodie_dyglib,
    json_lines,
    numpy_files,
    tgb,
)
from dygmamba.data.readers.header import read_header
from dygmamba.data.readers.options import FORMATS, TABLE_FORMAT, ReadOptions
from dygmamba.data.readers.text import ZIP_MAGIC, is_zipped_text
from dygmamba.data.storage.locations import DATASET_SUFFIX, check_dataset_name

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.dataset import Dataset

READERS: dict[str, Callable[[Path, ReadOptions], "Dataset"]] = {
    "csv": delimited.read_csv,
    "jsonl": json_lines.read_json_lines,
    "parquet": columnar.read_parquet,
    "arrow": columnar.read_arrow,
    "jodie": jodie_dyglib.read_jodie,
    "dyglib": jodie_dyglib.read_dyglib,
    "npz": numpy_files.read_npz,
    "tgb": tgb.read_tgb,
    "tgb-seq": tgb.read_tgb_seq,
    "sqlite": databases.read_sqlite,
    "duckdb": databases.read_duckdb,
}

TABLE_FORMATS = ("csv", "jsonl", "parquet", "arrow", TABLE_FORMAT)  # their columns have names
# formats that are recognised by the first bytes of a file, and by its suffix
MAGIC_FORMATS = {b"PAR1": "parquet", columnar.ARROW_MAGIC: "arrow", databases.SQLITE_MAGIC: "sqlite"}
SUFFIX_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
UNSUPPORTED_FILES = {b"\x89HDF": "HDF5 file", b"%PDF": "PDF document"}

__all__ = ["FORMATS", "READERS", "ReadOptions", "detect_format", "read_dataset", "read_more_events"]


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
    if format not in FORMATS:
        raise ConfigError(
            f"format {format!r} is unknown; choose one of {', '.join(FORMATS)}", code="unknown-format"
        )
    if not (
        path.is_dir() and (format in LEADERBOARD_FORMATS or (format == "auto" and detect_folder_format(path)))
    ):
        require_regular_file(path)
    format = detect_format(path, options) if format == "auto" else format
    if options.query is not None and format not in databases.DATABASE_FORMATS:
        raise ConfigError(
            f"`query` is for database files, and {path} is not one; leave it out",
            code="option-not-applicable",
        )
    dataset = READERS[format](path, options)
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


def detect_format(path: Path, options: ReadOptions | None = None) -> str:
    """Detect the format of a folder by its files, of a file by its first bytes, of text by its column names."""
    if (folder_format := detect_folder_format(path)) is not None:
        return folder_format
    require_regular_file(path)
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise FileError(f"{path} is empty; give a file with at least one event", code="empty-file")
    if (binary_format := _detect_binary_format(path, start)) is not None:
        return binary_format
    options = options or ReadOptions()
    if json_lines.is_json_lines(path, options):
        return "jsonl"
    names = read_header(path, options).names
    if jodie_dyglib.is_jodie(names):
        return "jodie"
    return "dyglib" if jodie_dyglib.is_dyglib(names) else "csv"


def _detect_binary_format(path: Path, start: bytes) -> str | None:
    """Detect a format by the first bytes or the suffix; None for text, whose columns decide."""
    if path.suffix == DATASET_SUFFIX:
        raise FileError(
            f"{path} is already a dataset file; move it into the data folder instead of importing it",
            code="already-imported",
        )
    for magic, format in MAGIC_FORMATS.items():
        if start.startswith(magic):
            return format
    if start[databases.DUCKDB_MAGIC_AT :].startswith(databases.DUCKDB_MAGIC):
        return "duckdb"
    if path.suffix in SUFFIX_FORMATS:
        return SUFFIX_FORMATS[path.suffix]
    if path.suffix in {".xlsx", ".xls", ".ods"}:
        raise FileError(f"{path} is a spreadsheet; save it as CSV first", code="unsupported-file")
    for magic, kind in UNSUPPORTED_FILES.items():
        if start.startswith(magic):
            raise FileError(
                f"{path} is a {kind}; save its events as CSV, JSONL or Parquet first", code="unsupported-file"
            )
    if start.startswith(ZIP_MAGIC) and is_zipped_text(path):
        return None
    return "npz" if start.startswith(ZIP_MAGIC) or path.suffix == ".npz" else None
