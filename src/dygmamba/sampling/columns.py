"""Features of a pair from the columns of events: amounts, ratings and other numbers, and event types.

For each numeric column and each history (events that the source sent, that the destination received, between the two)
there are the decayed mean and sum, the last value, its deviation from the mean, and the spread. For each categorical
column there are decayed counts per frequent value, and of all other values together. Further features compare what the
source sent with what the destination received. Only events strictly earlier than
the query are read: every look-up takes the query time.

A query may carry columns of its own (`QueryColumns`): what is known of the event in question, such as its amount. Its
features then say how the value differs from those of each history, and how often its type occurred there.

Legend: e events, p pairs, r rows of query columns, s scales, c numeric columns, v sums of them, b buckets of types,
f features per pair.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float32, Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.columns import ColumnFacts, NumericColumn, TypeColumn
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.ops.decayed_counts import count_before
from dygmamba.ops.decayed_sums import DecayedSums, build_decayed_sums, look_up_before
from dygmamba.ops.hash_map import HashMap
from dygmamba.sampling.counts import CountGroups, MemoryCountGroups, pair_key, scale_label
from dygmamba.sampling.table_request import FeatureUnit, TableRequest

HISTORIES = ("that the source sent", "that the destination received", "between them")
LEAST_COUNT, LEAST_TOTAL = 1e-3, 1e-2  # added to a count and to its total, so that a share is finite
OTHER_VALUES = "any other value"


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Columns that queries carry: `row` is the row of each query in the numbers and codes.

    The columns are those of the stream's features, in the same order.
    """

    row: Int64[Tensor, "p"]
    edge: Float32[Tensor, "r de"]
    codes: Int32[Tensor, "r dc"] | None = None

    @staticmethod
    def of_events(features: FeatureTable, events: Int64[Tensor, "p"]) -> "QueryColumns | None":
        """Return queries that carry the columns of these events; None if the stream has no columns."""
        return QueryColumns(events, features.edge, features.codes) if features.has_columns else None

    @property
    def values(self) -> list[Tensor]:
        """Numbers and codes of each query."""
        tables = [table for table in (self.edge, self.codes) if table is not None]
        return [table[self.row.to(table.device)].cpu() for table in tables]

    def select(self, chosen: Int64[Tensor, "k"]) -> "QueryColumns":
        return replace(self, row=self.row[chosen])

    def to(self, device: torch.device | str) -> "QueryColumns":
        """Move the row numbers; the columns stay where they are."""
        return replace(self, row=self.row.to(device))


@dataclass(frozen=True, slots=True)
class ColumnRequest(TableRequest):
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

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence."""
        return 1

    @property
    def names(self) -> list[str]:
        """Description of each feature, in the order of the columns.

        A checkpoint of boosted trees holds a checksum of these names: rewording one makes old runs unreadable.
        """
        return [feature.name for feature in self.units]

    @property
    def units(self) -> list[FeatureUnit]:
        """Name and unit of each feature, in the order of the columns."""
        return [
            *(feature for column in self.columns.numeric for feature in self._numeric_units(column)),
            *(FeatureUnit(name) for column in self.columns.types for name in self._type_names(column)),
        ]

    def _numeric_units(self, column: NumericColumn) -> list[FeatureUnit]:
        name, fading = column.name, [scale_label(scale) for scale in self.scales]

        def value(what: str) -> FeatureUnit:
            return FeatureUnit(what, column.mean, column.deviation)

        def difference(what: str) -> FeatureUnit:
            return FeatureUnit(what, 0.0, column.deviation)

        units = []
        for history in HISTORIES:
            units += [value(f"mean {name} of the events {history}, {scale}") for scale in fading]
            # sums are logarithms
            units += [FeatureUnit(f"sum of {name} over the events {history}, {scale}") for scale in fading]
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
                units += [FeatureUnit(f"{own} in deviations from the mean of the events {history}")]
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
    found = [request.columns for request in requests if isinstance(request, ColumnRequest) and request.query]
    numeric = {column.index: column for columns in found for column in columns.numeric}
    types = {column.index: column for columns in found for column in columns.types}
    return ColumnFacts(tuple(numeric.values()), tuple(types.values()))


def history_keys(src: Tensor, dst: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the key of each history, in the order of `HISTORIES`."""
    return src, dst, pair_key(src, dst, num_nodes)


