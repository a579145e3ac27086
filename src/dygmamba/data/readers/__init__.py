"""Readers: a file of events in, a Dataset out."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.catalogue.leaderboard_folders import LEADERBOARD_FORMATS, detect_folder_format
from dygmamba.data.readers import columnar, delimited, jodie_dyglib, json_lines, numpy_files, tgb
from dygmamba.data.readers.options import FORMATS, ReadOptions
from dygmamba.data.storage.locations import SUFFIX, checked_name

if TYPE_CHECKING:  # a file that cannot be read is refused before torch is there
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
    "relbench": tgb.read_relbench,
}

UNSUPPORTED_FILES = {b"SQLi": "database", b"\x89HDF": "HDF5 file", b"%PDF": "PDF document"}

__all__ = ["FORMATS", "READERS", "ReadOptions", "detect_format", "read_dataset"]


def read_dataset(
    path: Path, options: ReadOptions | None = None, *, format: str = "auto", name: str | None = None
) -> "Dataset":
    """The events of a file, named after it unless a name is given."""
    options = options or ReadOptions()
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is unknown; choose one of {', '.join(FORMATS)}")
    if not (
        path.is_dir() and (format in LEADERBOARD_FORMATS or (format == "auto" and detect_folder_format(path)))
    ):
        _require_file(path)
    dataset = READERS[detect_format(path, options) if format == "auto" else format](path, options)
    return replace(dataset, name=dataset.name if name is None else checked_name(name), path=path.absolute())


def detect_format(path: Path, options: ReadOptions | None = None) -> str:
    """What a file is, by its first bytes and, for text, by its column names; what a folder is, by its files."""
    if (board := detect_folder_format(path)) is not None:
        return board
    _require_file(path)
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        raise FileError(f"{path} is empty; give a file with at least one event")
    if (found := _detect_binary_format(path, start)) is not None:
        return found
    options = options or ReadOptions()
    if json_lines.is_json_lines(path, options):
        return "jsonl"
    names = delimited.read_header(path, options).names
    if jodie_dyglib.is_jodie(names):
        return "jodie"
    return "dyglib" if jodie_dyglib.is_dyglib(names) else "csv"


def _detect_binary_format(path: Path, start: bytes) -> str | None:
    """What the first bytes or the ending say a file is; nothing of text, which its lines tell apart."""
    if path.suffix == SUFFIX:
        raise FileError(f"{path} is imported already; put it into the data folder")
    if start.startswith(b"PAR1") or path.suffix in {".parquet", ".pq"}:
        return "parquet"
    if start.startswith(columnar.ARROW_MAGIC) or path.suffix in {".arrow", ".feather"}:
        return "arrow"
    if path.suffix in {".xlsx", ".xls", ".ods"}:
        raise FileError(f"{path} is a spreadsheet; save it as CSV first")
    if start.startswith((b"SQLite f", b"\x89HDF", b"%PDF")):
        raise FileError(
            f"{path} is a {UNSUPPORTED_FILES[start[:4]]}; save its events as CSV, JSONL or Parquet first"
        )
    return "npz" if start.startswith(b"PK\x03\x04") or path.suffix == ".npz" else None


def _require_file(path: Path) -> None:
    if re.search("[\ud800-\udfff]", str(path)):  # bytes that are no letters, which Arrow does not open
        raise FileError(f"{path} has a name that is no text in this locale; rename it")
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a file in it")
    if not path.exists():
        raise FileError(f"{path} does not exist; check the name and the folder")
    if not (path.is_file() and os.access(path, os.R_OK)):
        raise FileError(f"{path} is not a file you may read; check what it is and its permissions")
