"""Queries instead of events: pairs of ids, with or without times, in the order given; and lists of ids."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Mapping, Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import DygError, FileError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.bad_rows import BadRows, ColumnLocation, Parsed
from dygmamba.data.readers.in_memory import is_in_memory
from dygmamba.data.readers.options import ID_HEADINGS, USUAL_NAMES, Layout, ReadOptions
from dygmamba.data.readers.roles import find_destinations, find_query_columns
from dygmamba.data.readers.sources import open_source, read_text_head
from dygmamba.data.readers.time_evidence import choose_time_parser
from dygmamba.data.readers.times import FormatParser, NumberTimeParser, TimeParser, format_iso_time
from dygmamba.data.readers.values import (
    as_category_text,
    drop_missing_words,
    is_text_type,
    parse_floats,
    parse_ids,
    strip_whitespace,
    try_cast,
)

# a file's path, or whatever `open_in_memory` accepts; with a column src and, optionally, dst and time
QuerySource = Any
FIRST_TIMES = 100  # that decide how times are read if some are bad


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Query times as float64, and as they are shown in the answer; `is_unix_time` for seconds since 1970."""

    value: np.ndarray
    shown: pa.Array
    is_unix_time: bool

    def __getitem__(self, rows: np.ndarray) -> "QueryTimes":
        return QueryTimes(self.value[rows], self.shown.take(pa.array(rows)), self.is_unix_time)


@dataclass(frozen=True, slots=True)
class QueryTable:
    """Queries with the user's ids; `dst` and `time` are None if there is no such column.

    `columns` are those of the event in question that were wanted and found, by name. `bad_rows` were left out.
    `unread` names the other columns of the source.
    """

    source: str
    src: pa.Array
    dst: pa.Array | None
    time: QueryTimes | None
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    bad_rows: BadRows | None = None
    unread: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: np.ndarray) -> "QueryTable":
        take = pa.array(rows)
        dst = None if self.dst is None else self.dst.take(take)
        time = None if self.time is None else self.time[rows]
        columns = {name: column.take(take) for name, column in self.columns.items()}
        return replace(self, src=self.src.take(take), dst=dst, time=time, columns=columns)

    def distinct_sources(self) -> "QueryTable":
        """Return each source, or pair of source and time, once, in order of first appearance; without dst."""
        code = self.src.dictionary_encode().indices.to_numpy()
        time = np.zeros(len(code)) if self.time is None else self.time.value
        _, first = np.unique(np.stack([code, time], axis=1), axis=0, return_index=True)
        return replace(self, dst=None, columns={})[np.sort(first)]

    def parse_numbers(self, name: str, options: ReadOptions) -> np.ndarray:
        """Return a column of the events in question as numbers."""
        location = ColumnLocation(self.source, name)
        return parse_floats(self.columns[name], location, options.fill, options.decimal).require(location)

    def format_numbers(self, name: str, decimal: str | None) -> pa.Array:
        """Return a numeric column of the events in question as given, but plain text as numbers if all values are."""
        column = self.columns[name]
        if is_text_type(column.type):
            # with a decimal comma, "1.097" is no plain number
            targets = (pa.int64(),) if decimal == "," else (pa.int64(), pa.float64())
            numbers = try_cast(drop_missing_words(strip_whitespace(column)), *targets)
            column = column if numbers is None else numbers
        if pa.types.is_decimal(column.type):
            return column.cast(pa.float64())
        if pa.types.is_floating(column.type):
            return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        return column

    def format_categories(self, name: str) -> pa.Array:
        """Return a categorical column of the events in question as given: integers, or text."""
        column = self.columns[name]
        is_plain = is_text_type(column.type) or pa.types.is_integer(column.type)
        return column if is_plain else as_category_text(column)

    def parse_codes(self, name: str, category: Category) -> np.ndarray:
        """Return a column of the events in question as codes; -1 for an unknown value."""
        values = pa.array(category.values, pa.string())
        code = pc.index_in(as_category_text(self.columns[name]), value_set=values)
        return pc.fill_null(code, -1).to_numpy(zero_copy_only=False)

    def unique_categories(self, name: str, rows: np.ndarray) -> tuple[str, ...]:
        """Return the values of a categorical column in these rows (a mask), each once."""
        values = as_category_text(self.columns[name]).filter(pa.array(rows))
        return tuple(pc.unique(values).to_pylist())


