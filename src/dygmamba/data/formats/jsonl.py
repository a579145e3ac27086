"""JSON objects, one per line and event: the words of each as text, for the readers of delimited text to judge."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dygmamba.data.formats.faults import Faults
from dygmamba.data.formats.lines import UNDECODABLE, Lines, decodable
from dygmamba.data.formats.options import ReadOptions, Roles, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.formats.text import decoder_of, head, is_utf8, unreadable
from dygmamba.errors import FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

ROWS = 1 << 16
BLOCK = 1 << 20
SAMPLE = 100  # objects whose keys are the column names
SUFFIXES = {".jsonl", ".ndjson"}


def matches(path: Path, options: ReadOptions) -> bool:
    """Whether a file holds objects: by its name, or by its first letter."""
    if SUFFIXES & set(path.suffixes):
        return True
    text, _ = head(path, options.encoding)
    if text.lstrip().startswith("[") and ".json" in path.suffixes:
        raise FileError(f"{path} is one JSON array; write one object per line, as jq -c '.[]' does")
    return text.lstrip().startswith("{")


def read(path: Path, options: ReadOptions) -> "Dataset":
    """One object per line; its keys are the columns."""
    options.refuse("JSONL", "delimiter", "header")
    decoder_of(options.encoding)
    faults = Faults(str(path), options.skip_bad)
    roles = assign_roles(path, read_names(path, options), options)
    rows = options.watch(batches(path, roles, options, faults), 1 + path.stat().st_size // (100 * ROWS))
    try:
        columns, ids, origin = read_table(path, "jsonl", rows, roles, options, faults)
    except OSError as error:
        raise unreadable(path, error) from error
    return arranged(path, columns, ids, replace(origin, header=True))


def read_names(path: Path, options: ReadOptions) -> list[str]:
    """The keys of the first objects, in the order they come."""
    try:
        found = [fields for _, fields in islice(_objects(path, options), SAMPLE) if isinstance(fields, dict)]
    except OSError as error:
        raise unreadable(path, error) from error
    if not found:
        raise FileError(f"{path} has no JSON object in its first lines; write one object per line and event")
    return list(dict.fromkeys(key for fields in found for key in fields))


def _objects(path: Path, options: ReadOptions) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The number of each row and its object, numbers as they are written; or what is wrong with it."""
    tidy = [decodable] if is_utf8(options.encoding) else []
    row = 0
    with Lines(path, options.encoding, BLOCK, *tidy) as lines:
        for line in lines:
            text = line.decode().strip().removeprefix("\ufeff")
            if text:
                row += 1
                yield row, _object(text)


def _object(text: str) -> dict[str, Any] | str:
    if text == UNDECODABLE:
        return "is no UTF-8 text"
    try:
        fields = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return f"is no JSON ({text[:60]!r})"
    return fields if isinstance(fields, dict) else f"is no JSON object ({text[:60]!r})"


def batches(path: Path, roles: Roles, options: ReadOptions, faults: Faults) -> Iterator[pa.RecordBatch]:
    """The named columns as text, ids as dictionaries; lines that are no objects are told and left out."""
    kept: list[list[str | None]] = []
    for row, fields in _objects(path, options):
        values = fields if isinstance(fields, str) else _values(fields, roles)
        if isinstance(values, str):
            faults.torn(row, values)
        else:
            kept.append(values)
        if len(kept) == ROWS:
            yield _batch(kept, roles)
            kept = []
    if kept:
        yield _batch(kept, roles)


def _values(fields: dict[str, Any], roles: Roles) -> list[str | None] | str:
    """The text of each column, None where there is none; what is wrong where one is no single value."""
    values: list[str | None] = []
    for name in roles.columns:
        value = fields.get(name)
        if isinstance(value, dict | list) or (isinstance(value, bool) and name in (roles.src, roles.dst)):
            return f"has {json.dumps(value)[:60]} for {name!r}, no single value"
        values.append(value if value is None or isinstance(value, str) else str(value))
    return values


def _batch(rows: list[list[str | None]], roles: Roles) -> pa.RecordBatch:
    columns = {}
    for name, values in zip(roles.columns, zip(*rows, strict=True), strict=True):
        column = pa.array(values, pa.string())
        columns[name] = column.dictionary_encode() if name in (roles.src, roles.dst) else column
    return pa.RecordBatch.from_pydict(columns)
