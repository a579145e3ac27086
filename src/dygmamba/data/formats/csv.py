"""Delimited text, block by block, so that a large file never lies in memory whole."""

import codecs
import contextlib
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dygmamba.data.formats.options import ReadOptions, Roles, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError, FileError

BLOCK = 4 << 20
HEAD = 1 << 20  # enough for the column names and one row


@dataclass(frozen=True, slots=True)
class Header:
    """The first lines of a file: its column names, how wide the first row is, how many lines to skip."""

    names: tuple[str, ...]
    width: int
    skip: int


def read(path: Path, options: ReadOptions) -> Dataset:
    """A file with a line of column names and one event per line."""
    header = read_header(path, options)
    roles = assign_roles(path, header.names, options)
    return arranged(path, *read_table(path, "csv", batches(path, header, roles, options), roles, options))


def read_header(path: Path, options: ReadOptions) -> Header:
    """The column names of a file, and the width of its first row (0 if there is none)."""
    text = _head(path, options.encoding)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, options))
    try:
        names = next((row for row in lines if "".join(row).strip()), None)
        skip = lines.line_num
        first = next((row for row in lines if row), [])
    except csv.Error as error:
        raise FileError(f"{path} is not delimited text ({error}); give a CSV or Parquet file") from error
    if names is None:
        raise FileError(f"{path} is empty; give a file with a line of column names and one event per line")
    if "\ufffd" in "".join(names):
        raise _undecodable(path, options.encoding)
    if not first:
        raise FileError(f"{path} has column names but no rows; give a file with at least one event")
    return Header(tuple(name.strip() for name in names), len(first), skip)


def batches(path: Path, header: Header, roles: Roles, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The named columns, block by block: ids as dictionaries, all else as text for the readers to judge."""
    ragged: list[arrow_csv.InvalidRow] = []
    try:
        blocks = _blocks(path, header, roles, options, ragged)
        yield from options.watch(blocks, 1 + path.stat().st_size // BLOCK)
    except UnicodeDecodeError as error:
        raise _undecodable(path, options.encoding) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except pa.ArrowInvalid as error:
        if ragged:
            raise _ragged(path, header, roles, options) from error
        if "UTF8" in str(error):
            raise _undecodable(path, options.encoding) from error
        raise FileError(
            f"{path} is not readable as CSV ({str(error).splitlines()[0]}); check `delimiter` and quotes"
        ) from error


def _blocks(
    path: Path,
    header: Header,
    roles: Roles,
    options: ReadOptions,
    ragged: list[arrow_csv.InvalidRow],
    threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    def note(row: arrow_csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    ids = {name: pa.dictionary(pa.int32(), pa.string()) for name in (roles.src, roles.dst)}
    types = {name: pa.string() for name in roles.columns} | ids
    with pa.input_stream(path) as stream:
        yield from arrow_csv.open_csv(
            stream,
            arrow_csv.ReadOptions(
                use_threads=threads,
                block_size=BLOCK,
                column_names=header.names,
                skip_rows=header.skip,
                encoding=options.encoding,
            ),
            arrow_csv.ParseOptions(
                delimiter=_delimiter(path, options), newlines_in_values=True, invalid_row_handler=note
            ),
            arrow_csv.ConvertOptions(column_types=types, include_columns=roles.columns),
        )


def _ragged(path: Path, header: Header, roles: Roles, options: ReadOptions) -> FileError:
    """The complaint about the first row of another width; only a second pass, in one thread, counts rows."""
    found: list[arrow_csv.InvalidRow] = []
    with contextlib.suppress(pa.ArrowInvalid):
        for _ in _blocks(path, header, roles, options, found, threads=False):
            pass
    row = found[0]
    return FileError(
        f"{path}: data row {row.number - header.skip} has {row.actual_columns} columns instead of "
        f"{row.expected_columns} ({row.text[:60]!r}); mend it, or check `delimiter` and quotes"
    )


def _head(path: Path, encoding: str) -> str:
    """The beginning of a file as text, undecodable bytes marked."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    except LookupError as error:
        raise ConfigError(f"encoding {encoding!r} is unknown; try utf-8, latin-1 or utf-16") from error
    try:
        with pa.input_stream(path) as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise _unreadable(path, error) from error
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "16" not in encoding:
        raise FileError(f"{path} is UTF-16 text; read it with `encoding='utf-16'`")
    text = decoder.decode(head)
    if "\0" in text:
        raise FileError(f"{path} is a binary file, not delimited text; give a CSV or Parquet file")
    return text.removeprefix("\ufeff")


def _delimiter(path: Path, options: ReadOptions) -> str:
    if options.delimiter is not None:
        return options.delimiter
    return "\t" if {".tsv", ".tab"} & set(path.suffixes) else ","


def _unreadable(path: Path, error: OSError) -> FileError:
    return FileError(f"{path} cannot be read ({str(error).splitlines()[0]}); check the file")


def _undecodable(path: Path, encoding: str) -> FileError:
    """The complaint about the first byte that is not text, found by a second pass over the file."""
    decoder = codecs.getincrementaldecoder(encoding)()
    offset, lines = 0, 1
    with pa.input_stream(path) as stream:
        while True:
            pending = len(decoder.getstate()[0])
            block = stream.read(HEAD)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                lines += block[: max(error.start - pending, 0)].count(b"\n")
                place = f"byte {offset - pending + error.start} (line {lines})"
                return FileError(
                    f"{path} is not {encoding}: {place} is no character; "
                    "read it with `encoding='latin-1'`, or convert it with iconv"
                )
            if not block:
                return FileError(f"{path} is not {encoding}; give its `encoding`")
            offset, lines = offset + len(block), lines + block.count(b"\n")
