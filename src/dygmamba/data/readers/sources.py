"""The one place that knows the formats: recognises what a table is, and opens it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dygmamba.core.errors import FileError
from dygmamba.core.files.untrusted import require_regular_file
from dygmamba.data.catalogue.leaderboard_folders import detect_folder_format
from dygmamba.data.readers import columnar, databases, jodie_dyglib
from dygmamba.data.readers.delimited import open_csv
from dygmamba.data.readers.header import Header, read_header
from dygmamba.data.readers.in_memory import is_in_memory, open_in_memory
from dygmamba.data.readers.json_lines import is_json_lines, open_json_lines
from dygmamba.data.readers.options import ReadOptions
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.text import ZIP_MAGIC, is_zipped_text, read_head
from dygmamba.data.storage.locations import DATASET_SUFFIX

TEXT_FORMATS = ("csv", "jodie", "dyglib")  # delimited, so that each can be read as a plain table too
OPENERS: dict[str, Callable[[Path, ReadOptions], AbstractContextManager[Source]]] = {
    "jsonl": open_json_lines,
    "parquet": lambda path, _: columnar.open_parquet(path),
    "arrow": lambda path, _: columnar.open_arrow(path),
    "sqlite": databases.open_sqlite,
    "duckdb": databases.open_duckdb,
}
# formats that are recognised by the first bytes of a file, and by its suffix
MAGIC_FORMATS = {b"PAR1": "parquet", columnar.ARROW_MAGIC: "arrow", databases.SQLITE_MAGIC: "sqlite"}
SUFFIX_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
# with which the name of a file ends, and hardly ever an id
FILE_SUFFIXES = {
    *SUFFIX_FORMATS,
    *(".csv", ".tsv", ".tab", ".txt", ".json", ".jsonl", ".ndjson", ".npz", ".xlsx", ".sqlite", ".db"),
    *(".gz", ".bz2", ".zst", ".zip"),
}
UNSUPPORTED_FILES = {b"\x89HDF": "HDF5 file", b"%PDF": "PDF document"}


class Detected(NamedTuple):
    """The format of a file, and its first lines if it is delimited text."""

    format: str
    header: Header | None = None


@contextmanager
def open_source(anything: Any, options: ReadOptions, detected: Detected | None = None) -> Iterator[Source]:
    """Open a table: a file, or an object that `open_in_memory` accepts.

    `detected` is the format of a file if it is known. Raises FileError for files that are no tables.
    """
    if is_in_memory(anything):
        yield open_in_memory(anything)
        return
    path = Path(anything)
    format, header = detected or detect(path, options)
    if format in TEXT_FORMATS:
        yield open_csv(path, options, header or read_header(path, options))
    elif format in OPENERS:
        with OPENERS[format](path, options) as source:
            yield source
    else:
        raise FileError(
            f"{path} is no table but {'arrays' if format == 'npz' else f'a folder of {format}'}; give a CSV, JSONL, "
            "Parquet or Arrow file",
            code="unsupported-file",
        )


def looks_like_file(text: str) -> bool:
    """Return whether text looks like the name of a file: by its suffix, or because it has a folder."""
    return "/" in text or "\\" in text or Path(text).suffix.lower() in FILE_SUFFIXES


def detect_format(path: Path, options: ReadOptions | None = None) -> str:
    """Detect the format of a folder by its files, of a file by its first bytes, of text by its column names."""
    return detect(path, options or ReadOptions()).format


def detect(path: Path, options: ReadOptions) -> Detected:
    """Detect the format, and keep the first lines of delimited text, so that they are read once."""
    if (folder_format := detect_folder_format(path)) is not None:
        return Detected(folder_format)
    require_regular_file(path)
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise FileError(f"{path} is empty; give a file with at least one event", code="empty-file")
    if (binary_format := _detect_binary_format(path, start)) is not None:
        return Detected(binary_format)
    head = read_head(path, options.encoding)
    if is_json_lines(path, head[0]):
        return Detected("jsonl")
    header = read_header(path, options, head)
    if jodie_dyglib.is_jodie(header.names):
        return Detected("jodie", header)
    return Detected("dyglib" if jodie_dyglib.is_dyglib(header.names) else "csv", header)


def read_text_head(path: Path, options: ReadOptions) -> str | None:
    """Return the beginning of a file of plain text, delimited or not; None for any other file."""
    require_regular_file(path)
    with path.open("rb") as file:
        start = file.read(16)
    if not start or _detect_binary_format(path, start) is not None:
        return None
    head, _ = read_head(path, options.encoding)
    return None if is_json_lines(path, head) else head


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
