"""Delimited text, block by block, so that a large file never lies in memory whole."""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv

from dygmamba.data.formats.options import ReadOptions, Roles, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError, FileError, first_line

BLOCK = 4 << 20
HEAD = 1 << 20  # enough for the column names and one row
# Arrow's own words; its handler of such rows cannot be used, for it prints a traceback where a row is not UTF-8
RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): ?(.*)", re.DOTALL)


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
    try:
        blocks = _blocks(path, header, roles, options)
        yield from options.watch(blocks, 1 + path.stat().st_size // BLOCK)
    except UnicodeError as error:
        raise _undecodable(path, options.encoding) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _undecodable(path, options.encoding) from error
        if RAGGED.search(str(error)):
            error = _first_ragged(path, header, roles, options) or error
        raise _unparsed(path, header, error) from error


def _blocks(
    path: Path,
    header: Header,
    roles: Roles,
    options: ReadOptions,
    threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    ids = {name: pa.dictionary(pa.int32(), pa.string()) for name in (roles.src, roles.dst)}
    types = {name: pa.string() for name in roles.columns} | ids
    with pa.input_stream(path) as stream:
        opened = arrow_csv.open_csv(
            stream,
            arrow_csv.ReadOptions(
                use_threads=threads,
                block_size=BLOCK,
                column_names=header.names,
                skip_rows=header.skip,
                encoding=options.encoding,
            ),
            arrow_csv.ParseOptions(delimiter=_delimiter(path, options), newlines_in_values=True),
            arrow_csv.ConvertOptions(column_types=types, include_columns=roles.columns),
        )
        with opened as blocks:  # closed on an error too: its threads must not outlive the interpreter
            yield from blocks


def _first_ragged(path: Path, header: Header, roles: Roles, options: ReadOptions) -> pa.ArrowInvalid | None:
    """The error about the first row of another width; only a second pass, in one thread, counts rows."""
    try:
        for _ in _blocks(path, header, roles, options, threads=False):
            pass
    except pa.ArrowInvalid as error:
        return error
    return None


def _unparsed(path: Path, header: Header, error: pa.ArrowInvalid) -> FileError:
    found = RAGGED.search(str(error))
    if not found:
        why = first_line(error)
        return FileError(f"{path} is not readable as CSV ({why}); check `delimiter` and quotes")
    row, wanted, got, text = found.groups()
    return FileError(
        f"{path}: {f'data row {int(row) - header.skip}' if row else 'a row'} has {got} columns instead of "
        f"{wanted} ({text[:60]!r}); mend it, or check `delimiter` and quotes"
    )


def _head(path: Path, encoding: str) -> str:
    """The beginning of a file as text, undecodable bytes marked."""
    decoder = _decoder(encoding, "replace")
    try:
        with pa.input_stream(path) as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise _unreadable(path, error) from error
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and "16" not in encoding:
        raise FileError(f"{path} is UTF-16 text; read it with `encoding='utf-16'`")
    try:
        text = decoder.decode(head)
    except UnicodeError as error:  # UTF-16 and UTF-32 want a mark at the beginning, errors replaced or not
        raise _undecodable(path, encoding) from error
    if "\0" in text:
        raise FileError(f"{path} is a binary file, not delimited text; give a CSV or Parquet file")
    return text.removeprefix("\ufeff")


def _decoder(encoding: str, errors: str = "strict") -> codecs.IncrementalDecoder:
    """The decoder of that name, if it makes text of bytes; Python knows others, such as hex."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        if isinstance(decoder.decode(b""), str):
            return decoder
    except (LookupError, ValueError, AssertionError):  # unknown, not a name, or for strict errors alone
        pass
    raise ConfigError(f"encoding {encoding!r} is unknown; try utf-8, latin-1 or utf-16")


def _delimiter(path: Path, options: ReadOptions) -> str:
    if options.delimiter is not None:
        return options.delimiter
    return "\t" if {".tsv", ".tab"} & set(path.suffixes) else ","


def _unreadable(path: Path, error: OSError) -> FileError:
    return FileError(f"{path} cannot be read ({first_line(error)}); check the file")


def _undecodable(path: Path, encoding: str) -> FileError:
    """The complaint about the first byte that is not text, found by a second pass over the file."""
    decoder = _decoder(encoding)
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
            except UnicodeError as error:
                return FileError(f"{path} is not {encoding} ({error}); give its `encoding`")
            if not block:
                return FileError(f"{path} is not {encoding}; give its `encoding`")
            offset, lines = offset + len(block), lines + block.count(b"\n")
