"""Delimited text, block by block, so that a large file never lies in memory whole."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dygmamba.data.formats.faults import Faults
from dygmamba.data.formats.guess import by_place
from dygmamba.data.formats.lines import UNDECODABLE, Lines, decodable, single_blanks
from dygmamba.data.formats.options import ReadOptions, Roles, assign_roles
from dygmamba.data.formats.sniff import BLANKS, Header, read_header
from dygmamba.data.formats.table import Columns, arranged, read_table
from dygmamba.data.formats.text import is_utf8, opened, undecodable, unreadable
from dygmamba.data.ids import NodeIds
from dygmamba.data.origin import Origin
from dygmamba.errors import FileError, first_line

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

BLOCK = 4 << 20
RAGGED = re.compile(r"Expected \d+ columns, got \d+")  # Arrow's own words

__all__ = ["BLOCK", "Header", "batches", "read", "read_header", "read_rows"]


class Torn(FileError):
    """A row that has another number of columns, or is no text: only a slower pass can tell which, and go on."""


def read(path: Path, options: ReadOptions) -> "Dataset":
    """A file with one event per line, with or without a line of column names."""
    header = read_header(path, options)
    roles = assign_roles(path, header.names, by_place(path, header, options))
    columns, ids, origin = read_rows(path, "csv", header, roles, options)
    said = {"header": header.named, "delimiter": header.delimiter, "comments": header.comments}
    return arranged(path, columns, ids, replace(origin, **said))


def read_rows(
    path: Path, kind: str, header: Header, roles: Roles, options: ReadOptions
) -> tuple[Columns, NodeIds, Origin]:
    """The columns of all rows; quickly, and if a row is torn once more with care."""
    try:
        faults = Faults(str(path), options.skip_bad)
        return read_table(path, kind, batches(path, header, roles, options), roles, options, faults)
    except Torn:
        faults = Faults(str(path), options.skip_bad)
        rows = batches(path, header, roles, options, faults)
        return read_table(path, kind, rows, roles, options, faults)


def batches(
    path: Path, header: Header, roles: Roles, options: ReadOptions, faults: Faults | None = None
) -> Iterator[pa.RecordBatch]:
    """The named columns, block by block: ids as dictionaries, all else as text for the readers to judge.

    Torn rows are an error, or are told to `faults` and left out.
    """
    try:
        with _source(path, header, options, faults is not None) as (stream, encoding):
            how = {} if faults is None else {"invalid_row_handler": _teller(header, faults)}
            blocks = _blocks(stream, encoding, header, roles, how, threads=faults is None)
            yield from options.watch(blocks, 1 + path.stat().st_size // BLOCK)
    except UnicodeError as error:
        raise undecodable(path, options.encoding) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except pa.ArrowInvalid as error:
        unreadable_text, ragged = "UTF8" in str(error), RAGGED.search(str(error))
        if faults is None and (ragged or (unreadable_text and options.skip_bad)):
            raise Torn(str(path)) from error
        if unreadable_text:
            raise undecodable(path, options.encoding) from error
        why = first_line(error)
        raise FileError(f"{path} is not readable as CSV ({why}); check `delimiter` and quotes") from error


@contextmanager
def _source(path: Path, header: Header, options: ReadOptions, careful: bool) -> Iterator[tuple[Any, str]]:
    """The bytes that Arrow is given and their encoding: the file's own where it reads them as they are."""
    blanks = header.delimiter == BLANKS
    tidy = [decodable] * (careful and is_utf8(options.encoding)) + [single_blanks] * blanks
    with Lines(path, options.encoding, BLOCK, *tidy) if tidy else opened(path) as stream:
        yield stream, "utf-8" if tidy else options.encoding
        if isinstance(stream, Lines) and not stream.at_end:
            raise FileError(f"{path} was read in part only; save it with line ends of one kind")


def _blocks(
    stream: Any, encoding: str, header: Header, roles: Roles, how: dict[str, Any], threads: bool
) -> Iterator[pa.RecordBatch]:
    ids = {name: pa.dictionary(pa.int32(), pa.string()) for name in (roles.src, roles.dst)}
    types = {name: pa.string() for name in roles.columns} | ids
    opening = arrow_csv.open_csv(
        stream,
        arrow_csv.ReadOptions(
            use_threads=threads,
            block_size=BLOCK,
            column_names=header.names,
            skip_rows=header.skip,
            encoding=encoding,
        ),
        arrow_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True, **how),
        arrow_csv.ConvertOptions(column_types=types, include_columns=roles.columns),
    )
    with opening as blocks:  # closed on an error too: its threads must not outlive the interpreter
        yield from blocks


def _teller(header: Header, faults: Faults) -> Callable[[arrow_csv.InvalidRow], str]:
    """What Arrow calls for a row of another width, counting rows from the top of the file."""

    def tell(row: arrow_csv.InvalidRow) -> str:
        why = f"has {row.actual_columns} columns instead of {row.expected_columns} ({row.text[:60]!r})"
        faults.torn(row.number - header.skip, "is no UTF-8 text" if row.text.strip() == UNDECODABLE else why)
        return "skip"

    return tell
