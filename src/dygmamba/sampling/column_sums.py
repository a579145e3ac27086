"""Features of a pair from the numeric columns of events, looked up on the model's device.

The numbers are those of `sampling/columns.py`, in the layout of `sampling/decayed_counts.py`: one column of sorted keys
and one binary search per look-up, so that a CUDA graph can capture it.

Legend: e events, t instants, m entries, g groups, s scales, c numeric columns, v sums of them, p pairs, f features.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from dygmamba.ops.decayed_sums import build_decayed_sums, read_entries
from dygmamba.sampling.columns import (
    ColumnRequest,
    FoundSums,
    QueryColumns,
    center_and_unit,
    history_keys,
    require_column_memory,
    stack_moments,
    summarise_numbers,
)
from dygmamba.sampling.decayed_counts import KeyedTable, compute_entry_keys, find_last_entries
from dygmamba.sampling.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class ColumnSumRequest(TableRequest):
    """Request for a table of numeric columns, in which any pair can be looked up; `columns` has no types."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    columns: ColumnRequest


@runtime_checkable
class ColumnSumLookup(Protocol):
    """Column features of any pair: of a fixed set of events, or of events that are appended to."""

    def compute_features(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `ColumnRequest.names`."""
        ...


@dataclass(frozen=True, slots=True)
class SumLists:
    """Entries of all groups in the order of their keys, with the group's decayed sums just after each entry."""

    known: Int64[Tensor, "g"]  # keys of the groups, sorted
    key: Int64[Tensor, "m"]
    time: Float64[Tensor, "m"]
    running: Float64[Tensor, "m s v"]
    latest: Float64[Tensor, "m v"]

    @staticmethod
    def build(
        key: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        value: Float64[Tensor, "e v"],
        scale: Float64[Tensor, "s"],
        instant: Float64[Tensor, "t"],
    ) -> "SumLists":
        """Sum up events in time order; `instant` are the distinct times of the stream, sorted."""
        known, group = torch.unique(key, return_inverse=True)
        sums = build_decayed_sums(group, time, value, len(known), scale)
        entry = compute_entry_keys(sums.size, sums.time, instant)
        return SumLists(known, entry, sums.time, sums.running, sums.latest)

    def to(self, device: torch.device | str) -> "SumLists":
        return SumLists(*(getattr(self, name).to(device) for name in self.__slots__))

    def look_up(
        self,
        first: Int64[Tensor, "p"],
        rank: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        scale: Float64[Tensor, "s"],
    ) -> FoundSums:
        """Return, strictly before each time, the sums just after the last entry, their decay since, and its values.

        All are 0 for a group without an earlier entry.
        """
        if not len(self.key):
            s, v = self.running.shape[1:]
            return time.new_zeros(len(time), s, v), time.new_zeros(len(time), s), time.new_zeros(len(time), v)
        last, found = find_last_entries(self.key, first, rank)
        return read_entries(self.time, self.running, self.latest, scale, last, found, time)


@dataclass(frozen=True, slots=True)
class ColumnSumTable(KeyedTable):
    """Decayed sums of the numeric columns of a stream (or of its training events), by history."""

    num_nodes: int
    scale: Float64[Tensor, "s"]
    instant: Float64[Tensor, "t"]
    center: Float64[Tensor, "c"]
    unit: Float64[Tensor, "c"]
    histories: tuple[SumLists, ...]

    @staticmethod
    def build(
        ends: tuple[Int64[Tensor, "e"], Int64[Tensor, "e"]],
        time: Float64[Tensor, "e"],
        columns: QueryColumns,
        num_nodes: int,
        request: ColumnSumRequest,
    ) -> "ColumnSumTable":
        """Sum up the columns of events in time order; raise MemoryBudgetError if the sums do not fit into memory."""
        scales, numeric = request.columns.scales, request.columns.columns.numeric
        require_column_memory(request.columns, len(time), "none with `numeric_columns=0`")
        scale, instant = torch.tensor(scales, dtype=torch.float64), torch.unique(time)
        value = stack_moments(columns, request.columns)
        keys = history_keys(*ends, num_nodes)
        histories = tuple(SumLists.build(key, time, value, scale, instant) for key in keys)
        return ColumnSumTable(num_nodes, scale, instant, *center_and_unit(numeric), histories)

    def to(self, device: torch.device | str) -> "ColumnSumTable":
        scale, instant = self.scale.to(device), self.instant.to(device)
        center, unit = self.center.to(device), self.unit.to(device)
        histories = tuple(history.to(device) for history in self.histories)
        return ColumnSumTable(self.num_nodes, scale, instant, center, unit, histories)

    def compute_features(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return all features of each pair, in the order of `ColumnRequest.names`."""
        rank, given = self._rank(time), (src >= 0) & (dst >= 0)
        found = [
            history.look_up(self._find_first(key, given, history.known), rank, time, self.scale)
            for history, key in zip(self.histories, history_keys(src, dst, self.num_nodes), strict=True)
        ]
        return summarise_numbers(found, self.center, self.unit).float()
