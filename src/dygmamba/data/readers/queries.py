"""Questions instead of events: pairs of ids, with or without times, in the order they are asked.

Ids in a file: one per line, with or without a heading, or a column of destinations in a table.
"""

from collections.abc import Sequence
from csv import Error, reader
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.data.readers import delimited, detect_format, json_lines
from dygmamba.data.readers.columnar import COLUMNAR_FORMATS, read_columns
from dygmamba.data.readers.in_memory import is_in_memory, wrap_table
from dygmamba.data.readers.options import USUAL_NAMES, ColumnRoles, ReadOptions
from dygmamba.data.readers.times import NumberTimeParser, choose_time_parser
from dygmamba.data.readers.values import BadRows, ColumnLocation, is_text_type
from dygmamba.data.storage.dataset import Origin

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


QuerySource = Any  # a file's path, or whatever `memory.hold` takes, with columns src, dst and, where there are any, time


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Times in 64 bits, and as they are to be shown again; `epoch` where they are seconds since 1970."""

    value: np.ndarray
    shown: pa.Array
    epoch: bool

    def __getitem__(self, rows: np.ndarray) -> "QueryTimes":
        return QueryTimes(self.value[rows], self.shown.take(pa.array(rows)), self.epoch)


@dataclass(frozen=True, slots=True)
class QueryTable:
    """Pairs as their user wrote them; no destinations or times where there is no such column."""

    where: str
    src: pa.Array
    dst: pa.Array | None
    time: QueryTimes | None

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: np.ndarray) -> "QueryTable":
        take = pa.array(rows)
        dst = None if self.dst is None else self.dst.take(take)
        return QueryTable(
            self.where, self.src.take(take), dst, None if self.time is None else self.time[rows]
        )

    def distinct_sources(self) -> "QueryTable":
        """Each source, or source and time, once: where it first stands."""
        code = self.src.dictionary_encode().indices.to_numpy()
        time = np.zeros(len(code)) if self.time is None else self.time.value
        _, first = np.unique(np.stack([code, time], axis=1), axis=0, return_index=True)
        return replace(self, dst=None)[np.sort(first)]


def read_queries(pairs: QuerySource, options: ReadOptions, origin: Origin) -> QueryTable:
    """The pairs of a file or table; columns go by the options' names, the dataset's own, or the usual ones."""
    where, table, roles = _read_query_columns(pairs, options, origin)
    if not table.num_rows:
        raise FileError(f"{where} has no rows; give at least one pair")
    columns = {part: table[name].combine_chunks() for part, name in roles.items()}
    places = {part: ColumnLocation(where, name, 0) for part, name in roles.items()}
    return QueryTable(
        where,
        parse_ids(columns["src"], places["src"]),
        parse_ids(columns["dst"], places["dst"]) if "dst" in roles else None,
        read_query_times(columns["time"], places["time"], options, origin) if "time" in roles else None,
    )


def read_query_times(
    column: pa.Array, place: ColumnLocation, options: ReadOptions, origin: Origin
) -> QueryTimes:
    """Times written as the dataset's own file wrote them, unless the options say otherwise."""
    told = options.time_format is not None or options.time_unit != "auto"
    if origin.time_format and not told and is_text_type(column.type):
        try:
            return read_times(column, place, form=origin.time_format)
        except FileError:  # written in another way after all
            pass
    how = {"form": options.time_format, "order": origin.order, "guess": origin.guessed}
    return read_times(column, place, options.time_unit, **how)


def read_times(column: pa.Array, place: ColumnLocation, unit: str = "auto", **how: Any) -> QueryTimes:
    """A column of times, read as the importer reads it."""
    clock = choose_time_parser(column, unit, place, **how)
    value = clock.seconds(column, place)
    if isinstance(clock, NumberTimeParser):
        return QueryTimes(value, _as_numbers(column), clock.epoch)
    shown = column if is_text_type(column.type) else pa.array([format_iso_time(seconds) for seconds in value])
    return QueryTimes(value, shown, clock.epoch)


def format_iso_time(seconds: float) -> str:
    """Seconds since 1970 as an ISO date that reads back to the same microsecond; beyond the calendar as they are."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.17g}"


def _read_query_columns(
    pairs: QuerySource, options: ReadOptions, origin: Origin
) -> tuple[str, pa.Table, dict[str, str]]:
    """What it is called, the columns that matter, and the part each plays."""
    if is_in_memory(pairs):
        held = wrap_table(pairs)
        roles = _assign_query_roles(held.where, held.names, options, origin)
        return held.where, held.table(roles.values()), roles
    path, where = Path(pairs), str(pairs)
    kind = detect_format(path, options)
    if kind == "npz":
        raise FileError(f"{path} holds arrays, not pairs; give a CSV or Parquet file")
    if kind in COLUMNAR_FORMATS:
        table = read_columns(
            path, kind, lambda names: [*_assign_query_roles(where, names, options, origin).values()]
        )
        return where, table, _assign_query_roles(where, table.column_names, options, origin)
    header = delimited.read_header(path, options) if kind != "jsonl" else None
    names = json_lines.read_keys(path, options) if header is None else header.names
    if header is None or header.named:
        roles = _assign_query_roles(where, names, options, origin)
    else:
        own = {} if origin.header else {part: getattr(origin, part) for part in USUAL_NAMES}
        roles = dict(zip(USUAL_NAMES, names, strict=False)) | {
            p: name for p, name in own.items() if name in names
        }
    # the reader of events wants three columns; a part that is missing here points at the sources again
    wanted = ColumnRoles(roles["src"], roles.get("dst", roles["src"]), roles.get("time", roles["src"]))
    faults = BadRows(where, options.skip_bad)
    if header is None:
        rows = list(json_lines.iter_json_batches(path, wanted, options, faults))
    else:
        rows = list(delimited.iter_csv_batches(path, header, wanted, options, faults))
    faults.settle()
    return where, pa.Table.from_batches(rows), roles


def _assign_query_roles(
    where: str, names: Sequence[str], options: ReadOptions, origin: Origin
) -> dict[str, str]:
    """Which column plays which part; destinations and times may be missing."""
    lower = {name.lower(): name for name in reversed(names)}
    roles = {}
    for part, usual in USUAL_NAMES.items():
        chosen = [name for name in (getattr(options, part), getattr(origin, part)) if name in names]
        found = [*chosen, *(lower[name] for name in usual if name in lower)]
        if found:
            roles[part] = found[0]
    if "src" not in roles or len(set(roles.values())) < len(roles):
        raise NotFoundError(
            f"cannot tell the columns of {where} apart ({', '.join(names)}); "
            "name them src, dst and, where there are times, time"
        )
    return roles


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column that was read as numbers: whole ones, where all are."""
    try:
        return column.cast(pa.int64()) if is_text_type(column.type) else column
    except pa.ArrowInvalid:
        return column.cast(pa.float64())


