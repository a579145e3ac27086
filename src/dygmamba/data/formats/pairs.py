"""Questions instead of events: pairs of ids, with or without times, in the order they are asked."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats import csv, detect_format, jsonl
from dygmamba.data.formats.choosing import choose_clock
from dygmamba.data.formats.clocks import NumberClock
from dygmamba.data.formats.columnar import COLUMNAR, read_columns
from dygmamba.data.formats.faults import Faults
from dygmamba.data.formats.memory import hold, is_held
from dygmamba.data.formats.options import USUAL_NAMES, ReadOptions, Roles
from dygmamba.data.formats.values import Place, is_text
from dygmamba.data.store import Origin
from dygmamba.errors import FileError, NotFoundError

Pairs = Any  # a file's path, or whatever `memory.hold` takes, with columns src, dst and, where there are any, time


@dataclass(frozen=True, slots=True)
class Times:
    """Times in 64 bits, and as they are to be shown again; `epoch` where they are seconds since 1970."""

    value: np.ndarray
    shown: pa.Array
    epoch: bool

    def __getitem__(self, rows: np.ndarray) -> "Times":
        return Times(self.value[rows], self.shown.take(pa.array(rows)), self.epoch)


@dataclass(frozen=True, slots=True)
class Asked:
    """Pairs as their user wrote them; no destinations or times where there is no such column."""

    where: str
    src: pa.Array
    dst: pa.Array | None
    time: Times | None

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: np.ndarray) -> "Asked":
        take = pa.array(rows)
        dst = None if self.dst is None else self.dst.take(take)
        return Asked(self.where, self.src.take(take), dst, None if self.time is None else self.time[rows])

    def distinct_sources(self) -> "Asked":
        """Each source, or source and time, once: where it first stands."""
        code = self.src.dictionary_encode().indices.to_numpy()
        time = np.zeros(len(code)) if self.time is None else self.time.value
        _, first = np.unique(np.stack([code, time], axis=1), axis=0, return_index=True)
        return replace(self, dst=None)[np.sort(first)]


def read_pairs(pairs: Pairs, options: ReadOptions, origin: Origin) -> Asked:
    """The pairs of a file or table; columns go by the options' names, the dataset's own, or the usual ones."""
    where, table, roles = _table(pairs, options, origin)
    if not table.num_rows:
        raise FileError(f"{where} has no rows; give at least one pair")
    columns = {part: table[name].combine_chunks() for part, name in roles.items()}
    places = {part: Place(where, name, 0) for part, name in roles.items()}
    return Asked(
        where,
        as_ids(columns["src"], places["src"]),
        as_ids(columns["dst"], places["dst"]) if "dst" in roles else None,
        own_times(columns["time"], places["time"], options, origin) if "time" in roles else None,
    )


def own_times(column: pa.Array, place: Place, options: ReadOptions, origin: Origin) -> Times:
    """Times written as the dataset's own file wrote them, unless the options say otherwise."""
    told = options.time_format is not None or options.time_unit != "auto"
    if origin.time_format and not told and is_text(column.type):
        try:
            return read_times(column, place, form=origin.time_format)
        except FileError:  # written in another way after all
            pass
    how = {"form": options.time_format, "order": origin.order, "guess": origin.guessed}
    return read_times(column, place, options.time_unit, **how)


def read_times(column: pa.Array, place: Place, unit: str = "auto", **how: Any) -> Times:
    """A column of times, read as the importer reads it."""
    clock = choose_clock(column, unit, place, **how)
    value = clock.seconds(column, place)
    if isinstance(clock, NumberClock):
        return Times(value, _numbers(column), clock.epoch)
    shown = column if is_text(column.type) else pa.array([iso(seconds) for seconds in value])
    return Times(value, shown, clock.epoch)


def iso(seconds: float) -> str:
    """Seconds since 1970 as an ISO date that reads back to the same microsecond; beyond the calendar as they are."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.17g}"


def _table(pairs: Pairs, options: ReadOptions, origin: Origin) -> tuple[str, pa.Table, dict[str, str]]:
    """What it is called, the columns that matter, and the part each plays."""
    if is_held(pairs):
        held = hold(pairs)
        roles = _roles(held.where, held.names, options, origin)
        return held.where, held.table(roles.values()), roles
    path, where = Path(pairs), str(pairs)
    kind = detect_format(path, options)
    if kind == "npz":
        raise FileError(f"{path} holds arrays, not pairs; give a CSV or Parquet file")
    if kind in COLUMNAR:
        table = read_columns(path, kind, lambda names: [*_roles(where, names, options, origin).values()])
        return where, table, _roles(where, table.column_names, options, origin)
    header = csv.read_header(path, options) if kind != "jsonl" else None
    names = jsonl.read_names(path, options) if header is None else header.names
    if header is None or header.named:
        roles = _roles(where, names, options, origin)
    else:
        own = {} if origin.header else {part: getattr(origin, part) for part in USUAL_NAMES}
        roles = dict(zip(USUAL_NAMES, names, strict=False)) | {
            p: name for p, name in own.items() if name in names
        }
    # the reader of events wants three columns; a part that is missing here points at the sources again
    wanted = Roles(roles["src"], roles.get("dst", roles["src"]), roles.get("time", roles["src"]))
    faults = Faults(where, options.skip_bad)
    if header is None:
        rows = list(jsonl.batches(path, wanted, options, faults))
    else:
        rows = list(csv.batches(path, header, wanted, options, faults))
    faults.settle()
    return where, pa.Table.from_batches(rows), roles


def _roles(where: str, names: Sequence[str], options: ReadOptions, origin: Origin) -> dict[str, str]:
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


def _numbers(column: pa.Array) -> pa.Array:
    """A column that was read as numbers: whole ones, where all are."""
    try:
        return column.cast(pa.int64()) if is_text(column.type) else column
    except pa.ArrowInvalid:
        return column.cast(pa.float64())


def as_ids(column: pa.Array, place: Place) -> pa.Array:
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