def read_queries(
    pairs: QuerySource,
    options: ReadOptions,
    origin: Origin,
    numeric: Sequence[str] = (),
    types: Sequence[str] = (),
    nodes_only: bool = False,
) -> QueryTable:
    """Read the queries of a file or table, with these columns of the events in question as far as there are any.

    Columns are found by the names in `options`, the names in the dataset's `origin`, or the usual names. With
    `nodes_only` the queries are about nodes, so that a column node or id is the source too. Rows that cannot be read
    are left out with `options.skip_bad`, and an error otherwise. A file without rows is an error, a list is not.
    """
    wanted = (*numeric, *types)
    raw = read_query_columns(pairs, options, origin, wanted, nodes_only)
    roles, bad_rows, table = raw.roles, raw.bad_rows, raw.table.combine_chunks()
    if not table.num_rows and is_in_memory(pairs):
        return _build_empty_queries(raw)
    parser = parsed = None
    if table.num_rows:
        parser, parsed = _parse_columns(raw, options, origin, numeric if options.skip_bad else ())
        good = bad_rows.judge([*parsed.items()], np.arange(table.num_rows))
        if not good.all():
            table = table.filter(pa.array(good))
            parsed = {name: column.keep(good) for name, column in parsed.items()}
    if parsed is None or not table.num_rows:
        problem = f"no row that can be read ({bad_rows.summarize()})" if bad_rows.count else "no rows"
        raise FileError(f"{raw.source} has {problem}; give at least one pair", code="no-rows")
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    time = None
    if parser is not None:
        name = roles["time"]
        time = _show_times(columns[name], parser, parsed[name].values)
    return QueryTable(
        raw.source,
        parsed[roles["src"]].values,
        parsed[roles["dst"]].values if "dst" in roles else None,
        time,
        {name: columns[name] for name in raw.names if name in wanted},
        bad_rows if bad_rows.count else None,
        tuple(name for name in raw.names if name not in wanted and name not in roles.values()),
    )


def _build_empty_queries(raw: "RawQueries") -> QueryTable:
    """Return no queries; an empty list has no types, so ids are text and times are those of any other query."""
    no_ids = pa.array([], pa.large_string())
    return QueryTable(raw.source, no_ids, no_ids if "dst" in raw.roles else None, None)


def _parse_columns(
    raw: "RawQueries", options: ReadOptions, origin: Origin, numeric: Sequence[str]
) -> tuple[TimeParser | None, dict[str, Parsed]]:
    """Parse numbers, ids and times; raise FileError for the first bad value unless such rows are skipped."""
    parser, parsed = None, {}
    for name in [*(name for name in numeric if name in raw.names), *raw.roles.values()]:
        column, location = raw.table[name].combine_chunks(), ColumnLocation(raw.source, name)
        if name == raw.roles.get("time"):
            parser, parsed[name] = _parse_times(column, location, options, origin)
        elif name in raw.roles.values():
            parsed[name] = parse_ids(column, location, options.any_id)
        else:
            parsed[name] = parse_floats(column, location, options.fill, options.decimal)
        if not options.skip_bad:
            parsed[name].require(location)
    return parser, parsed


def _parse_times(
    column: pa.Array, location: ColumnLocation, options: ReadOptions, origin: Origin
) -> tuple[TimeParser, Parsed]:
    """Parse times as the dataset's own file writes them, unless the options or the times say otherwise."""
    is_open = options.time_format is None and options.time_unit == "auto"
    if origin.time_format and is_open and is_text_type(column.type):
        parser = FormatParser(origin.time_format)
        parsed = parser.parse(column, location)
        first = parsed.bad[:FIRST_TIMES]
        if not parsed.bad.any() or (options.skip_bad and 2 * int(first.sum()) < len(first)):
            return parser, parsed
    parser = choose_time_parser(
        column,
        options.time_unit,
        location,
        time_format=options.time_format,
        order=origin.order,
        guess=origin.guessed,
    )
    return parser, parser.parse(column, location)