class NumericHistory:
    """Decayed sums of numeric columns by key; each event has the values 1, z and z^2, with z standardised."""

    def __init__(
        self,
        key: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        value: Float64[Tensor, "e c"],
        scale: Float64[Tensor, "s"],
    ) -> None:
        self._slots = HashMap(max(16, len(key)))
        slot = torch.from_numpy(self._slots.insert(key.numpy()))
        self._sums = build_decayed_sums(slot, time, value, len(self._slots), scale)

    @property
    def sums(self) -> DecayedSums:
        return self._sums

    def look_up(
        self, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> tuple[Float64[Tensor, "p s c"], Float64[Tensor, "p s"], Float64[Tensor, "p c"]]:
        """Return, strictly before each time, the sums just after the last event, its decay since, and its values.

        Sums and values are 0 without an event.
        """
        return look_up_before(self.sums, self.group(key), time)

    def group(self, key: Int64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Return the group of each key, -1 for unknown keys."""
        return torch.from_numpy(self._slots.slots(key.numpy()))


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """Columns over the events of a stream (or over its training events); tensors are on the CPU."""

    request: ColumnRequest
    num_nodes: int
    numeric: tuple[NumericHistory, ...] = field(repr=False)  # by history, if there are numeric columns
    types: tuple[tuple[CountGroups, ...], ...] = field(repr=False)  # by categorical column and history

    @staticmethod
    def build(
        ends: tuple[Int64[Tensor, "e"], Int64[Tensor, "e"]],
        time: Float64[Tensor, "e"],
        columns: QueryColumns,
        num_nodes: int,
        request: ColumnRequest,
    ) -> "ColumnTable":
        """Summarise events in time order; raise MemoryBudgetError if the sums do not fit into memory."""
        chosen = request.columns
        require_column_memory(request, len(time), "none with `numeric_columns=0` and `event_types=0`")
        scale = torch.tensor(request.scales, dtype=torch.float64)
        keys = history_keys(*ends, num_nodes)
        numeric: tuple[NumericHistory, ...] = ()
        if chosen.numeric:
            value = stack_moments(columns, request)
            numeric = tuple(NumericHistory(key, time, value, scale) for key in keys)
        types = tuple(
            tuple(MemoryCountGroups(key, time, scale) for key in type_keys(keys, columns, column))
            for column in chosen.types
        )
        return ColumnTable(request, num_nodes, numeric, types)

    def compute_features(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        query: QueryColumns | None = None,
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `ColumnRequest.names`."""
        if self.request.query and query is None:
            columns = self.request.columns
            names = ", ".join(column.name for column in (*columns.numeric, *columns.types))
            raise ConfigError(
                f"this model scores events with their columns; give {names} with each pair, or train with "
                "`query_columns=false`",
                code="query-columns-missing",
            )
        own = query if self.request.query else None
        keys = history_keys(src, dst, self.num_nodes)
        parts = [
            *self._numeric_features(keys, time, own),
            *(
                part
                for column, groups in zip(self.request.columns.types, self.types, strict=True)
                for part in self._type_features(column, groups, keys, time, own)
            ),
        ]
        return torch.cat(parts, dim=1).float()

    def _numeric_features(
        self, keys: tuple[Tensor, ...], time: Tensor, query: QueryColumns | None
    ) -> list[Tensor]:
        columns = self.request.columns.numeric
        if not columns:
            return []
        found = [history.look_up(key, time) for history, key in zip(self.numeric, keys, strict=True)]
        z = None if query is None else standardise(query, self.request)
        return [summarise_numbers(found, *center_and_unit(columns), z)]

    def _type_features(
        self,
        column: TypeColumn,
        groups: tuple[CountGroups, ...],
        keys: tuple[Tensor, ...],
        time: Tensor,
        query: QueryColumns | None,
    ) -> list[Tensor]:
        buckets = len(column.codes) + 1
        every = torch.arange(buckets)
        counts = torch.stack(
            [
                count_before(
                    own.lists,
                    own.group((key[:, None] * buckets + every).flatten()),
                    time.repeat_interleave(buckets),
                ).view(len(key), buckets, -1)
                for own, key in zip(groups, keys, strict=True)
            ],
            dim=1,
        )  # [p histories b s]
        share = counts / counts.sum(dim=2, keepdim=True).clamp(min=1e-300)
        parts = [torch.log1p(counts).flatten(1), (share[:, 0] * share[:, 1]).sum(dim=1)]
        if query is not None:
            bucket = assign_buckets(query, column)
            index = bucket[:, None, None, None].expand(-1, counts.shape[1], 1, counts.shape[3])
            same = counts.gather(2, index)[:, :, 0]  # [p histories s]
            own = torch.log((same + LEAST_COUNT) / (counts.sum(dim=2) + LEAST_TOTAL))
            parts += [bucket[:, None].double(), torch.log1p(same).flatten(1), own.flatten(1)]
        return parts


def require_column_memory(request: ColumnRequest, events: int, hint: str) -> None:
    """Raise MemoryBudgetError if a table of these columns does not fit into memory; `hint` says how to do without."""
    chosen, scales = request.columns, len(request.scales)
    width = 1 + 2 * len(chosen.numeric) if chosen.numeric else 0
    per_event = 8 * (width * (scales + 1) + len(chosen.types) * (scales + 2)) + 40
    require_memory(len(HISTORIES) * per_event * events, f"the table of columns of {events:,} events ({hint})")


# Sums just after the last event of a history, their decay since then, and the values of that event.
FoundSums = tuple[Float64[Tensor, "p s v"], Float64[Tensor, "p s"], Float64[Tensor, "p v"]]


def summarise_numbers(
    found: list[FoundSums],
    center: Float64[Tensor, "c"],
    unit: Float64[Tensor, "c"],
    z: Float64[Tensor, "p c"] | None = None,
) -> Float64[Tensor, "p f"]:
    """Return the features of the numeric columns of each pair, in the order of `ColumnRequest.names`.

    Args:
        found: Sums of 1, z and z^2, for each of `HISTORIES`.
        center: Mean of each column in training.
        unit: Deviation of each column in training.
        z: Standardised columns of the queries, if they carry some.
    """
    c, histories, differences, means, lasts = len(center), [], [], [], []
    for running, decay, latest in found:
        count, total, square = running[..., :1], running[..., 1 : 1 + c], running[..., 1 + c :]
        some = count[:, -1] > 0
        mean = torch.where(count > 0, total / count.clamp(min=1e-300), 0)  # [p s c], 0 is the training mean
        last = torch.where(some, latest[:, 1 : 1 + c], 0)
        # shrunk to the variance of training by one event, so that a single event has a spread
        variance = (square - total * mean).clamp(min=0)[:, -1]
        spread = ((variance + 1) / (count[:, -1] + 1)).sqrt()
        amount = (total * unit + count * center) * decay[..., None]
        means.append(mean)
        lasts.append(last)
        own = [
            mean * unit + center,
            amount.sign() * torch.log1p(amount.abs()),
            (last * unit + center)[:, None],
            ((last - mean[:, -1]) * unit)[:, None],
            (spread * unit)[:, None],
        ]
        histories.append(torch.cat(own, dim=1))
        if z is not None:
            gaps = torch.cat([z[:, None] - mean, (z - last)[:, None]], dim=1) * unit
            differences.append(torch.cat([gaps, ((z - mean[:, -1]) / spread)[:, None]], dim=1))
    sent, received, _ = means
    between = torch.cat([sent - received, (lasts[0] - received[:, -1])[:, None]], dim=1) * unit
    parts = [*histories, between]
    if z is not None:
        parts += [(z * unit + center)[:, None], *differences]
    return torch.cat(parts, dim=1).transpose(1, 2).flatten(1)  # from [p features c]


def center_and_unit(columns: tuple[NumericColumn, ...]) -> tuple[Float64[Tensor, "c"], Float64[Tensor, "c"]]:
    """Return mean and deviation of these columns in training."""
    center = torch.tensor([column.mean for column in columns], dtype=torch.float64)
    return center, torch.tensor([column.deviation for column in columns], dtype=torch.float64)


def stack_moments(columns: QueryColumns, request: ColumnRequest) -> Float64[Tensor, "p v"]:
    """Return 1, z and z^2 of each query, with the standardised numeric columns z."""
    z = standardise(columns, request)
    return torch.cat([torch.ones_like(z[:, :1]), z, z**2], dim=1)


def type_keys(
    keys: tuple[Int64[Tensor, "p"], ...], columns: QueryColumns, column: TypeColumn
) -> tuple[Int64[Tensor, "p"], ...]:
    """Return the keys of histories and event types together."""
    bucket = assign_buckets(columns, column)
    return tuple(key * (len(column.codes) + 1) + bucket for key in keys)


def standardise(columns: QueryColumns, request: ColumnRequest) -> Float64[Tensor, "p c"]:
    """Return the numeric columns of the request minus their mean in training, in deviations of training."""
    chosen = request.columns.numeric
    edge = columns.edge
    index = torch.tensor([column.index for column in chosen], device=edge.device)
    center, unit = center_and_unit(chosen)
    return (edge[columns.row.to(edge.device)[:, None], index].cpu().double() - center) / unit


def assign_buckets(columns: QueryColumns, column: TypeColumn) -> Int64[Tensor, "p"]:
    """Return the rank of each value among the frequent ones; rare and unknown values share the last bucket."""
    assert columns.codes is not None
    code = columns.codes[columns.row.to(columns.codes.device), column.index].cpu().long()
    largest = max(max(column.codes), int(code.max()) if len(code) else 0)
    bucket = torch.full((largest + 1,), len(column.codes), dtype=torch.int64)
    bucket[torch.tensor(column.codes)] = torch.arange(len(column.codes))
    return torch.where(code >= 0, bucket[code.clamp(min=0)], len(column.codes))
