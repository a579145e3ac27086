"""JSON Lines: one line per event, each a JSON object. Values become text, parsed by the rules of delimited text."""

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json

from dygmamba.core.errors import FileError
from dygmamba.data.events.id_values import parse_id
from dygmamba.data.readers.bad_rows import NOT_TEXT, BadRows
from dygmamba.data.readers.options import Layout, ReadOptions
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.text import (
    UNDECODABLE_MARK,
    NormalizedLines,
    is_utf8,
    mark_undecodable,
    undecodable_error,
    unreadable_error,
)

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 1 << 20  # also the longest line
BLOCKS_AT_ONCE = 4  # parsed by one call
SAMPLE_OBJECTS = 100  # their keys are the column names
SUFFIXES = {".jsonl", ".ndjson"}
# Numbers stay as they are written: ids and timestamps may have more digits than a float. The scanner is the decoder
# without its searches for whitespace, which cost more than parsing a line.
scan_value = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str).scan_once  # pyright: ignore[reportAttributeAccessIssue]
TEXT_TYPES = {str, type(None)}
MINUS_ZERO = re.compile(rb"-0(?![.\d])")


def is_json_lines(path: Path, head: str) -> bool:
    """Return whether a file holds JSON objects, by its suffix or its first character."""
    if SUFFIXES & set(path.suffixes):
        return True
    if head.lstrip().startswith("[") and ".json" in path.suffixes:
        raise FileError(
            f"{path} is one JSON array; write one object per line, as jq -c '.[]' does",
            code="unsupported-file",
        )
    return head.lstrip().startswith("{")


