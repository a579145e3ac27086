"""Delimited text, block by block, so that a large file is never in memory whole."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.readers.bad_rows import NOT_TEXT, BadRows
from dygmamba.data.readers.header import WHITESPACE, Header
from dygmamba.data.readers.options import Layout, ReadOptions
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.text import (
    MAX_LINE_BYTES,
    UNDECODABLE_MARK,
    NormalizedLines,
    collapse_whitespace,
    is_utf8,
    long_line_error,
    mark_undecodable,
    open_decompressed,
    undecodable_error,
    unreadable_error,
)

BLOCK_BYTES = MAX_LINE_BYTES  # Arrow cannot read a row that is longer than a block
COLUMN_COUNT_ERROR = re.compile(r"Expected \d+ columns, got \d+")  # as Arrow words it


class MalformedRowError(Exception):
    """A row has the wrong number of columns or cannot be decoded as text, which only a slower reader can leave out."""


def open_csv(path: Path, options: ReadOptions, header: Header, format: str = "csv") -> Source:
    """Return a file with one row per line, with or without a line of column names."""

    def iterate(layout: Layout, bad_rows: BadRows) -> Iterator[pa.RecordBatch]:
        """Iterate fast, and from the first malformed row on with care."""
        rows = 0
        try:
            for batch in _iter_batches(path, header, layout, options):
                rows += len(batch)
                yield batch
        except MalformedRowError:
            yield from _skip_rows(_iter_batches(path, header, layout, options, bad_rows), rows)

    expected = 1 + path.stat().st_size // BLOCK_BYTES
    return Source(format, header.names, iterate, path, expected, header=header)


def _skip_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Leave out the first rows, and their ids in dictionaries."""
    for batch in batches:
        if rows and len(batch) > rows:
            rest = pa.Table.from_batches([batch[rows:]])
            plain = {
                field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
                for field in batch.schema
            }
            yield from rest.cast(pa.schema(plain)).cast(batch.schema).combine_chunks().to_batches()
        elif not rows:
            yield batch
        rows = max(rows - len(batch), 0)


def _iter_batches(
    path: Path, header: Header, layout: Layout, options: ReadOptions, bad_rows: BadRows | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over the columns of a layout block by block: ids dictionary-encoded, all else as text.

    Malformed rows are added to `bad_rows` and left out; without `bad_rows` they raise MalformedRowError.
    """
    refusals: list[FileError] = []
    try:
        with _open_stream(path, header, options, bad_rows is not None) as (stream, encoding):
            handler = {}
            if bad_rows is not None:
                handler["invalid_row_handler"] = _malformed_row_handler(header, bad_rows, refusals)
            yield from _iter_blocks(stream, encoding, header, layout, handler, threads=bad_rows is None)
    except UnicodeError as error:
        raise undecodable_error(path, options.encoding, options.skip_bad) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    except pa.ArrowInvalid as error:
        if refusals:
            raise refusals[0] from error
        is_undecodable, is_malformed = "UTF8" in str(error), COLUMN_COUNT_ERROR.search(str(error))
        if bad_rows is None and (is_malformed or (is_undecodable and options.skip_bad)):
            raise MalformedRowError from error
        if is_undecodable:
            raise undecodable_error(path, options.encoding, options.skip_bad) from error
        if "straddl" in str(error):  # how Arrow words that a row is longer than a block
            raise long_line_error(path) from error
        raise FileError(
            f"{path} is not readable as CSV ({first_line(error)}); check `delimiter` and quotes",
            code="not-delimited-text",
        ) from error


@contextmanager
def _open_stream(
    path: Path, header: Header, options: ReadOptions, careful: bool
) -> Iterator[tuple[Any, str]]:
    """Open the stream that Arrow parses, and its encoding: the file itself unless lines must be normalized."""
    filters = [mark_undecodable] * (careful and is_utf8(options.encoding))
    filters += [collapse_whitespace] * (header.delimiter == WHITESPACE)
    with (
        NormalizedLines(path, options.encoding, BLOCK_BYTES, *filters) if filters else open_decompressed(path)
    ) as stream:
        yield stream, "utf-8" if filters else options.encoding
        # with mixed line ends Arrow may stop early without an error
        if isinstance(stream, NormalizedLines) and not stream.at_end:
            raise FileError(
                f"only a part of {path} could be read; save it with line ends of one kind",
                code="mixed-line-ends",
            )


def _iter_blocks(
    stream: Any, encoding: str, header: Header, layout: Layout, handler: dict[str, Any], threads: bool
) -> Iterator[pa.RecordBatch]:
    ids = {name: pa.dictionary(pa.int32(), pa.string()) for name in (layout.src, layout.dst) if name}
    types = {name: pa.string() for name in layout.needed} | ids
    reader = arrow_csv.open_csv(
        stream,
        arrow_csv.ReadOptions(
            use_threads=threads,
            block_size=BLOCK_BYTES,
            column_names=header.names,
            skip_rows=header.skip,
            encoding=encoding,
        ),
        arrow_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True, **handler),
        arrow_csv.ConvertOptions(column_types=types, include_columns=layout.needed),
    )
    with reader as blocks:  # closed on an error too: its threads must not outlive the interpreter
        yield from blocks


def _malformed_row_handler(
    header: Header, bad_rows: BadRows, refusals: list[FileError]
) -> Callable[[arrow_csv.InvalidRow], str]:
    """Build the callback that Arrow calls for a row with another number of columns.

    Arrow drops an error of a callback. If there are too many such rows, it is added to `refusals` and reading ends.
    """

    def skip(row: arrow_csv.InvalidRow) -> str:
        problem = f"has {row.actual_columns} columns instead of {row.expected_columns} ({row.text[:60]!r})"
        if row.text.strip() == UNDECODABLE_MARK:
            problem = NOT_TEXT
        # Arrow counts rows from the top of the file
        advice = "correct it, or check `delimiter` and quotes"
        try:
            bad_rows.add_malformed(row.number - header.skip, problem, advice)
        except FileError as error:
            refusals.append(error)
            return "error"
        return "skip"

    return skip