def read_query_times(
    column: pa.Array, location: ColumnLocation, options: ReadOptions, origin: Origin
) -> QueryTimes:
    """Parse times as the dataset's own file writes them, unless the options or the times say otherwise."""
    parser, parsed = _parse_times(column, location, options, origin)
    return _show_times(column, parser, parsed.require(location))


def _show_times(column: pa.Array, parser: TimeParser, value: np.ndarray) -> QueryTimes:
    if is_text_type(column.type) and isinstance(parser, NumberTimeParser):
        shown = try_cast(column, pa.int64(), pa.float64())
    elif is_text_type(column.type) or isinstance(parser, NumberTimeParser):
        shown = column
    else:
        shown = pa.array([format_iso_time(seconds) for seconds in value])
    return QueryTimes(value, shown, parser.is_unix_time)


class RawQueries(NamedTuple):
    """Columns as they were given, before their values are parsed."""

    source: str  # its name in messages
    table: pa.Table  # the needed columns
    roles: dict[str, str]  # the column name by role
    names: tuple[str, ...]  # of all columns, also those that are not needed
    bad_rows: BadRows


def read_query_columns(
    pairs: QuerySource, options: ReadOptions, origin: Origin, wanted: Sequence[str], nodes_only: bool = False
) -> RawQueries:
    """Read the columns of sources, destinations and times and, as far as there are any, the wanted ones."""
    with open_source(pairs, options) as source:
        roles = find_query_columns(source, options, origin, nodes_only)
        types = tuple(name for name in wanted if name in source.names)
        layout = replace(Layout(types=types), **roles)
        bad_rows = BadRows(source.name, options.skip_bad)
        return RawQueries(source.name, source.read(layout, bad_rows), roles, source.names, bad_rows)


def read_id_list(path: Path, options: ReadOptions, origin: Origin) -> pa.Array | None:
    """Read a text file with one id per line, with or without a heading; None if it is not such a list."""
    delimiter = options.delimiter or ("\t" if path.suffix in (".tsv", ".tab") else ",")
    try:
        head = read_text_head(path, options) if path.is_file() else None
        first = [] if head is None else list(csv_reader(head.splitlines()[:1], delimiter=delimiter))
        if head is None or any(len(row) > 1 for row in first):  # a large table is not read for that
            return None
        text = path.read_bytes().decode(options.encoding).removeprefix("\ufeff")
        rows = [row for row in csv_reader(text.splitlines(), delimiter=delimiter) if row]
    except (OSError, LookupError, ValueError, TypeError, CsvError, DygError):
        return None  # the caller then reads it as a table, which reports what is wrong
    if not rows or any(len(row) > 1 for row in rows):
        return None
    headings = {name for usual in USUAL_NAMES.values() for name in usual} | ID_HEADINGS
    own, first = {origin.src, origin.dst, options.src, options.dst}, rows[0][0].strip()
    ids = rows[1:] if first.lower() in headings or first in own else rows
    if not ids:
        raise FileError(f"{path} has a heading but no ids; give at least one", code="no-rows")
    location = ColumnLocation(str(path), first)
    return parse_ids(pa.array([row[0] for row in ids]), location, options.any_id).require(location)


def read_ids(path: Path, options: ReadOptions, origin: Origin) -> pa.Array:
    """Read a list of ids, or the destinations of a table."""
    ids = read_id_list(path, options, origin)
    if ids is not None:
        return ids
    with open_source(path, options) as source:
        name = find_destinations(source, options, origin)
        column = source.read(Layout(dst=name), BadRows(source.name, None))[name]
    if not len(column):
        raise FileError(f"{path} has no rows; give at least one id", code="no-rows")
    location = ColumnLocation(str(path), name)
    return parse_ids(column.combine_chunks(), location, options.any_id).require(location)
