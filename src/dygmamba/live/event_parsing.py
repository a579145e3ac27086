"""Events of users as rows of the log, and rows of the log as events of a stream.

Every row stands for itself: what it means does not depend on the rows it was sent with, and a row that cannot be read
does not spoil the others. Values of a column that are written alike are parsed at once, with a mask of the bad ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import FileError, NotFoundError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.id_values import parse_id, strip_decimal_zero
from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed
from dygmamba.data.readers.options import ROLES
from dygmamba.data.readers.queries import QueryTimes, read_query_columns
from dygmamba.data.readers.roles import match_columns
from dygmamba.data.readers.time_evidence import choose_time_parser
from dygmamba.data.readers.times import FormatParser
from dygmamba.data.readers.values import as_category_text, is_text_type, parse_floats
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.extension import AddedEvents, check_time_scale
from dygmamba.live.event_log import LogEvent
from dygmamba.live.value_groups import (
    ABSENT,
    find_category_notation,
    find_number_notation,
    find_time_notation,
    group_rows,
    mark_bad,
    parse_each,
    parse_groups,
    to_array,
    to_values,
)
from dygmamba.runs.predictor import Predictor

ID_COLUMN = "id"  # of the event, by which it is recognized when it is sent again
MAX_TEXT = 10_000  # characters of an id or a category
REMEMBERED_NAMES = 64  # sets of column names


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
        is_plain = self._options.time_unit == "auto" and not self._dataset.is_dated
        self._unit = "plain" if is_plain else self._options.time_unit
        # a model with a node memory takes no new nodes
        self._known = predictor.dataset.ids if predictor.run.scorer.stateful else None
        self._model = str(predictor.run.model)
        # a client sends the same names every time
        self._recall_roles = lru_cache(REMEMBERED_NAMES)(
            partial(match_columns, options=self._options, origin=self._origin)
        )

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
        roles = {role: role for role in ROLES}
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
        names = (*ROLES, *self.layout.features)
        if rows and max(map(len, rows)) > len(names):
            raise FileError(
                f"the list has a row of {max(map(len, rows))} values; give {', '.join(names)}",
                code="row-lengths-differ",
            )
        columns = {name: [row[k] if k < len(row) else ABSENT for row in rows] for k, name in enumerate(names)}
        by_role = {role: columns[role] for role in ROLES}
        return RawEvents("the list", len(rows), {role: role for role in ROLES}, columns, by_role)

    def _require_roles(self, raw: RawEvents) -> RawEvents:
        for role in ROLES:
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

        return parse_each(to_values(raw[role]) if raw.count else [], role, parse, problems, "")

    def _parse_event_ids(self, raw: RawEvents, problems: dict[int, str]) -> list[str | None]:
        taken = {*raw.roles.values(), *self.layout.features, *self.layout.types}
        if ID_COLUMN not in raw.columns or ID_COLUMN in taken:
            return [None] * raw.count

        def parse(value: Any) -> str | None:
            is_given = value is not ABSENT and value is not None and value != ""
            return _parse_id(value, any_id=True) if is_given else None

        return parse_each(to_values(raw.columns[ID_COLUMN]), ID_COLUMN, parse, problems, None)

    def _parse_times(self, raw: RawEvents, problems: dict[int, str]) -> list[float]:
        location = ColumnLocation(raw.source, raw.roles["time"])
        parse = partial(self._parse_time_group, location=location)
        return parse_groups(raw["time"], location.column, find_time_notation, parse, problems, 0.0)

    def parse_query_times(self, times: Sequence[Any]) -> QueryTimes:
        """Return the times of queries, each read as the time of an event that comes alone.

        Raises:
            BadValueError: One of them cannot be read.
            FileError: One of them is on another scale than the stream.
        """
        location, value = ColumnLocation("the list", "time"), np.zeros(len(times))
        for rows in group_rows(map(find_time_notation, times)):
            parsed = self._parse_time_group([times[row] for row in rows], location)
            if parsed.bad.any():
                first = int(parsed.bad.argmax())
                raise location.bad_value(rows[first], *parsed.explain(first))
            value[rows] = parsed.values
        return QueryTimes(value, pa.array(value), self._dataset.is_dated)

    def _parse_time_group(self, values: Sequence[Any] | pa.Array, location: ColumnLocation) -> Parsed:
        if values[0] is None or values[0] is ABSENT:
            return mark_bad(values, "is missing or empty", "give the event a time")
        column, options, own_format = to_array(values), self._options, self._origin.time_format
        is_open = options.time_format is None and options.time_unit == "auto"
        if not (own_format and is_open and is_text_type(column.type)):
            return self._choose_and_parse(column, location)
        parsed = FormatParser(own_format).parse(column, location)
        rest = np.flatnonzero(parsed.bad)  # written in another way after all
        other = self._choose_and_parse(column.take(pa.array(rest)), location) if len(rest) else None
        if other is None:
            return self._check_times(parsed, is_unix_time=True, location=location)
        time, bad = parsed.values.copy(), parsed.bad.copy()
        time[rest], bad[rest] = other.values, other.bad
        return Parsed(time, bad, lambda row: other.explain(int(np.searchsorted(rest, row))))

    def _choose_and_parse(self, column: pa.Array, location: ColumnLocation) -> Parsed:
        options, order = self._options, self._origin.order
        parser = choose_time_parser(
            column, self._unit, location, time_format=options.time_format, order=order, guess=True
        )
        return self._check_times(parser.parse(column, location), parser.is_unix_time, location)

    def _check_times(self, parsed: Parsed, is_unix_time: bool, location: ColumnLocation) -> Parsed:
        good = parsed.values[~parsed.bad]
        if len(good):
            check_time_scale(self._dataset, location.file, is_unix_time, good)
        # -0.0 becomes 0.0, as which SQLite stores it
        return Parsed(np.add(parsed.values, 0.0), parsed.bad, parsed.explain)

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
        location = ColumnLocation(raw.source, name)

        def parse(values: Sequence[Any] | pa.Array) -> Parsed:
            return parse_floats(to_array(values), location, self._fill, self._decimal)

        given = self._get_column(raw, name)
        return parse_groups(given, name, find_number_notation, parse, problems, 0.0)

    def _parse_categories(self, raw: RawEvents, name: str, problems: dict[int, str]) -> list[str]:
        def parse(values: Sequence[Any] | pa.Array) -> Parsed:
            if values[0] is ABSENT and not self._fills_absent:
                return mark_bad(
                    values, "is missing", "add it, null for an unknown value, or give `fill=VALUE`"
                )
            sizes = np.array([len(value) if isinstance(value, str) else 0 for value in values])
            short = [value if size <= MAX_TEXT else "" for value, size in zip(values, sizes, strict=True)]
            return Parsed(
                as_category_text(to_array(short, from_pandas=False)),
                sizes > MAX_TEXT,
                lambda row: (f"has {sizes[row]:,} characters", f"give at most {MAX_TEXT:,}"),
            )

        given = to_values(self._get_column(raw, name))
        return parse_groups(given, name, find_category_notation, parse, problems, "")

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


def _parse_id(value: Any, any_id: bool) -> str:
    """Return an id as text; raise ValueError for what is none."""
    if value is ABSENT:
        raise ValueError("is missing, or has a name that is not recognized; add it")
    text = parse_id(value, any_id)
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text):,} characters; give at most {MAX_TEXT:,}")
    return text
