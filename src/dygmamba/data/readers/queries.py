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

from dygmamba.core.errors import DygError, FileError, NotFoundError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.columnar import convert_ids
from dygmamba.data.readers.options import (
    USUAL_NAMES,
    ColumnRoles,
    ReadOptions,
    find_usual_column,
    require_distinct_names,
)
from dygmamba.data.readers.other_columns import as_category_text
from dygmamba.data.readers.sources import open_source, read_text_head
from dygmamba.data.readers.table import clean_ids
from dygmamba.data.readers.times import (
    FormatParser,
    NumberTimeParser,
    TimeParser,
    choose_time_parser,
    format_iso_time,
)
from dygmamba.data.readers.values import (
    BadRows,
    ColumnLocation,
    Parsed,
    drop_missing_words,
    find_bad_rows,
    is_text_type,
    parse_floats,
    strip_whitespace,
    try_cast,
)

# a file's path, or whatever `wrap_table` accepts; with a column src and, optionally, dst and time
QuerySource = Any
FIRST_TIMES = 100  # that decide how times are read if some are bad
NODE_COLUMNS = ("node", "id")  # names of the column of nodes, as predictions about nodes have it


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
        location = ColumnLocation(self.source, name, 0)
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
    are left out with `options.skip_bad`, and an error otherwise.
    """
    wanted = (*numeric, *types)
    raw = read_query_columns(pairs, options, origin, wanted, nodes_only)
    table, roles, bad_rows = raw.table, raw.roles, raw.bad_rows
    if options.skip_bad and table.num_rows:
        table = _drop_bad_rows(raw, options, origin, numeric)
    if not table.num_rows:
        problem = f"no row that can be read ({bad_rows.summarize()})" if bad_rows.count else "no rows"
        raise FileError(f"{raw.source} has {problem}; give at least one pair", code="no-rows")
    columns = {role: table[name].combine_chunks() for role, name in roles.items()}
    locations = {role: ColumnLocation(raw.source, name, 0) for role, name in roles.items()}
    return QueryTable(
        raw.source,
        parse_ids(columns["src"], locations["src"], options.any_id),
        parse_ids(columns["dst"], locations["dst"], options.any_id) if "dst" in roles else None,
        read_query_times(columns["time"], locations["time"], options, origin) if "time" in roles else None,
        {name: table[name].combine_chunks() for name in raw.names if name in wanted},
        bad_rows if bad_rows.count else None,
        tuple(name for name in raw.names if name not in wanted and name not in roles.values()),
    )


def _drop_bad_rows(
    raw: "RawQueries", options: ReadOptions, origin: Origin, numeric: Sequence[str]
) -> pa.Table:
    """Return the rows whose ids, times and numbers can be read, and add the others to `raw.bad_rows`."""
    parsed: list[tuple[str, Parsed]] = []
    for name in [*(name for name in numeric if name in raw.names), *raw.roles.values()]:
        column, location = raw.table[name].combine_chunks(), ColumnLocation(raw.source, name, 0)
        if name == raw.roles.get("time"):
            parser = _choose_query_time_parser(column, location, options, origin)
            parsed.append((name, parser.parse(column, location)))
        elif name in raw.roles.values():
            ids = convert_ids(column, location).dictionary_encode()
            parsed.append((name, clean_ids(ids, options.any_id)))
        else:
            parsed.append((name, parse_floats(column, location, options.fill, options.decimal)))
    found = find_bad_rows(parsed, raw.table.num_rows)
    raw.bad_rows.add_bad_values(np.arange(raw.table.num_rows), found)
    return raw.table.filter(pa.array(~found.bad))


def _choose_query_time_parser(
    column: pa.Array, location: ColumnLocation, options: ReadOptions, origin: Origin
) -> TimeParser:
    """Choose how to parse times of which some are bad: as the dataset's own file if that reads most of the first."""
    if origin.time_format and not _says_how_times_are_read(options) and is_text_type(column.type):
        parser, first = FormatParser(origin.time_format), column[:FIRST_TIMES]
        if 2 * int(parser.parse(first, location).bad.sum()) < len(first):
            return parser
    return choose_time_parser(
        column,
        options.time_unit,
        location,
        time_format=options.time_format,
        order=origin.order,
        guess=origin.guessed,
    )


def _says_how_times_are_read(options: ReadOptions) -> bool:
    return options.time_format is not None or options.time_unit != "auto"


def read_query_times(
    column: pa.Array, location: ColumnLocation, options: ReadOptions, origin: Origin
) -> QueryTimes:
    """Parse times as the dataset's own file writes them, unless the options say otherwise."""
    if origin.time_format and not _says_how_times_are_read(options) and is_text_type(column.type):
        try:
            return _parse_query_times(column, location, time_format=origin.time_format)
        except FileError:  # written in another way after all
            pass
    return _parse_query_times(
        column,
        location,
        options.time_unit,
        time_format=options.time_format,
        order=origin.order,
        guess=origin.guessed,
    )


def _parse_query_times(
    column: pa.Array, location: ColumnLocation, unit: str = "auto", **options: Any
) -> QueryTimes:
    parser = choose_time_parser(column, unit, location, **options)
    value = parser.parse(column, location).require(location)
    if isinstance(parser, NumberTimeParser):
        return QueryTimes(value, _as_numbers(column), parser.is_unix_time)
    shown = column if is_text_type(column.type) else pa.array([format_iso_time(seconds) for seconds in value])
    return QueryTimes(value, shown, parser.is_unix_time)


