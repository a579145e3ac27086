"""Delimited text, block by block, so that a large file never lies in memory whole."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.header import WHITESPACE, Header, assign_by_position, read_header
from dygmamba.data.readers.options import ColumnRoles, ReadOptions, assign_roles
from dygmamba.data.readers.table import EventColumns, build_dataset, read_table
from dygmamba.data.readers.text import (
    UNDECODABLE_MARK,
    NormalizedLines,
    collapse_whitespace,
    is_utf8,
    mark_undecodable,
    open_decompressed,
    undecodable_error,
    unreadable_error,
)
from dygmamba.data.readers.values import BadRows

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

BLOCK_BYTES = 4 << 20
COLUMN_COUNT_ERROR = re.compile(r"Expected \d+ columns, got \d+")  # Arrow's own words


class MalformedRowError(FileError):
    """A row that has another number of columns, or is no text: only a slower pass can tell which, and go on."""


def read_csv(path: Path, options: ReadOptions) -> "Dataset":
    """A file with one event per line, with or without a line of column names."""
    header = read_header(path, options)
    roles = assign_roles(path, header.names, assign_by_position(path, header, options))
    columns, ids, origin = read_csv_rows(path, "csv", header, roles, options)
    said = {"header": header.named, "delimiter": header.delimiter, "comments": header.comments}
    return build_dataset(path, columns, ids, replace(origin, **said))


def read_csv_rows(
    path: Path, kind: str, header: Header, roles: ColumnRoles, options: ReadOptions
) -> tuple[EventColumns, NodeIds, Origin]:
    """The columns of all rows; quickly, and if a row is torn once more with care."""
    try:
        faults = BadRows(str(path), options.skip_bad)
        return read_table(path, kind, iter_csv_batches(path, header, roles, options), roles, options, faults)
    except MalformedRowError:
        faults = BadRows(str(path), options.skip_bad)
        rows = iter_csv_batches(path, header, roles, options, faults)
        return read_table(path, kind, rows, roles, options, faults)


def iter_csv_batches(
    path: Path, header: Header, roles: ColumnRoles, options: ReadOptions, faults: BadRows | None = None
) -> Iterator[pa.RecordBatch]:
    """The named columns, block by block: ids as dictionaries, all else as text for the readers to judge.

    Torn rows are an error, or are told to `faults` and left out.
    """
    try:
        with _open_source(path, header, options, faults is not None) as (stream, encoding):
            how = {} if faults is None else {"invalid_row_handler": _malformed_row_handler(header, faults)}
            blocks = _iter_blocks(stream, encoding, header, roles, how, threads=faults is None)
            yield from options.watch(blocks, 1 + path.stat().st_size // BLOCK_BYTES)
    except UnicodeError as error:
        raise undecodable_error(path, options.encoding) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    except pa.ArrowInvalid as error:
        unreadable_text, ragged = "UTF8" in str(error), COLUMN_COUNT_ERROR.search(str(error))
        if faults is None and (ragged or (unreadable_text and options.skip_bad)):
            raise MalformedRowError(str(path)) from error
        if unreadable_text:
            raise undecodable_error(path, options.encoding) from error
        why = first_line(error)
        raise FileError(f"{path} is not readable as CSV ({why}); check `delimiter` and quotes") from error


@contextmanager
def _open_source(
    path: Path, header: Header, options: ReadOptions, careful: bool
) -> Iterator[tuple[Any, str]]:
    """The bytes that Arrow is given and their encoding: the file's own where it reads them as they are."""
    blanks = header.delimiter == WHITESPACE
    tidy = [mark_undecodable] * (careful and is_utf8(options.encoding)) + [collapse_whitespace] * blanks
    with (
        NormalizedLines(path, options.encoding, BLOCK_BYTES, *tidy)
        if tidy
        else open_decompressed(path) as stream
    ):
        yield stream, "utf-8" if tidy else options.encoding
        if isinstance(stream, NormalizedLines) and not stream.at_end:
            raise FileError(f"{path} was read in part only; save it with line ends of one kind")


def _iter_blocks(
    stream: Any, encoding: str, header: Header, roles: ColumnRoles, how: dict[str, Any], threads: bool
) -> Iterator[pa.RecordBatch]:
    ids = {name: pa.dictionary(pa.int32(), pa.string()) for name in (roles.src, roles.dst)}
    types = {name: pa.string() for name in roles.columns} | ids
    opening = arrow_csv.open_csv(
        stream,
        arrow_csv.ReadOptions(
            use_threads=threads,
            block_size=BLOCK_BYTES,
            column_names=header.names,
            skip_rows=header.skip,
            encoding=encoding,
        ),
        arrow_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True, **how),
        arrow_csv.ConvertOptions(column_types=types, include_columns=roles.columns),
    )
    with opening as blocks:  # closed on an error too: its threads must not outlive the interpreter
        yield from blocks


def _malformed_row_handler(header: Header, faults: BadRows) -> Callable[[arrow_csv.InvalidRow], str]:
    """What Arrow calls for a row of another width, counting rows from the top of the file."""

    def tell(row: arrow_csv.InvalidRow) -> str:
        why = f"has {row.actual_columns} columns instead of {row.expected_columns} ({row.text[:60]!r})"
        faults.torn(
            row.number - header.skip, "is no UTF-8 text" if row.text.strip() == UNDECODABLE_MARK else why
        )
        return "skip"

    return tell
