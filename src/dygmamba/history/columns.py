"""Features of a pair from the columns of events: amounts, ratings and other numbers, and event types.

For each numeric column and each history (events that the source sent, that the destination received, between the two)
there are the decayed mean and sum, the last value, its deviation from the mean, and the spread. For each categorical
column there are decayed counts per frequent value, and of all other values together. Further features compare what the
source sent with what the destination received. Only events strictly earlier than the query are read: every look-up
takes the query time.

A query may carry columns of its own: what is known of the event in question, such as its amount. Its features then say
how the value differs from those of each history, and how often its type occurred there.

Legend: p pairs, s scales, c numeric columns, v sums of them, b buckets of types, f features per pair.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.history.block_lists import CountLists, EventRows, SumLists, flatten_rows, pair_key
from dygmamba.history.counts import scale_label
from dygmamba.history.table_request import EVENT_COLUMN, FeatureGroup, FeatureRequest, FeatureUnit
from dygmamba.ops.growing import Growing
from dygmamba.ops.key_slots import KeySlots

HISTORIES = ("that the source sent", "that the destination received", "between them")
HISTORIES_OF_NODES = (True, True, False)  # whether the keys of a history are nodes
LEAST_COUNT, LEAST_TOTAL = 1e-3, 1e-2  # added to a count and to its total, so that a share is finite
OTHER_VALUES = "any other value"


@dataclass(frozen=True, slots=True)
class ColumnFeatures(FeatureRequest):
    """Request for column features of each pair.

    Attributes:
        columns: The columns to read, with their statistics in training.
        scales: Time scales of the decay exp(-age / scale), the longest last.
        query: Whether queries carry columns, so that there are features of them.
    """

    columns: ColumnFacts
    scales: tuple[float, ...]
    query: bool = False

    def __post_init__(self) -> None:
        if not self.columns or not self.scales or min(self.scales) <= 0:
            raise ConfigError(
                f"a column request needs columns and time scales above 0; got {self.columns} and "
                f"scales={self.scales}",
                code="invalid-request",
            )

    def prepare(self, index: Any) -> Any:
        return index.table(ColumnTable, self)

    def compute(self, index: Any, pairs: Any, src: Any, dst: Any, time: Any) -> Any:
        values = None if pairs.columns is None else pairs.columns.values
        return self.prepare(index).compute_features(src, dst, time, values)

    @property
    def units(self) -> list[FeatureUnit]:
        """Name, column and scale of each feature, in the order of the columns."""
        columns = self.columns
        return [
            *(unit for own in columns.numeric for unit in self._numeric_units(own)),
            *(
                FeatureUnit(name, FeatureGroup(EVENT_COLUMN, own.name))
                for own in columns.types
                for name in self._type_names(own)
            ),
        ]

    def _numeric_units(self, column: NumericColumn) -> list[FeatureUnit]:
        name, fading = column.name, [scale_label(scale) for scale in self.scales]
        group = FeatureGroup(EVENT_COLUMN, name)

        def value(what: str) -> FeatureUnit:
            return FeatureUnit(what, group, column.mean, column.deviation)

        def difference(what: str) -> FeatureUnit:
            return FeatureUnit(what, group, 0.0, column.deviation)

        units = []
        for history in HISTORIES:
            units += [value(f"mean {name} of the events {history}, {scale}") for scale in fading]
            # sums are logarithms
            units += [
                FeatureUnit(f"sum of {name} over the events {history}, {scale}", group) for scale in fading
            ]
            units += [value(f"last {name} of the events {history}")]
            units += [difference(f"last {name} minus the mean of the events {history}")]
            units += [difference(f"spread of {name} over the events {history}")]
        received = "the mean of those that the destination received"
        units += [
            difference(f"mean {name} that the source sent minus {received}, {scale}") for scale in fading
        ]
        units += [difference(f"last {name} that the source sent minus {received}")]
        if self.query:
            own = f"{name} of the query"
            units.append(value(own))
            for history in HISTORIES:
                units += [
                    difference(f"{own} minus the mean of the events {history}, {scale}") for scale in fading
                ]
                units += [difference(f"{own} minus the last of the events {history}")]
                units += [FeatureUnit(f"{own} in deviations from the mean of the events {history}", group)]
        return units

    def _type_names(self, column: TypeColumn) -> list[str]:
        fading = [scale_label(scale) for scale in self.scales]
        values = [*(f"{column.name} {value!r}" for value in column.values), f"{column.name} {OTHER_VALUES}"]
        names = [
            f"events of {value} {history}, {scale}"
            for history in HISTORIES
            for value in values
            for scale in fading
        ]
        names += [
            f"agreement of {column.name} that the source sent and the destination received, {scale}"
            for scale in fading
        ]
        if self.query:
            names.append(f"{column.name} of the query, by rank of frequency")
            for what in ("number", "share"):
                names += [
                    f"{what} of events of the query's {column.name} {history}, {scale}"
                    for history in HISTORIES
                    for scale in fading
                ]
        return names


def find_query_columns(requests: tuple[object, ...]) -> ColumnFacts:
    """Return the columns that any of these requests reads of each query; none if no request does."""
    found = [request.columns for request in requests if isinstance(request, ColumnFeatures) and request.query]
    numeric = {column.index: column for columns in found for column in columns.numeric}
    types = {column.index: column for columns in found for column in columns.types}
    return ColumnFacts(tuple(numeric.values()), tuple(types.values()))


def history_keys(src: Any, dst: Any, xp: Any = np) -> tuple[Any, Any, Any]:
    """Return the key of each history, in the order of `HISTORIES`; `xp` is the module of the arrays."""
    return src, dst, pair_key(src, dst, xp)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """Columns of queries: their numbers, and the codes of their categories."""

    edge: Float32[np.ndarray, "p de"]
    codes: Int32[np.ndarray, "p dc"] | None = None

    def read_numbers(self, columns: Sequence[int]) -> Float32[np.ndarray, "p c"]:
        """Return some columns of the numbers."""
        return self.edge[:, list(columns)]

    def read_codes(self, column: int) -> Int32[np.ndarray, "p"]:
        """Return the codes of a categorical column."""
        assert self.codes is not None
        return self.codes[:, column]


class ColumnTable(Growing):
    """Columns over the events of a stream (or over its training events)."""

    def __init__(self, request: ColumnFeatures, is_growing: bool = False) -> None:
        """Create a table without events."""
        self.request, scale, numeric = request, np.array(request.scales), request.columns.numeric
        # numeric columns by history: each event has the values 1, z and z^2, with z standardised
        self.numeric = [
            SumLists(1 + 2 * len(numeric), scale, None if is_node else KeySlots(), is_growing)
            for is_node in HISTORIES_OF_NODES
            if numeric
        ]
        self.types = [  # by categorical column and history
            [CountLists(scale, KeySlots(), is_growing) for _ in HISTORIES] for _ in request.columns.types
        ]

    @property
    def parts(self) -> Mapping[str, Growing]:
        tables = [*self.numeric, *(lists for own in self.types for lists in own)]
        return {str(number): table for number, table in enumerate(tables)}

    def require_memory(self, events: int) -> None:
        """Raise MemoryBudgetError if the table of so many events does not fit into memory."""
        chosen, scales = self.request.columns, len(self.request.scales)
        width = 1 + 2 * len(chosen.numeric) if chosen.numeric else 0
        per_event = 8 * (width * (scales + 1) + len(chosen.types) * (scales + 2)) + 40
        hint = "none with `numeric_columns=0`" + (" and `event_types=0`" if chosen.types else "")
        what = f"the table of columns of {events:,} events ({hint})"
        require_memory(len(HISTORIES) * per_event * events, what)

    @np.errstate(all="ignore")  # numbers of any size, which may overflow
    def append_rows(self, rows: EventRows) -> None:
        """Append events with their columns."""
        keys = history_keys(rows.src, rows.dst)
        if self.numeric:
            z = standardise(rows, self.request)
            value = np.concatenate([np.ones_like(z[:, :1]), z, z**2], axis=1)
            for lists, key in zip(self.numeric, keys, strict=True):
                lists.append(key, rows.time, value)
        for lists, key in self._list_types(rows, keys):
            lists.append(key, rows.time)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        keys = history_keys(rows.src, rows.dst)
        for lists, key in [*zip(self.numeric, keys, strict=False), *self._list_types(rows, keys)]:
            lists.drop(key)

    def _list_types(
        self, rows: EventRows, keys: tuple[np.ndarray, ...]
    ) -> Iterator[tuple[CountLists, np.ndarray]]:
        """Yield the lists of each categorical column and history, and the keys of these events there."""
        for column, groups in zip(self.request.columns.types, self.types, strict=True):
            bucket = assign_buckets(rows, column)
            for lists, key in zip(groups, keys, strict=True):
                yield lists, key * (len(column.codes) + 1) + bucket

    @np.errstate(all="ignore")
    def compute_features(
        self,
        src: Int64[np.ndarray, "p"],
        dst: Int64[np.ndarray, "p"],
        time: Float64[np.ndarray, "p"],
        query: ColumnValues | None = None,
    ) -> Float32[np.ndarray, "p f"]:
        """Return all features of each pair, in the order of `ColumnFeatures.units`."""
        columns = self.request.columns
        if self.request.query and query is None:
            names = ", ".join(column.name for column in (*columns.numeric, *columns.types))
            raise ConfigError(
                f"this model scores events with their columns; give {names} with each pair, or train with "
                "`query_columns=false`",
                code="query-columns-missing",
            )
        own, keys, parts = query if self.request.query else None, history_keys(src, dst), []
        if self.numeric:
            found = [lists.look_up(key, time) for lists, key in zip(self.numeric, keys, strict=True)]
            z = None if own is None else standardise(own, self.request)
            parts.append(summarise_numbers(np, found, *center_and_unit(columns.numeric), z))
        for column, groups in zip(columns.types, self.types, strict=True):
            parts += self._type_features(column, groups, keys, time, own)
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _type_features(
        self,
        column: TypeColumn,
        groups: Sequence[CountLists],
        keys: tuple[np.ndarray, ...],
        time: np.ndarray,
        query: ColumnValues | None,
    ) -> list[np.ndarray]:
        buckets, pairs = len(column.codes) + 1, len(time)
        counts = np.stack(
            [
                lists.count_before(
                    (key[:, None] * buckets + np.arange(buckets)).ravel(), time.repeat(buckets)
                )
                for lists, key in zip(groups, keys, strict=True)
            ]
        )  # [histories p*b s]
        counts = counts.reshape(len(groups), pairs, buckets, counts.shape[-1]).swapaxes(
            0, 1
        )  # [p histories b s]
        share = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1e-300)
        parts = [flatten_rows(np.log1p(counts)), (share[:, 0] * share[:, 1]).sum(axis=1)]
        if query is not None:
            bucket = assign_buckets(query, column)
            same = counts[np.arange(pairs), :, bucket]  # [p histories s]
            own = np.log((same + LEAST_COUNT) / (counts.sum(axis=2) + LEAST_TOTAL))
            parts += [bucket[:, None], flatten_rows(np.log1p(same)), flatten_rows(own)]
        return parts


# Sums just after the last event of a history, their decay since then, the values of that event, and whether those of
# all events are equal: [p s v], [p s], [p v] and [p v], arrays of numpy or tensors.
FoundSums = tuple[Any, Any, Any, Any]


def summarise_numbers(
    xp: Any,
    found: Sequence[FoundSums],
    center: Any,
    unit: Any,
    z: Float64[np.ndarray, "p c"] | None = None,
) -> Any:
    """Return the features of the numeric columns of each pair, in the order of `ColumnFeatures.units`.

    Args:
        xp: The module of the arrays, numpy or torch.
        found: Sums of 1, z and z^2, for each of `HISTORIES`.
        center: Mean of each column in training.
        unit: Deviation of each column in training.
        z: Standardised columns of the queries, if they carry some.
    """
    c, histories, differences, means, lasts = len(center), [], [], [], []
    for running, decay, latest, same in found:
        count, total, square = running[..., :1], running[..., 1 : 1 + c], running[..., 1 + c :]
        mean = xp.where(
            count > 0, total / xp.clip(count, 1e-300, None), 0.0
        )  # [p s c], 0 is the training mean
        last = xp.where(count[:, -1] > 0, latest[:, 1 : 1 + c], 0.0)
        # exactly, so that their difference is 0 and no rounding error
        mean = xp.where(same[:, None, 1 : 1 + c], last[:, None], mean)
        # shrunk to the variance of training by one event, so that a single event has a spread
        variance = xp.clip(square - total * mean, 0.0, None)[:, -1]
        spread = xp.sqrt((variance + 1) / (count[:, -1] + 1))
        amount = (total * unit + count * center) * decay[..., None]
        means.append(mean)
        lasts.append(last)
        own = [
            mean * unit + center,
            xp.sign(amount) * xp.log1p(xp.abs(amount)),
            (last * unit + center)[:, None],
            ((last - mean[:, -1]) * unit)[:, None],
            (spread * unit)[:, None],
        ]
        histories.append(xp.concatenate(own, axis=1))
        if z is not None:
            gaps = xp.concatenate([z[:, None] - mean, (z - last)[:, None]], axis=1) * unit
            differences.append(xp.concatenate([gaps, ((z - mean[:, -1]) / spread)[:, None]], axis=1))
    sent, received, _ = means
    between = xp.concatenate([sent - received, (lasts[0] - received[:, -1])[:, None]], axis=1) * unit
    parts = [*histories, between]
    if z is not None:
        parts += [(z * unit + center)[:, None], *differences]
    features = xp.concatenate(parts, axis=1)  # [p features c]
    return flatten_rows(xp.swapaxes(features, 1, 2))


def center_and_unit(
    columns: tuple[NumericColumn, ...],
) -> tuple[Float64[np.ndarray, "c"], Float64[np.ndarray, "c"]]:
    """Return mean and deviation of these columns in training."""
    return np.array([column.mean for column in columns]), np.array([column.deviation for column in columns])


def standardise(values: EventRows | ColumnValues, request: ColumnFeatures) -> Float64[np.ndarray, "p c"]:
    """Return the numeric columns of the request minus their mean in training, in deviations of training."""
    chosen = request.columns.numeric
    center, unit = center_and_unit(chosen)
    return (values.read_numbers([column.index for column in chosen]) - center) / unit


def assign_buckets(values: EventRows | ColumnValues, column: TypeColumn) -> Int64[np.ndarray, "p"]:
    """Return the rank of each value among the frequent ones; rare and unknown values share the last bucket."""
    code = values.read_codes(column.index)
    largest = max(max(column.codes), int(code.max()) if len(code) else 0)
    bucket = np.full(largest + 1, len(column.codes), np.int64)
    bucket[list(column.codes)] = np.arange(len(column.codes))
    return np.where(code >= 0, bucket[np.maximum(code, 0)], len(column.codes))