@contextmanager
def open_json_lines(path: Path, options: ReadOptions) -> Iterator[Source]:
    """Open a file with one object per line; its keys are the columns."""

    def iterate(layout: Layout, bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        return _iter_batches(path, layout, options, bad_rows)

    try:
        expected = 1 + path.stat().st_size // (100 * BATCH_ROWS)
        yield Source("jsonl", read_keys(path, options), iterate, path, expected)
    except UnicodeError as error:
        raise undecodable_error(path, options.encoding, options.skip_bad) from error
    except OSError as error:
        raise unreadable_error(path, error) from error


def read_keys(path: Path, options: ReadOptions) -> tuple[str, ...]:
    """Return the keys of the first objects, in order of appearance."""
    texts = chain.from_iterable(map(_split_lines, _iter_blocks(path, options)))
    lines = [_parse_object(text) for text in islice(texts, SAMPLE_OBJECTS)]
    objects = [fields for fields in lines if isinstance(fields, dict)]
    if not objects:
        problem = f": data row 1 {lines[0]}" if lines else ""
        raise FileError(
            f"{path} has no JSON object in its first lines{problem}; write one line per event, each a JSON object",
            code="no-json-objects",
        )
    return tuple(dict.fromkeys(key for fields in objects for key in fields))


def _iter_blocks(path: Path, options: ReadOptions) -> Iterator[bytes]:
    """Iterate over runs of whole lines in UTF-8."""
    filters = [mark_undecodable] if is_utf8(options.encoding) else []
    with NormalizedLines(path, options.encoding, BLOCK_BYTES, *filters) as lines:
        blocks = lines.iter_blocks()
        while several := b"".join(islice(blocks, BLOCKS_AT_ONCE)):
            yield several


def _split_lines(block: bytes) -> Iterator[str]:
    """Iterate over the lines that are not empty."""
    for line in BytesIO(block):
        text = line.decode().strip().removeprefix("\ufeff")
        if text:
            yield text


def _parse_object(text: str) -> dict[str, Any] | str:
    if text == UNDECODABLE_MARK:
        return NOT_TEXT
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


def _iter_batches(
    path: Path, layout: Layout, options: ReadOptions, bad_rows: BadRows
) -> Iterator[pa.RecordBatch]:
    """Iterate over the columns of a layout as text; lines that cannot be used go to `bad_rows`."""
    waiting = pa.schema([(name, pa.string()) for name in layout.needed]).empty_table()
    first = 1
    for block, table in _parse_blocks(_iter_blocks(path, options), layout):
        if table is None:
            texts = list(_split_lines(block))
            table = _parse_lines(texts, layout, bad_rows, first)
            first += len(texts)
        else:
            first += table.num_rows
        waiting = pa.concat_tables([waiting, table])
        while waiting.num_rows >= BATCH_ROWS:
            yield waiting[:BATCH_ROWS].combine_chunks().to_batches()[0]
            waiting = waiting[BATCH_ROWS:]
    if waiting.num_rows:
        yield waiting.combine_chunks().to_batches()[0]


def _parse_blocks(blocks: Iterator[bytes], layout: Layout) -> Iterator[tuple[bytes, pa.Table | None]]:
    """Yield each block with its lines parsed by Arrow, or None; threads are a few blocks ahead."""
    first = next(blocks, b"")
    schema = _detect_schema(islice(_split_lines(first), SAMPLE_OBJECTS), layout)
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        running: deque[tuple[bytes, Future[pa.Table | None]]] = deque()
        for block in chain([first], blocks):
            running.append((block, pool.submit(_parse_with_arrow, block, schema, layout.time)))
            if len(running) > threads:
                done, table = running.popleft()
                yield done, table.result()
        for done, table in running:
            yield done, table.result()


def _parse_lines(texts: list[str], layout: Layout, bad_rows: BadRows, first: int) -> pa.Table:
    """Parse lines one by one; those that cannot be used go to `bad_rows`."""
    rows: list[list[str | None]] = []
    for row, text in enumerate(texts, first):
        fields = _parse_object(text)
        values = fields if isinstance(fields, str) else _extract_fields(fields, layout)
        if isinstance(values, str):
            bad_rows.add_malformed(row, values)
        else:
            rows.append(values)
    columns = zip(*rows, strict=True) if rows else [[] for _ in layout.needed]
    return pa.table(
        {name: pa.array(values, pa.string()) for name, values in zip(layout.needed, columns, strict=True)}
    )


def _detect_schema(texts: Iterable[str], layout: Layout) -> pa.Schema | None:
    """Return the types by which Arrow parses lines like these to the same text; None if it cannot.

    Ids and categories must be strings or integers, because other numbers are not kept as they are written. Times may
    be fractions: another spelling of a fraction is the same float64.
    """
    kinds: dict[str, set[type]] = {name: set() for name in layout.needed}
    try:
        for text in texts:
            fields = json.loads(text)
            for name, found in kinds.items():
                found.add(type(fields.get(name)))
    except (ValueError, RecursionError, AttributeError):
        return None
    exact = {layout.src, layout.dst, *layout.types}
    types = {}
    for name, found in kinds.items():
        found -= {type(None)}
        if found == {int} or found <= {str}:
            types[name] = pa.int64() if found == {int} else pa.string()
        elif found <= {int, float} and name not in exact and (name != layout.time or found == {float}):
            types[name] = pa.float64()
        else:
            return None
    return pa.schema(types)


def _parse_with_arrow(block: bytes, schema: pa.Schema | None, time: str | None) -> pa.Table | None:
    """Parse lines with Arrow, many times as fast as one by one; None if a line does not fit the schema."""
    if schema is None:
        return None
    lines = (block.replace(b"\r\n", b"\n") if b"\r" in block else block).strip()
    count = 1 + lines.count(b"\n")
    # one object per line: else one may go over two lines
    is_framed = lines[:1] + lines[-1:] == b"{}" and lines.count(b"}\n{") == count - 1
    if not is_framed or MINUS_ZERO.search(lines):  # Arrow would write -0 as 0
        return None
    parsing = arrow_json.ParseOptions(schema, unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), reading, parsing)
    except pa.ArrowInvalid:  # also for a key that an object has twice, and for escapes of half a character
        return None
    if table.num_rows != count:
        return None
    if time in schema.names and pa.types.is_floating(schema.field(time).type):
        times = table[time].drop_null().to_numpy()
        # ticks are whole numbers, which are divided exactly if they are still written as such
        if (np.floor(times) == times).all():
            return None
    return table.select(schema.names).cast(pa.schema({name: pa.string() for name in schema.names}))


def _extract_fields(fields: dict[str, Any], layout: Layout) -> list[str | None] | str:
    """Return each column as text, None if it is missing; or what is wrong with a value that is not a scalar."""
    names = layout.needed
    values: list[Any] = [fields.get(name) for name in names]
    if TEXT_TYPES.issuperset(map(type, values)):
        return values
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        if name in layout.candidates and isinstance(value, dict | list):
            values[k] = None  # the column was not asked for
            continue
        if isinstance(value, dict | list):
            return f"has {json.dumps(value)[:60]} for {name!r}, which is not a single value"
        try:
            is_id = name in (layout.src, layout.dst) and not isinstance(value, str | None)
            values[k] = parse_id(value) if is_id else value if value is None else str(value)
        except ValueError:
            return f"has {json.dumps(value)[:60]} for {name!r}, which is not an id"
    return values