def parse_ids(column: pa.Array, place: ColumnLocation) -> pa.Array:
    """The ids as strings, white space around them ignored, none of them missing."""
    try:
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        if pa.types.is_floating(column.type):  # a data frame makes floats of integers with gaps
            column = column.cast(pa.int64())
        text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FileError(
            f"{place.file}: column {place.column!r} is {column.type}, no id; give integers or strings"
        ) from error
    row = pc.index(pc.equal(pc.fill_null(text, ""), ""), True).as_py()
    if row >= 0:
        raise place.error(row, "is empty", "remove the row or name both its nodes")
    return text


ID_HEADINGS = {"id", "ids", "node", "nodes", "name", "account", "candidate", "candidates"}
FIRST_LINE_BYTES = 1 << 16  # bytes that hold the first line
BINARY_MAGIC = (
    b"PAR1",
    b"ARROW1",
    b"PK\x03\x04",
)  # Parquet, Arrow, and what NumPy and spreadsheets pack with


def read_id_list(path: Path, options: ReadOptions, origin: Origin) -> pa.Array | None:
    """The ids of a text file of one column; None where it is something else, or cannot be read as a list."""
    delimiter = options.delimiter or ("\t" if path.suffix in (".tsv", ".tab") else ",")
    try:
        if not path.is_file() or _has_several_columns(path, options.encoding, delimiter):
            return None
        text = path.read_bytes().decode(options.encoding).removeprefix("\ufeff")
        rows = [row for row in reader(text.splitlines(), delimiter=delimiter) if row]
    except (OSError, LookupError, ValueError, TypeError, Error):
        return None  # whoever reads it as a table says what is wrong
    if not rows or any(len(row) > 1 for row in rows):
        return None
    names = {name for usual in USUAL_NAMES.values() for name in usual} | ID_HEADINGS
    own, head = {origin.src, origin.dst, options.src, options.dst}, rows[0][0].strip()
    ids = rows[1:] if head.lower() in names or head in own else rows
    if not ids:
        raise FileError(f"{path} has a heading but no ids; give at least one")
    return parse_ids(pa.array([row[0] for row in ids], pa.large_string()), ColumnLocation(str(path), head, 0))


def _has_several_columns(path: Path, encoding: str, delimiter: str) -> bool:
    """Whether the first line has several columns, or is no text: a large table is not read to find that out."""
    with path.open("rb") as file:
        head = file.read(FIRST_LINE_BYTES)
    lines = head.decode(encoding, "ignore").splitlines()
    return head.startswith(BINARY_MAGIC) or any(
        len(row) > 1 for row in reader(lines[:1], delimiter=delimiter)
    )


def read_ids(path: Path, options: ReadOptions, origin: Origin) -> pa.Array:
    """The ids of a list, or a table's column of destinations."""
    listed = read_id_list(path, options, origin)
    if listed is not None:
        return listed
    kind, where = detect_format(path, options), str(path)
    if kind == "npz":
        raise FileError(f"{path} holds arrays, not ids; give a CSV or Parquet file, or one id per line")
    if kind in COLUMNAR_FORMATS:
        table = read_columns(path, kind, lambda names: [_find_destinations(path, names, options, origin)])
        name, column = table.column_names[0], table.column(0)
    else:
        header = delimited.read_header(path, options)
        name = _find_destinations(path, header.names, options, origin)
        column = pa.Table.from_batches(
            delimited.iter_csv_batches(path, header, ColumnRoles(name, name, name), options)
        )[name]
    if not len(column):
        raise FileError(f"{path} has no rows; give at least one id")
    return parse_ids(column.combine_chunks(), ColumnLocation(where, name, 0))


def _find_destinations(path: Path, names: Sequence[str], options: ReadOptions, origin: Origin) -> str:
    lower = {name.lower(): name for name in reversed(names)}
    own = [name for name in (options.dst, origin.dst) if name in names]
    found = [*own, *(lower[name] for name in USUAL_NAMES["dst"] if name in lower)]
    if not found and len(names) > 1:
        raise NotFoundError(
            f"{path} has no column of destinations among {', '.join(names)}; name it 'dst', or give one id per line"
        )
    return found[0] if found else names[0]
