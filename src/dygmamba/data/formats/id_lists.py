"""Ids in a file: one per line, with or without a heading, or a column of destinations in a table."""

from collections.abc import Sequence
from csv import Error, reader
from pathlib import Path

import pyarrow as pa

from dygmamba.data.formats import csv, detect_format
from dygmamba.data.formats.columnar import COLUMNAR, read_columns
from dygmamba.data.formats.options import USUAL_NAMES, ReadOptions, Roles
from dygmamba.data.formats.pairs import as_ids
from dygmamba.data.formats.values import Place
from dygmamba.data.store import Origin
from dygmamba.errors import FileError, NotFoundError

HEADINGS = {"id", "ids", "node", "nodes", "name", "account", "candidate", "candidates"}
HEAD = 1 << 16  # bytes that hold the first line
BINARY = (b"PAR1", b"ARROW1", b"PK\x03\x04")  # Parquet, Arrow, and what NumPy and spreadsheets pack with


def read_list(path: Path, options: ReadOptions, origin: Origin) -> pa.Array | None:
    """The ids of a text file of one column; None where it is something else, or cannot be read as a list."""
    delimiter = options.delimiter or ("\t" if path.suffix in (".tsv", ".tab") else ",")
    try:
        if not path.is_file() or _is_table(path, options.encoding, delimiter):
            return None
        text = path.read_bytes().decode(options.encoding).removeprefix("\ufeff")
        rows = [row for row in reader(text.splitlines(), delimiter=delimiter) if row]
    except (OSError, LookupError, ValueError, TypeError, Error):
        return None  # whoever reads it as a table says what is wrong
    if not rows or any(len(row) > 1 for row in rows):
        return None
    names = {name for usual in USUAL_NAMES.values() for name in usual} | HEADINGS
    own, head = {origin.src, origin.dst, options.src, options.dst}, rows[0][0].strip()
    ids = rows[1:] if head.lower() in names or head in own else rows
    if not ids:
        raise FileError(f"{path} has a heading but no ids; give at least one")
    return as_ids(pa.array([row[0] for row in ids], pa.large_string()), Place(str(path), head, 0))


def _is_table(path: Path, encoding: str, delimiter: str) -> bool:
    """Whether the first line has several columns, or is no text: a large table is not read to find that out."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    lines = head.decode(encoding, "ignore").splitlines()
    return head.startswith(BINARY) or any(len(row) > 1 for row in reader(lines[:1], delimiter=delimiter))


def read_ids(path: Path, options: ReadOptions, origin: Origin) -> pa.Array:
    """The ids of a list, or a table's column of destinations."""
    listed = read_list(path, options, origin)
    if listed is not None:
        return listed
    kind, where = detect_format(path, options), str(path)
    if kind == "npz":
        raise FileError(f"{path} holds arrays, not ids; give a CSV or Parquet file, or one id per line")
    if kind in COLUMNAR:
        table = read_columns(path, kind, lambda names: [_destinations(path, names, options, origin)])
        name, column = table.column_names[0], table.column(0)
    else:
        header = csv.read_header(path, options)
        name = _destinations(path, header.names, options, origin)
        column = pa.Table.from_batches(csv.batches(path, header, Roles(name, name, name), options))[name]
    if not len(column):
        raise FileError(f"{path} has no rows; give at least one id")
    return as_ids(column.combine_chunks(), Place(where, name, 0))


def _destinations(path: Path, names: Sequence[str], options: ReadOptions, origin: Origin) -> str:
    lower = {name.lower(): name for name in reversed(names)}
    own = [name for name in (options.dst, origin.dst) if name in names]
    found = [*own, *(lower[name] for name in USUAL_NAMES["dst"] if name in lower)]
    if not found and len(names) > 1:
        raise NotFoundError(
            f"{path} has no column of destinations among {', '.join(names)}; name it 'dst', or give one id per line"
        )
    return found[0] if found else names[0]
