"""Features of a pair from the node features of its ends, as they were known strictly before the query.

For each numeric column there are the values of source and destination, their difference, and whether each is known; for
each categorical column which of the frequent values either end has, and whether both have the same one. The age of the
row that counts is a feature of each end.

Legend: p pairs, f features per pair, c numeric columns, b buckets of a categorical column.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.categories import MISSING_VALUE
from dygmamba.data.events.column_facts import ColumnFacts, TypeColumn
from dygmamba.data.events.node_rows import STATIC_TIME, NodeRows
from dygmamba.history.table_request import NODE_COLUMN, FeatureGroup, FeatureRequest, FeatureUnit

ENDS = ("source", "destination")
NO_AGE = -1.0  # age of a row that is known from the start, and of no row


@dataclass(frozen=True, slots=True)
class NodeFeatures(FeatureRequest):
    """Request for the node features of both ends of each pair.

    Attributes:
        columns: The columns to read, with their statistics in training.
    """

    columns: ColumnFacts

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfigError("a request for node features needs columns; got none", code="invalid-request")

    def prepare(self, index: Any) -> Any:
        """Return the rows of node features of the stream, which events do not change."""
        return index.store.features.node_rows

    def compute(self, index: Any, pairs: Any, src: Any, dst: Any, time: Any) -> Any:
        rows = self.prepare(index)
        if rows is None:
            names = ", ".join(column.name for column in (*self.columns.numeric, *self.columns.types))
            raise EventError(
                f"this model reads the node features {names}, and the events have none; import them with the same "
                "`node_features`",
                code="node-features-missing",
            )
        return self.compute_features(rows, *map(torch.from_numpy, (src, dst, time))).numpy()

    @property
    def units(self) -> list[FeatureUnit]:
        """Name, column and scale of each feature, in the order of the columns."""
        age = FeatureGroup(NODE_COLUMN, "age of the features")
        units = [FeatureUnit(f"age of the features of the {end}", age) for end in ENDS]  # a logarithm
        for column in self.columns.numeric:
            name, group, deviation = column.name, FeatureGroup(NODE_COLUMN, column.name), column.deviation
            units += [FeatureUnit(f"{name} of the {end}", group, column.mean, deviation) for end in ENDS]
            units += [
                FeatureUnit(f"{name} of the source minus that of the destination", group, 0.0, deviation)
            ]
            units += [FeatureUnit(f"{name} of the {end} is known", group) for end in ENDS]
        for column in self.columns.types:
            group = FeatureGroup(NODE_COLUMN, column.name)
            units += [FeatureUnit(name, group) for name in _list_type_names(column)]
        return units

    def compute_features(
        self,
        rows: NodeRows,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `units`."""
        found = [rows.find_last_before(node, time) for node in (src, dst)]
        parts = [_compute_age(rows, row, time)[:, None] for row in found]
        for column in self.columns.numeric:
            known = [_is_known(rows, row, column.index) for row in found]
            mean = torch.tensor(column.mean, dtype=torch.float64)
            value = [
                torch.where(own, rows.value[row.clamp(min=0), column.index].double(), mean)
                if len(rows)
                else mean.expand(len(row))
                for row, own in zip(found, known, strict=True)
            ]
            difference = torch.where(known[0] & known[1], value[0] - value[1], 0.0)
            parts += [torch.stack([*value, difference, *(own.double() for own in known)], dim=1)]
        for column in self.columns.types:
            frequent, _ = list_frequent_values(column)
            missing = get_missing_code(rows, column)
            code = [_find_codes(rows, row, column.index, missing) for row in found]
            parts += [_one_hot(own, frequent, missing) for own in code]
            same = (code[0] == code[1]) & (code[0] >= 0) & (code[0] != missing)
            parts += [same.double()[:, None]]
        return torch.cat(parts, dim=1).float()


def _list_type_names(column: TypeColumn) -> list[str]:
    """Return the names of the features of a categorical column."""
    words = [*(repr(value) for value in list_frequent_values(column)[1]), "any other value", "missing"]
    names = [f"{column.name} of the {end} is {word}" for end in ENDS for word in words]
    return [*names, f"{column.name} of source and destination is the same"]


def list_frequent_values(column: TypeColumn) -> tuple[list[int], list[str]]:
    """Return codes and values of a categorical column without the missing value, the most frequent first."""
    pairs = [pair for pair in zip(column.codes, column.values, strict=True) if pair[1] != MISSING_VALUE]
    return [code for code, _ in pairs], [value for _, value in pairs]


def get_missing_code(rows: NodeRows, column: TypeColumn) -> int:
    """Return the code of the missing value, -1 if no row has one."""
    values = rows.categories[column.index].values
    return values.index(MISSING_VALUE) if MISSING_VALUE in values else -1


def _compute_age(rows: NodeRows, row: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
    """Return log(1 + age) of each row."""
    if not len(rows):
        return torch.full_like(time, NO_AGE)
    since = rows.time[row.clamp(min=0)]
    is_dated = (row >= 0) & (since != STATIC_TIME)
    return torch.where(is_dated, torch.log1p(torch.where(is_dated, time - since, 0.0)), NO_AGE)


def _is_known(rows: NodeRows, row: Int64[Tensor, "p"], index: int) -> Bool[Tensor, "p"]:
    return (row >= 0) & rows.known[row.clamp(min=0), index] if len(rows) else row >= 0


def _find_codes(rows: NodeRows, row: Int64[Tensor, "p"], index: int, missing: int) -> Int64[Tensor, "p"]:
    """Return the category code of each row; `missing` where row is -1."""
    if not len(rows):
        return torch.full_like(row, missing)
    return torch.where(row >= 0, rows.codes[row.clamp(min=0), index].long(), missing)


def _one_hot(code: Int64[Tensor, "p"], frequent: list[int], missing: int) -> Float64[Tensor, "p b"]:
    is_value = code[:, None] == torch.tensor(frequent, dtype=torch.int64)
    is_missing = (code == missing)[:, None]
    is_other = ~is_value.any(dim=1, keepdim=True) & ~is_missing
    return torch.cat([is_value, is_other, is_missing], dim=1).double()
