"""Features of a pair from the numeric columns of events (`history/columns.py`), looked up on the model's device.

Legend: c numeric columns, p pairs, f features.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.history.block_lists import EventRows
from dygmamba.history.columns import (
    ColumnFeatures,
    ColumnTable,
    center_and_unit,
    history_keys,
    summarise_numbers,
)
from dygmamba.history.device_lists import BlockLookup, Lookup, SortedLists, sum_before
from dygmamba.history.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class ColumnLookup(TableRequest):
    """Request for a table of numeric columns, in which any pair can be looked up; `columns` has no types."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    columns: ColumnFeatures

    def prepare(self, index: Any) -> Any:
        if index.is_growing:
            return ColumnSumTable.from_columns(index.table(ColumnTable, self.columns))
        return index.move_once(self, lambda: ColumnSumTable.build(index.list_rows(), self))


@dataclass(frozen=True, slots=True)
class ColumnSumTable:
    """Decayed sums of numeric columns of any pair, by history."""

    center: Float64[Tensor, "c"]
    unit: Float64[Tensor, "c"]
    histories: tuple[Lookup, ...]

    @staticmethod
    def build(rows: EventRows, request: ColumnLookup) -> "ColumnSumTable":
        """Sum up the columns of events in time order, to be looked up on any device.

        Raises:
            MemoryBudgetError: The sums do not fit into memory.
        """
        table, instant = ColumnTable(request.columns), torch.from_numpy(np.unique(rows.time))
        table.require_memory(len(rows.src))
        table.append_rows(rows)
        found = ColumnSumTable.from_columns(table)
        return replace(
            found, histories=tuple(SortedLists.from_blocks(lists, instant) for lists in table.numeric)
        )

    @staticmethod
    def from_columns(table: ColumnTable) -> "ColumnSumTable":
        """Look up in a table on the host, which events are appended to."""
        center, unit = map(torch.from_numpy, center_and_unit(table.request.columns.numeric))
        return ColumnSumTable(center, unit, tuple(map(BlockLookup, table.numeric)))

    def to(self, device: torch.device | str) -> "ColumnSumTable":
        histories = tuple(lists.to(device) for lists in self.histories if isinstance(lists, SortedLists))
        return ColumnSumTable(self.center.to(device), self.unit.to(device), histories)

    def compute_features(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `ColumnFeatures.units`; a node may be -1."""
        given = (src >= 0) & (dst >= 0)
        found = [
            sum_before(lists, torch.where(given, key, -1), time)
            for lists, key in zip(self.histories, history_keys(src, dst, torch), strict=True)
        ]
        return summarise_numbers(torch, found, self.center, self.unit).float()
