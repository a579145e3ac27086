"""Events of users as rows of the log, and rows of the log as events of a stream.

Every row stands for itself: what it means does not depend on the rows it was sent with, and a row that cannot be read
does not spoil the others. All rows are parsed at once, and one by one only if that fails.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch

from dygmamba.core.errors import DygError, FileError, NotFoundError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.id_values import as_integers, parse_id, strip_decimal_zero
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.times import EPOCH_RANGE, looks_like_epoch_seconds
from dygmamba.data.readers.in_memory import ROW_NAMES
from dygmamba.data.readers.options import USUAL_NAMES, find_usual_column
from dygmamba.data.readers.other_columns import as_category_text
from dygmamba.data.readers.queries import read_query_columns
from dygmamba.data.readers.times import TICKS_PER_SECOND, choose_time_parser
from dygmamba.data.readers.values import (
    NUMBER_PATTERN,
    BadValueError,
    ColumnLocation,
    is_text_type,
    parse_floats,
)
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import check_time_scale
from dygmamba.live.event_log import LogEvent
from dygmamba.live.growing_events import AddedEvents
from dygmamba.live.node_ids import Key
from dygmamba.runs.predictor import Predictor

ID_COLUMN = "id"  # of the event, by which it is recognized when it is sent again
T = TypeVar("T")
ABSENT = object()  # in place of a value whose column a row does not have
MAX_TEXT = 10_000  # characters of an id or a category
REMEMBERED_NAMES = 64  # sets of column names
CONVERSION_ERRORS = (DygError, pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class EventLayout:
    """The columns of a stream, which its log and every run on it share."""

    features: tuple[str, ...] = ()  # numeric columns
    types: tuple[str, ...] = ()  # categorical columns
    bipartite: bool = False

    @staticmethod
    def of_dataset(dataset: Dataset) -> "EventLayout":
        features = dataset.store.features
        types = tuple(category.name for category in features.categories)
        return EventLayout(features.edge_names, types, dataset.store.bipartite)

    def describe(self) -> str:
        """Name the columns for a message."""
        kind = "bipartite, " if self.bipartite else ""
        return kind + (", ".join((*self.features, *self.types)) or "no columns beside src, dst and time")


@dataclass(slots=True)
class RawEvents:
    """Values as the user gave them, a list per column, and the names and values of the columns by role."""

    source: str
    count: int
    roles: dict[str, str]
    columns: dict[str, Any]
    by_role: dict[str, Any]

    def __getitem__(self, role: str) -> Any:
        return self.by_role[role]


@dataclass(slots=True)
class ParsedEvents:
    """The events of one call, in its order; None where a row cannot be read, with the reason in `problems`."""

    events: list[LogEvent | None]
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)


class EventParser:
    """Reads events for the stream of a run: everything that `Run.observe` takes, and lists of dicts."""

    def __init__(self, predictor: Predictor, fill: float | None = None) -> None:
        self.layout = EventLayout.of_dataset(predictor.dataset)
        self._options, self._origin = predictor.options, predictor.dataset.origin
        # missing numbers are filled as they were in the dataset's own file; columns that are absent, only on demand
        recalled = self._options.recall(self._origin)
        self._fill, self._fills_absent = recalled.fill if fill is None else fill, fill is not None
        self._decimal, self._any_id, self._dataset = recalled.decimal, recalled.any_id, predictor.dataset
        self._has_whole_ids = {side: self._dataset.ids.has_whole_ids(side) for side in ("src", "dst")}
        time = predictor.dataset.store.time
        is_dated = bool(self._origin.time_origin) or looks_like_epoch_seconds(float(time[0]), float(time[-1]))
        self._unit = (
            "plain" if self._options.time_unit == "auto" and not is_dated else self._options.time_unit
        )
        # a model with a node memory takes no new nodes
        self._known = predictor.dataset.ids if predictor.run.scorer.stateful else None
        self._model = str(predictor.run.model)
        self._recall_roles = lru_cache(REMEMBERED_NAMES)(
            self._find_roles
        )  # a client sends the same names every time

    def parse(self, events: Any) -> ParsedEvents:
        """Parse the events of one call; raise only if they are no table of events at all."""
        raw = self._read_raw(events)
        problems: dict[int, str] = {}
        src, dst = (self._parse_ids(raw, role, problems) for role in ("src", "dst"))
        time = self._parse_times(raw, problems)
        columns = self._parse_columns(raw, problems)
        ids = self._parse_event_ids(raw, problems)
        if self._known is not None:
            self._find_unknown_nodes(src, dst, problems)
        parsed = [
            None if row in problems else LogEvent(*values)
            for row, values in enumerate(zip(ids, src, dst, time, columns, strict=True))
        ]
        return ParsedEvents(parsed, problems)

    def find_problems(self, events: Sequence[LogEvent]) -> dict[int, str]:
        """Return the reason why this run cannot take an event of the log, by position."""
        problems: dict[int, str] = {}
        if self._known is not None and events:
            self._find_unknown_nodes(
                [event.src for event in events], [event.dst for event in events], problems
            )
        return problems

    def _read_raw(self, events: Any) -> RawEvents:
        is_list = isinstance(events, Sequence) and not isinstance(events, str | bytes)
        if is_list and all(isinstance(row, Mapping) for row in events):
            return self._read_dicts(events)
        if is_list and all(isinstance(row, tuple | list) for row in events):
            return self._read_tuples(events)
        wanted = [*self.layout.features, *self.layout.types, ID_COLUMN]
        raw = read_query_columns(events, self._options, self._origin, wanted)
        source, table, roles = raw.source, raw.table, raw.roles
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        by_role = {role: columns[name] for role, name in roles.items()}
        return self._require_roles(RawEvents(source, table.num_rows, roles, columns, by_role))

    def _read_dicts(self, rows: Sequence[Mapping[str, Any]]) -> RawEvents:
        # each row by its own names: one may say 'src' and another the column's name in the dataset
        keys = [tuple(row) for row in rows]
        roles_of = {names: self._recall_roles(names) for names in dict.fromkeys(keys)}
        # a column that no row has is missing in each: one row alone must mean the same as among others
        roles = {role: role for role in USUAL_NAMES}
        roles |= {role: name for found in reversed(roles_of.values()) for role, name in found.items()}
        by_role = {
            role: [
                row[roles_of[names][role]] if role in roles_of[names] else ABSENT
                for names, row in zip(keys, rows, strict=True)
            ]
            for role in roles
        }
        known = {name for names in roles_of for name in names}
        columns = {
            name: [row.get(name, ABSENT) for row in rows]
            for name in (*self.layout.features, *self.layout.types, ID_COLUMN)
            if name in known
        }
        return RawEvents("the list", len(rows), roles, columns, by_role)

    def _read_tuples(self, rows: Sequence[Sequence[Any]]) -> RawEvents:
        """Read rows of src, dst, time and, after them, the numeric columns of the stream in order."""
        names = (*ROW_NAMES, *self.layout.features)
        if rows and max(map(len, rows)) > len(names):
            raise FileError(
                f"the list has a row of {max(map(len, rows))} values; give {', '.join(names)}",
                code="row-lengths-differ",
            )
        columns = {name: [row[k] if k < len(row) else ABSENT for row in rows] for k, name in enumerate(names)}
        by_role = {role: columns[role] for role in ROW_NAMES}
        return RawEvents("the list", len(rows), {role: role for role in ROW_NAMES}, columns, by_role)

    def _find_roles(self, names: Sequence[str]) -> dict[str, str]:
        roles = {}
        for role in USUAL_NAMES:
            own = [
                name for name in (getattr(self._options, role), getattr(self._origin, role)) if name in names
            ]
            column = own[0] if own else find_usual_column([str(name) for name in names], role)
            if column is not None:
                roles[role] = column
        return roles

    def _require_roles(self, raw: RawEvents) -> RawEvents:
        for role in USUAL_NAMES:
            if role not in raw.roles:
                raise NotFoundError(
                    f"cannot tell which column of {raw.source} is the {role}; name it '{role}'",
                    code="column-not-recognized",
                )
        return raw

    def _parse_ids(self, raw: RawEvents, role: str, problems: dict[int, str]) -> list[str]:
        any_id, is_whole = self._any_id, self._has_whole_ids[role]

        def parse(value: Any) -> str:
            text = _parse_id(value, any_id)
            return strip_decimal_zero(text) if is_whole else text

        return _parse_each(_to_values(raw[role]) if raw.count else [], role, parse, problems, "")

    def _parse_event_ids(self, raw: RawEvents, problems: dict[int, str]) -> list[str | None]:
        taken = {*raw.roles.values(), *self.layout.features, *self.layout.types}
        if ID_COLUMN not in raw.columns or ID_COLUMN in taken:
            return [None] * raw.count

        def parse(value: Any) -> str | None:
            is_given = value is not ABSENT and value is not None and value != ""
            return _parse_id(value, any_id=True) if is_given else None

        return _parse_each(_to_values(raw.columns[ID_COLUMN]), ID_COLUMN, parse, problems, None)

    def _parse_times(self, raw: RawEvents, problems: dict[int, str]) -> list[float]:
        if not raw.count:
            return []
        location = ColumnLocation(raw.source, raw.roles["time"], 0)
        given = raw["time"]
        try:
            column = given if isinstance(given, pa.Array) else _to_array(given)
            if _is_uniform(column):
                return self._parse_time_column(column, location)
        except CONVERSION_ERRORS:
            pass  # one of them is not a time, or they are written in different ways

        def parse(value: Any) -> float:
            if value is ABSENT or value is None:
                raise ValueError("is missing or empty; give the event a time")
            return self._parse_time_column(_to_array([value]), location)[0]

        return _parse_each(_to_values(given), raw.roles["time"], parse, problems, 0.0)

    def _parse_time_column(self, column: pa.Array, location: ColumnLocation) -> list[float]:
        options, origin = self._options, self._origin
        given = options.time_format is not None or options.time_unit != "auto"
        if origin.time_format and not given and is_text_type(column.type):
            try:
                return self._read_times(column, location, origin.time_format)
            except FileError:  # written in another way after all
                pass
        return self._read_times(column, location, options.time_format)

    def _read_times(self, column: pa.Array, location: ColumnLocation, time_format: str | None) -> list[float]:
        parser = choose_time_parser(
            column, self._unit, location, time_format=time_format, order=self._origin.order, guess=True
        )
        time = parser.parse(column, location).require(location)
        check_time_scale(self._dataset, location.file, parser.is_unix_time, time)
        return np.add(time, 0.0).tolist()  # -0.0 becomes 0.0, as which SQLite stores it

    def _parse_columns(self, raw: RawEvents, problems: dict[int, str]) -> list[str | None]:
        """Return the columns of each event as JSON: numbers, then categories."""
        layout = self.layout
        if not layout.features and not layout.types:
            return [None] * raw.count
        numbers = [self._parse_numbers(raw, name, problems) for name in layout.features]
        words = [self._parse_categories(raw, name, problems) for name in layout.types]
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        return [encode(row) for row in zip(*numbers, *words, strict=True)]

    def _get_column(self, raw: RawEvents, name: str) -> Any:
        if name in raw.columns:
            return raw.columns[name]
        if raw.source != "the list" and not self._fills_absent:  # a table: the column as a whole is missing
            raise NotFoundError(
                f"{raw.source} has no column {name!r}, which the events of this run have; add it, or give `fill=VALUE`",
                code="unknown-column",
            )
        return [ABSENT] * raw.count

    def _parse_numbers(self, raw: RawEvents, name: str, problems: dict[int, str]) -> list[float]:
        location, given = ColumnLocation(raw.source, name, 0), self._get_column(raw, name)
        try:
            column = given if isinstance(given, pa.Array) else _to_array(given)
            return parse_floats(column, location, self._fill, self._decimal).require(location).tolist()
        except CONVERSION_ERRORS:
            pass

        def parse(value: Any) -> float:
            known = None if value is ABSENT else value
            parsed = parse_floats(_to_array([known]), location, self._fill, self._decimal)
            return parsed.require(location).tolist()[0]

        return _parse_each(_to_values(given), name, parse, problems, 0.0)

    def _parse_categories(self, raw: RawEvents, name: str, problems: dict[int, str]) -> list[str]:
        given = self._get_column(raw, name)

        def parse(value: Any) -> str:
            if value is ABSENT and not self._fills_absent:
                raise ValueError("is missing; add it, null for an unknown value, or give `fill=VALUE`")
            known = None if value is ABSENT else value
            if isinstance(known, str) and len(known) > MAX_TEXT:
                raise ValueError(f"has {len(known):,} characters; give at most {MAX_TEXT:,}")
            text = as_category_text(pa.array([known], pa.string() if known is None else None))
            return text.to_pylist()[0]

        return _parse_each(_to_values(given), name, parse, problems, "")

    def _find_unknown_nodes(self, src: list[str], dst: list[str], problems: dict[int, str]) -> None:
        assert self._known is not None
        for role, ids in (("src", src), ("dst", dst)):
            node = self._known.to_node(pa.array(ids, pa.large_string()), role)  # pyright: ignore[reportArgumentType]
            for row in np.flatnonzero(node < 0).tolist():
                problems.setdefault(
                    row,
                    f"{role} {ids[row]!r} is a new node, and model '{self._model}' has a memory of the nodes it was "
                    "trained with; leave the event out",
                )


def collect_events(events: Sequence[LogEvent], layout: EventLayout) -> AddedEvents:
    """Return events of the log as a state takes them, sorted by time; those of the same time keep their order."""
    time = np.array([event.time for event in events], np.float64)
    if (time[1:] < time[:-1]).any():
        order = np.argsort(time, kind="stable")
        events, time = [events[k] for k in order.tolist()], time[order]
    rows = [json.loads(event.columns) for event in events if event.columns is not None]
    count = len(layout.features)
    edge = np.array([row[:count] for row in rows], np.float32).reshape(len(events), count)
    categories, codes = [], np.zeros((len(events), len(layout.types)), np.int32)
    for k, category in enumerate(layout.types):
        code: dict[str, int] = {}
        codes[:, k] = [code.setdefault(row[count + k], len(code)) for row in rows]
        categories.append(Category(category, tuple(code)))
    ends = [event.src for event in events], [event.dst for event in events]
    return AddedEvents(*ends, time, edge, codes, tuple(categories))


def build_events(events: Sequence[LogEvent], layout: EventLayout, name: str) -> Dataset:
    """Build a dataset of events of the log, sorted by time; those of the same time keep their order."""
    added = collect_events(events, layout)
    ids, src, dst = _number_ids(added, layout.bipartite)
    table = FeatureTable(
        torch.zeros(len(ids), 0),
        torch.from_numpy(added.edge),
        torch.from_numpy(added.codes) if layout.types else None,
        layout.features,
        added.categories,
    )
    store = EventStore(
        src=torch.tensor(src),
        dst=torch.tensor(dst),
        time=torch.from_numpy(added.time),
        features=table,
        num_nodes=len(ids),
        bipartite=layout.bipartite,
    )
    return Dataset.from_events(name, store, ids)


def _number_ids(events: AddedEvents, bipartite: bool) -> tuple[NodeIds, list[int], list[int]]:
    """Number the ids of both ends in order of appearance; in a bipartite stream sources come first."""
    number: dict[Key, int] = {}
    if not bipartite:
        pairs = zip(events.src, events.dst, strict=True)
        ends = [number.setdefault(end, len(number)) for pair in pairs for end in pair]
        return NodeIds(_to_id_array(list(number))), ends[::2], ends[1::2]
    src = [number.setdefault(end, len(number)) for end in events.src]
    other: dict[Key, int] = {}
    dst = [len(number) + other.setdefault(end, len(other)) for end in events.dst]
    return NodeIds(_to_id_array([*number, *other]), len(number)), src, dst


def _to_id_array(ids: list[Key]) -> pa.Array:
    """Return ids as integers if each is the usual notation of one, otherwise as text."""
    texts = pa.array(map(str, ids), pa.large_string())
    numbers = as_integers(texts)
    return texts if numbers is None else numbers


def _parse_each(
    values: Sequence[Any], column: str, parse: Callable[[Any], T], problems: dict[int, str], default: T
) -> list[T]:
    """Parse values one by one; a value that cannot be read is recorded as the problem of its row."""
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(parse(value))
        except BadValueError as error:
            problems.setdefault(row, f"{error.problem}; {error.advice}")
            parsed.append(default)
        except DygError as error:
            problems.setdefault(row, str(error))
            parsed.append(default)
        except CONVERSION_ERRORS as error:
            problems.setdefault(row, f"column {column!r} {str(error).splitlines()[0]}")
            parsed.append(default)
    return parsed


def _parse_id(value: Any, any_id: bool) -> str:
    """Return an id as text; raise ValueError for what is none."""
    if value is ABSENT:
        raise ValueError("is missing, or has a name that is not recognized; add it")
    text = parse_id(value, any_id)
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text):,} characters; give at most {MAX_TEXT:,}")
    return text


def _to_values(column: Any) -> Sequence[Any]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    return column.to_pylist() if isinstance(column, pa.Array) else column


def _to_array(values: Sequence[Any]) -> pa.Array:
    if any(value is ABSENT for value in values):
        raise ValueError("a value is missing")
    return pa.array(values, from_pandas=True)


# where the unit that a number is taken to have changes
UNIT_BOUNDS = np.sort([bound * ticks for bound in EPOCH_RANGE for ticks in TICKS_PER_SECOND.values()])


def _is_uniform(column: pa.Array) -> bool:
    """Return whether all times are numbers of one unit, or all dates, so that each alone would be read the same way."""
    if is_text_type(column.type):
        numeric = [NUMBER_PATTERN.fullmatch(text.strip()) is not None for text in column.to_pylist() if text]
        if not any(numeric):
            return True
        if not all(numeric) or len(numeric) < len(column):
            return False
        column = pa.array([float(text) for text in column.to_pylist()])
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return True
    value = column.to_numpy(zero_copy_only=False)
    unit = np.searchsorted(UNIT_BOUNDS, (value.min(), value.max()), side="right")
    return bool(unit[0] == unit[1])
