"""JSON Lines: one line per event, each a JSON object. Values become text, parsed by the rules of delimited text."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dygmamba.core.errors import FileError
from dygmamba.data.readers.options import ColumnRoles, ReadOptions, assign_roles
from dygmamba.data.readers.table import build_dataset, read_table
from dygmamba.data.readers.text import (
    UNDECODABLE_MARK,
    NormalizedLines,
    is_utf8,
    mark_undecodable,
    read_head,
    undecodable_error,
    unreadable_error,
)
from dygmamba.data.readers.values import BadRows

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 1 << 20
SAMPLE_OBJECTS = 100  # their keys are the column names
SUFFIXES = {".jsonl", ".ndjson"}
# Numbers stay as they are written: ids and timestamps may have more digits than a float. The scanner is the decoder
# without its searches for whitespace, which cost more than parsing a line.
scan_value = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str).scan_once  # pyright: ignore[reportAttributeAccessIssue]
TEXT_TYPES = {str, type(None)}


def is_json_lines(path: Path, options: ReadOptions) -> bool:
    """Whether a file holds JSON objects, by its suffix or its first character."""
    if SUFFIXES & set(path.suffixes):
        return True
    text, _ = read_head(path, options.encoding)
    if text.lstrip().startswith("[") and ".json" in path.suffixes:
        raise FileError(
            f"{path} is one JSON array; write one object per line, as jq -c '.[]' does",
            code="unsupported-file",
        )
    return text.lstrip().startswith("{")


def read_json_lines(path: Path, options: ReadOptions) -> "Dataset":
    """Read a file with one object per line; its keys are the columns."""
    options.reject("JSONL", "delimiter", "header")
    bad_rows = BadRows(str(path), options.skip_bad)
    roles = assign_roles(path, read_keys(path, options), options)
    expected = 1 + path.stat().st_size // (100 * BATCH_ROWS)
    batches = options.watch(iter_json_batches(path, roles, options, bad_rows), expected)
    try:
        columns, ids, origin = read_table(path, "jsonl", batches, roles, options, bad_rows)
    except UnicodeError as error:
        raise undecodable_error(path, options.encoding, options.skip_bad) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    return build_dataset(path, columns, ids, replace(origin, header=True))


def read_keys(path: Path, options: ReadOptions) -> list[str]:
    """Return the keys of the first objects, in order of appearance."""
    read_head(path, options.encoding)  # reports archives, binary files and other encodings
    try:
        lines = [fields for _, fields in islice(_iter_objects(path, options), SAMPLE_OBJECTS)]
    except UnicodeError as error:
        raise undecodable_error(path, options.encoding, options.skip_bad) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    objects = [fields for fields in lines if isinstance(fields, dict)]
    if not objects:
        problem = f": data row 1 {lines[0]}" if lines else ""
        raise FileError(
            f"{path} has no JSON object in its first lines{problem}; write one line per event, each a JSON object",
            code="no-json-objects",
        )
    return list(dict.fromkeys(key for fields in objects for key in fields))


def _iter_objects(path: Path, options: ReadOptions) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Iterate over row numbers and objects; a line that is not an object yields a description of its problem."""
    filters = [mark_undecodable] if is_utf8(options.encoding) else []
    row = 0
    with NormalizedLines(path, options.encoding, BLOCK_BYTES, *filters) as lines:
        for block in lines.iter_blocks():
            for line in block.decode().split("\n"):
                text = line.strip().removeprefix("\ufeff")
                if text:
                    row += 1
                    yield row, _parse_object(text)


def _parse_object(text: str) -> dict[str, Any] | str:
    if text == UNDECODABLE_MARK:
        return "is not UTF-8 text"
    try:
        fields, end = scan_value(text, 0)
        if end < len(text):
            raise ValueError("more than one value")
        if "\\u" in text:
            json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except UnicodeEncodeError:
        return f"has an escape that is half of a character ({text[:60]!r})"
    except (ValueError, StopIteration, RecursionError):
        return f"is not JSON ({text[:60]!r})"
    return fields if isinstance(fields, dict) else f"is not a JSON object ({text[:60]!r})"


def iter_json_batches(
    path: Path, roles: ColumnRoles, options: ReadOptions, bad_rows: BadRows
) -> Iterator[pa.RecordBatch]:
    """Iterate over the columns of `roles` as text, ids dictionary-encoded; other lines go to `bad_rows`."""
    rows: list[list[str | None]] = []
    names = roles.columns
    for row, fields in _iter_objects(path, options):
        values = fields if isinstance(fields, str) else _extract_fields(fields, names, roles)
        if isinstance(values, str):
            bad_rows.add_malformed(row, values)
        else:
            rows.append(values)
        if len(rows) == BATCH_ROWS:
            yield _build_batch(rows, roles)
            rows = []
    if rows:
        yield _build_batch(rows, roles)


def _extract_fields(fields: dict[str, Any], names: list[str], roles: ColumnRoles) -> list[str | None] | str:
    """Return each column as text, None if it is missing; or what is wrong with a value that is not a scalar."""
    values: list[Any] = [fields.get(name) for name in names]
    if TEXT_TYPES.issuperset(map(type, values)):
        return values
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        if name in roles.candidates and isinstance(value, dict | list):
            values[k] = None  # the column was not asked for
            continue
        if isinstance(value, dict | list) or (isinstance(value, bool) and name in (roles.src, roles.dst)):
            expected = "an id" if isinstance(value, bool) else "a single value"
            return f"has {json.dumps(value)[:60]} for {name!r}, which is not {expected}"
        values[k] = value if value is None else str(value)
    return values


def _build_batch(rows: list[list[str | None]], roles: ColumnRoles) -> pa.RecordBatch:
    columns = {}
    for name, values in zip(roles.columns, zip(*rows, strict=True), strict=True):
        column = pa.array(values, pa.string())
        columns[name] = column.dictionary_encode() if name in (roles.src, roles.dst) else column
    return pa.RecordBatch.from_pydict(columns)
