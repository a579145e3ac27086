"""Features of a pair from the sequence of its source: what follows the source's last destinations, and how soon.

For an event (u, v, t) let w_1, ..., w_L be the last L destinations of the source u strictly before t, the last one
first. The event is then a transition of lag l from w_l to v, for each l. T_l(w, v) is the sum of exp(-age / scale) over
the transitions of lag l from w to v of all sources strictly before a time, and out_l(w) the same sum over all v. In a
stream of messages this is whom senders write to after they wrote to w.

Events at the same instant do not see each other: none of them is a last destination of another one. Where they are
last destinations of a later event, those of one source are taken in the order of their destinations' numbers, the
largest as the last. So the order of simultaneous events is irrelevant, and an event has at most L transitions,
whatever the size of an instant.

Legend: a appended events, p, q queries, l lags, s scales, k ages, f features per pair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Float64, Int64

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.column_facts import TypeColumn
from dygmamba.history.associations import (
    Association,
    AssociationTable,
    FollowerTable,
    name_associations,
    summarise_associations,
    summarise_types,
)
from dygmamba.history.block_lists import BlockLists, CountLists, EventRows, directed_key, flatten_rows
from dygmamba.history.columns import OTHER_VALUES, assign_buckets
from dygmamba.history.counts import scale_label
from dygmamba.history.table_request import HISTORY, FeatureGroup, FeatureRequest, FeatureUnit, TableRequest
from dygmamba.ops import blocks
from dygmamba.ops.growing import Growing
from dygmamba.ops.key_slots import KeySlots

MAX_LAGS = 7  # a key has 3 bits for the lag, and 30 for each node
SINCE_MET = "number of events of the source since its last one on the destination"
ORDER, ASSOCIATIONS = (FeatureGroup(HISTORY, f"{what} of destinations") for what in ("order", "associations"))
AGES = 6  # last events of the source whose ages are features
BYTES_PER_EVENT, BYTES_PER_LAG = (
    150,
    80,
)  # of a table, where no pair of destinations repeats, beside its counts
LEAST_COUNT, LEAST_TOTAL = (
    1e-3,
    1e-2,
)  # added to a count and to its total, so that the share of a new pair is finite


@dataclass(frozen=True, slots=True)
class TransitionScales(TableRequest):
    """Base class of requests for transitions.

    Attributes:
        scales: Time scales of the decay exp(-age / scale).
        lags: Largest number of events from the first node of a transition to the second one.
        window: Last destinations of an event that are associated with its own; 0: no associations.
        column: Event type by which the earlier events of associations are told apart, if any.
    """

    precision: ClassVar[type[np.floating]] = np.float64  # of the scales
    scales: tuple[float, ...]
    lags: int = 3
    window: int = 0
    column: TypeColumn | None = None

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0 or not 0 < self.lags <= MAX_LAGS or self.window < 0:
            raise ConfigError(
                f"a transition request needs time scales above 0, 1 to {MAX_LAGS} lags and a window of at least 0; got "
                f"scales={self.scales}, lags={self.lags}, window={self.window}",
                code="invalid-request",
            )

    @property
    def association_names(self) -> list[str]:
        """Names of the association features of a pair."""
        return name_associations(self.window, "" if self.column is None else self.column.name)

    @property
    def buckets(self) -> int:
        """Number of types that are told apart: those of the column and one for all others; 1 without a column."""
        return 1 if self.column is None else len(self.column.codes) + 1


@dataclass(frozen=True, slots=True)
class TransitionFeatures(TransitionScales, FeatureRequest):
    """Request for transition features of each pair; `lags` last destinations of the source are looked at."""

    def prepare(self, index: Any) -> Any:
        return index.table(TransitionTable, self)

    @property
    def names(self) -> list[str]:
        decayed = [
            text.format(_ordinal(lag), "" if lag == 1 else f" {lag} events later")
            for text in (
                "how often the destination followed the source's {} destination{}",
                "share of the events after the source's {} destination{} that were on the destination",
            )
            for lag in range(1, self.lags + 1)
        ]
        decayed.append(
            f"how often the destination was visited near the source's last {self.lags} destinations"
        )
        return [
            *(f"{name}, {scale_label(scale)}" for name in decayed for scale in self.scales),
            *(
                f"time since the source's {_ordinal(number)} event as a sender"
                for number in range(1, AGES + 1)
            ),
            SINCE_MET,
            *self.association_names,
        ]

    @property
    def units(self) -> list[FeatureUnit]:
        # what is due after an earlier event is so until the source turns to it
        associations = (SINCE_MET, *self.association_names) if self.window else ()
        return [FeatureUnit(name, ASSOCIATIONS if name in associations else ORDER) for name in self.names]


def _ordinal(number: int) -> str:
    return {1: "last", 2: "second last", 3: "third last"}.get(number, f"{number}th last")


class DestinationLists(BlockLists):
    """Times of the events of each source and, for each, its last items up to it, the last one first.

    The item of an event is its destination, with the number of its type where `buckets` types are told apart:
    destination * buckets + type. -1 stands for fewer items.
    """

    columns = ("time", "recent")
    recent: np.ndarray

    def __init__(self, lags: int, buckets: int = 1, is_growing: bool = False) -> None:
        self.buckets = buckets
        super().__init__((np.float64, ()), (np.int64, (lags,)), is_growing=is_growing)

    def append(self, rows: EventRows, item: Int64[np.ndarray, "a"]) -> Int64[np.ndarray, "a l"]:
        """Append events; return the last items of each source strictly before its event."""
        previous = np.full((len(rows.src), self.recent.shape[1]), -1)
        columns = (np.ascontiguousarray(rows.src), item, rows.time, previous)
        self.extend(blocks.append_destinations, (), *columns)
        return previous

    def last_items(
        self, source: Int64[np.ndarray, "*q"], time: Float64[np.ndarray, "*q"]
    ) -> Int64[np.ndarray, "*q l"]:
        """Return the last items of each source strictly before each time."""
        return self.read("recent", self.find_last(source, time), -1)

    def last_destinations(
        self, source: Int64[np.ndarray, "*q"], time: Float64[np.ndarray, "*q"]
    ) -> Int64[np.ndarray, "*q l"]:
        """Return the last destinations of each source strictly before each time."""
        return self.last_items(source, time) // self.buckets  # -1 stays -1

    def last_ages(
        self, source: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"], count: int
    ) -> Float64[np.ndarray, "q k"]:
        """Return the ages of the last `count` events of each source strictly before each time; -1 if fewer."""
        found = np.empty((len(source), count))
        blocks.find_ages(
            self.start, self.size, self.time, self.find(source), np.ascontiguousarray(time), found
        )
        return found

    def count_between(
        self,
        source: Int64[np.ndarray, "q"],
        since: Float64[np.ndarray, "q"],
        time: Float64[np.ndarray, "q"],
    ) -> Int64[np.ndarray, "q"]:
        """Return the number of events of each source strictly later than `since` and strictly before each time."""
        found, queries = (
            np.empty(len(source), np.int64),
            (self.find(source), since, np.ascontiguousarray(time)),
        )
        blocks.count_between(self.start, self.size, self.time, *queries, found)
        return found


class TransitionTable(Growing):
    """Decayed numbers of transitions between destinations over a stream (or over its training events).

    Attributes:
        sources: Last destinations of every source.
        followed: Transitions by (l, w, v).
        left: Transitions by (w, l), with key w * lags + l.
        met: Events by (source, destination); only their times are read, so there is no scale.
        associations: Destinations that followed others within the window, if there is one.
        typed: The same by the type of the earlier event, if there is a column.
    """

    def __init__(self, request: TransitionScales, is_growing: bool = False) -> None:
        """Create a table without events."""
        self.lags, scale = request.lags, np.array(request.scales, request.precision).astype(np.float64)
        self.shortest = min(request.scales)
        self.window, self.column, self.buckets = request.window, request.column, request.buckets
        self.sources = DestinationLists(max(request.lags, request.window), self.buckets, is_growing)
        self.associations = AssociationTable(is_growing) if request.window else None
        self.typed = FollowerTable(is_growing) if request.window and request.column else None
        self.followed = CountLists(scale, KeySlots(), is_growing)
        self.left = CountLists(scale, None, is_growing)
        self.met = CountLists(scale[:0], KeySlots(), is_growing)

    @property
    def parts(self) -> Mapping[str, Growing]:
        names = ("sources", "followed", "left", "met", "associations", "typed")
        parts = {name: getattr(self, name) for name in names}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def lists(self) -> Mapping[str, BlockLists]:
        """The lists in which two nodes are looked up, by name."""
        lists = {"sources": self.sources, "followed": self.followed, "left": self.left}
        return lists if self.associations is None else {**lists, **self.associations.parts}

    def require_memory(self, events: int) -> None:
        """Raise MemoryBudgetError if the table of so many events does not fit into memory."""
        tables = (self.associations is not None) + (self.typed is not None)
        lags = self.lags * (BYTES_PER_LAG + 16 * len(self.left.scale)) + tables * self.window * BYTES_PER_LAG
        hint = "a smaller one with `associations=0`, none with `transitions=0`"
        require_memory(
            events * (BYTES_PER_EVENT + lags), f"the table of transitions of {events:,} events ({hint})"
        )

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        if not self.sources.used:  # the first ones, in parts
            self.sources.reserve(np.bincount(rows.src, minlength=self.sources.groups))
        parts = [self._record(part) for part in rows.split()] or [self._record(rows)]
        key, total, when = (np.concatenate(own) for own in zip(*parts, strict=True))
        del parts
        self.followed.append(key, when)
        self.left.append(total, when)
        self.met.append(directed_key(rows.src, rows.dst), rows.time)

    def _record(self, rows: EventRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Append events to the histories of their sources; return the keys and the time of each transition."""
        item = self._list_items(rows)
        previous = self.sources.append(rows, item)
        for table, window, own in self._list_associations(previous, item, rows):
            table.append_after(window, own, rows)
        event, key, total = self._list_transitions(previous // self.buckets, rows.dst)
        return key, total, rows.time[event]

    def _list_transitions(
        self, previous: Int64[np.ndarray, "a l"], dst: Int64[np.ndarray, "a"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return event and keys of each transition, from the last destinations before each event."""
        event, lag = np.nonzero(previous[:, : self.lags] >= 0)
        origin = previous[event, lag]
        return event, cell_key(origin, dst[event], lag), origin * self.lags + lag

    def _list_items(self, rows: EventRows) -> Int64[np.ndarray, "a"]:
        """Return the item of each event."""
        if self.column is None:
            return rows.dst
        return rows.dst * self.buckets + assign_buckets(rows, self.column)

    def _list_associations(
        self, previous: Int64[np.ndarray, "a l"], item: Int64[np.ndarray, "a"], rows: EventRows
    ) -> Iterator[tuple[FollowerTable, np.ndarray, np.ndarray]]:
        """Yield each table of associations with the items of windows and events there."""
        window = previous[:, : self.window]
        if self.associations is not None:
            yield self.associations, window // self.buckets, rows.dst
        if self.typed is not None:
            yield self.typed, self._list_open_items(previous, rows.dst), item

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        item, previous = self._list_items(rows), self.sources.last_items(rows.src, rows.time)  # as appended
        for table, window, own in self._list_associations(previous, item, rows):
            table.drop_after(window, own, rows)
        _, key, total = self._list_transitions(previous // self.buckets, rows.dst)
        self.followed.drop(key)
        self.left.drop(total)
        self.met.drop(directed_key(rows.src, rows.dst))
        self.sources.drop(rows.src)

    def counts(
        self, origin: Int64[np.ndarray, "q l"], dst: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> Float64[np.ndarray, "q l s"]:
        """Return T_l(w_l, v) strictly before each time; 0 where w_l is -1."""
        key = cell_key(origin, dst[:, None], np.arange(self.lags))
        found = self.followed.count_before(key.ravel(), time.repeat(self.lags))
        return found.reshape(*origin.shape, found.shape[1])

    def totals(
        self, origin: Int64[np.ndarray, "q l"], time: Float64[np.ndarray, "q"]
    ) -> Float64[np.ndarray, "q l s"]:
        """Return out_l(w_l) strictly before each time; 0 where w_l is -1."""
        key = origin * self.lags + np.arange(self.lags)
        found = self.left.count_before(key.ravel(), time.repeat(self.lags))
        return found.reshape(*origin.shape, found.shape[1])

    def covisits(
        self, origin: Int64[np.ndarray, "q l"], dst: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> Float64[np.ndarray, "q s"]:
        """Return the sum of T_i(w, v) + T_i(v, w) over all lags i and the given nodes w, strictly before each time."""
        w, v, lag = origin[:, :, None], dst[:, None, None], np.arange(self.lags)
        key = flatten_rows(np.concatenate([cell_key(w, v, lag), cell_key(v, w, lag)], axis=1))
        now = np.zeros((1, key.shape[1]))
        return self.followed.sum_meetings(key, np.zeros_like(dst), now, time)[:, 0]

    def events_since_met(
        self, src: Int64[np.ndarray, "q"], dst: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> Int64[np.ndarray, "q"]:
        """Return how many events of the source are later than its last one on the destination; -1 if there is none.

        Both are strictly before the query time; events at the instant of that last one are not later.
        """
        entry = self.met.find_last(directed_key(src, dst), time)
        since = self.met.read("time", entry, -np.inf)
        return np.where(entry >= 0, self.sources.count_between(src, since, time), -1)

    def find_best_association(
        self, src: Int64[np.ndarray, "1"], dst: Int64[np.ndarray, "1"], time: Float64[np.ndarray, "1"]
    ) -> tuple[Association, str] | None:
        """Return the last destination of the source with the best share, the latest of equal ones; None without any.

        Where the share by the type of the earlier event is larger, the result is of that type, and has its value.
        """
        assert self.associations is not None
        items = self.sources.last_items(src, time)
        best = self.associations.find_best(items[:, : self.window] // self.buckets, dst, time)
        window = self._list_open_items(items, dst)
        typed = None if self.typed is None else self.typed.find_best(window, dst, time)
        if best is None or typed is None or typed.share <= best.share:
            return None if best is None else (best, "")
        node, bucket = divmod(typed.item, self.buckets)
        values = (*self.column.values, OTHER_VALUES) if self.column is not None else ()
        return typed._replace(item=node), values[bucket]

    def _list_open_items(
        self, items: Int64[np.ndarray, "p k"], dst: Int64[np.ndarray, "p"]
    ) -> Int64[np.ndarray, "p k"]:
        """Return the last items of each source that are later than the last one on the destination, else -1.

        A destination that the source turned to since is no longer due: the ink was bought after the printer.
        """
        window = items[:, : self.window]
        is_met = np.logical_or.accumulate(window // self.buckets == dst[:, None], axis=1)
        return np.where(is_met, -1, window)

    @np.errstate(all="ignore")  # numbers of any size, which may overflow
    def compute_features(
        self, src: Int64[np.ndarray, "p"], dst: Int64[np.ndarray, "p"], time: Float64[np.ndarray, "p"]
    ) -> Float32[np.ndarray, "p f"]:
        """Return all features of each pair, in the order of the names of the request."""
        items = self.sources.last_items(src, time)
        last = items // self.buckets
        origin = last[:, : self.lags]
        followed, left = self.counts(origin, dst, time), self.totals(origin, time)
        share = np.log((followed + LEAST_COUNT) / (left + LEAST_TOTAL))
        near = np.log1p(self.covisits(origin, dst, time))
        ages = self.sources.last_ages(src, time, max(AGES, self.window)) / self.shortest
        age = ages[:, :AGES]
        age = np.where(age < 0, -1.0, np.log1p(np.maximum(age, 0)))
        met = self.events_since_met(src, dst, time)
        since = np.where(met < 0, -1.0, np.log1p(np.maximum(met, 0)))
        parts = [flatten_rows(np.log1p(followed)), flatten_rows(share), near, age, since[:, None]]
        if self.associations is not None:
            window = last[:, : self.window]
            counts = self.associations.count(window, dst, time)
            parts.append(summarise_associations(np, counts, window >= 0, ages[:, : self.window]))
        if self.typed is not None:
            window = self._list_open_items(items, dst)
            followed, visits = self.typed.count_followers(window, dst, time)
            parts.append(summarise_types(followed, visits, ages[:, : self.window]))
        return np.concatenate(parts, axis=1, dtype=np.float32)


def cell_key(origin: Any, dst: Any, lag: Any) -> Any:
    """Return the key of a transition (l, w, v), of arrays of numpy or of tensors; negative if w or v is."""
    return (origin << 33) | (dst << 3) | lag