class RawQueries(NamedTuple):
    """Columns as they were given, before their values are parsed."""

    source: str  # its name in messages
    table: pa.Table  # the needed columns
    roles: dict[str, str]  # the column name by role
    names: tuple[str, ...]  # of all columns, also those that are not needed
    bad_rows: BadRows


def read_query_columns(
    pairs: QuerySource,
    options: ReadOptions,
    origin: Origin,
    wanted: Sequence[str],
    nodes_only: bool = False,
) -> RawQueries:
    """Read the columns of sources, destinations and times and, as far as there are any, the wanted ones."""
    with open_source(pairs, options) as source:
        names, header = source.names, source.header
        if header is None or header.named:
            roles = _assign_query_roles(source.name, names, options, origin, nodes_only)
        else:
            own = {} if origin.header else {role: getattr(origin, role) for role in USUAL_NAMES}
            roles = dict(zip(USUAL_NAMES, names, strict=False)) | {
                role: name for role, name in own.items() if name in names
            }
        # the source column stands in for a missing one
        ends = (roles["src"], roles.get("dst", roles["src"]), roles.get("time", roles["src"]))
        needed = ColumnRoles(*ends, types=tuple(name for name in wanted if name in names))
        bad_rows = BadRows(source.name, options.skip_bad)
        return RawQueries(source.name, source.read(needed, bad_rows), roles, names, bad_rows)


def _assign_query_roles(
    source: str, names: Sequence[str], options: ReadOptions, origin: Origin, nodes_only: bool = False
) -> dict[str, str]:
    """Find the column of each role; dst and time may be missing."""
    require_distinct_names(source, names)
    roles = {}
    for role in USUAL_NAMES:
        chosen = [name for name in (getattr(options, role), getattr(origin, role)) if name in names]
        column = chosen[0] if chosen else find_usual_column(names, role)
        if column is not None:
            roles[role] = column
    if nodes_only and "src" not in roles:
        named = [name for usual in NODE_COLUMNS for name in names if name.lower() == usual]
        roles |= {"src": named[0]} if named else {}
    if nodes_only and "src" not in roles:
        raise NotFoundError(
            f"cannot tell which column of {source} holds the nodes ({', '.join(names)}); name it node, and the column "
            "of times, if there is one, time",
            code="column-not-recognized",
        )
    if "src" not in roles or len(set(roles.values())) < len(roles):
        raise NotFoundError(
            f"cannot tell which columns of {source} are source, destination and time ({', '.join(names)}); "
            "name them src, dst and, if there are times, time",
            code="column-not-recognized",
        )
    return roles


def _as_numbers(column: pa.Array) -> pa.Array:
    """Turn text into numbers: integers if all are."""
    try:
        return column.cast(pa.int64()) if is_text_type(column.type) else column
    except pa.ArrowInvalid:
        return column.cast(pa.float64())


def parse_ids(column: pa.Array, location: ColumnLocation, any_id: bool) -> pa.Array:
    """Return ids as text, read as those of events; raise FileError if one is missing."""
    ids = clean_ids(convert_ids(column, location).dictionary_encode(), any_id).require(location)
    return ids.dictionary_decode().cast(pa.large_string())


ID_HEADINGS = {"id", "ids", "node", "nodes", "name", "account", "candidate", "candidates"}


def read_id_list(path: Path, options: ReadOptions, origin: Origin) -> pa.Array | None:
    """Read a text file with one id per line, with or without a heading; None if it is not such a list."""
    delimiter = options.delimiter or ("\t" if path.suffix in (".tsv", ".tab") else ",")
    try:
        head = read_text_head(path, options) if path.is_file() else None
        # a large table is not read for that
        if head is None or any(
            len(row) > 1 for row in csv_reader(head.splitlines()[:1], delimiter=delimiter)
        ):
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
    return parse_ids(pa.array([row[0] for row in ids]), ColumnLocation(str(path), first, 0), options.any_id)


def read_ids(path: Path, options: ReadOptions, origin: Origin) -> pa.Array:
    """Read a list of ids, or the destinations of a table."""
    ids = read_id_list(path, options, origin)
    if ids is not None:
        return ids
    with open_source(path, options) as source:
        name = _find_destinations(path, source.names, options, origin)
        column = source.read(ColumnRoles(name, name, name), BadRows(source.name, None))[name]
    if not len(column):
        raise FileError(f"{path} has no rows; give at least one id", code="no-rows")
    return parse_ids(column.combine_chunks(), ColumnLocation(str(path), name, 0), options.any_id)


def _find_destinations(path: Path, names: Sequence[str], options: ReadOptions, origin: Origin) -> str:
    own = [name for name in (options.dst, origin.dst) if name in names]
    column = own[0] if own else find_usual_column(names, "dst")
    if column is None and len(names) > 1:
        raise NotFoundError(
            f"{path} has no column of destinations among {', '.join(names)}; name it 'dst', or give one id per line",
            code="column-not-recognized",
        )
    return column if column is not None else names[0]
