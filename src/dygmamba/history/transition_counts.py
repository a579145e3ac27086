"""Transitions between destinations (`history/transitions.py`), looked up for any two nodes on the model's device.

Legend: l lags, s scales, q queries.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.history.block_lists import EventRows
from dygmamba.history.device_lists import BlockLookup, Lookup, SortedLists, count_before
from dygmamba.history.transitions import TransitionScales, TransitionTable, cell_key


@dataclass(frozen=True, slots=True)
class TransitionLookup(TransitionScales):
    """Request for a table of transitions in which any two nodes can be looked up."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    precision: ClassVar[type[np.floating]] = np.float32

    def prepare(self, index: Any) -> Any:
        if index.is_growing:
            return TransitionCountTable.from_transitions(index.table(TransitionTable, self))
        return index.move_once(self, lambda: TransitionCountTable.build(index.list_rows(), self))

    @property
    def width(self) -> int:
        """Number of numbers of a pair: how often, which share and how often in reverse, by lag and scale."""
        return 3 * self.lags * len(self.scales)


@dataclass(frozen=True, slots=True)
class TransitionCountTable:
    """Decayed transitions between any two nodes, and the last destinations of any source."""

    lags: int
    sources: Lookup
    followed: Lookup
    left: Lookup

    @staticmethod
    def build(rows: EventRows, request: TransitionLookup) -> "TransitionCountTable":
        """Count the transitions of events in time order, to be looked up on any device."""
        table, instant = TransitionTable(request), torch.from_numpy(np.unique(rows.time))
        table.append_rows(rows)
        parts = (table.sources, table.followed, table.left)
        return TransitionCountTable(table.lags, *(SortedLists.from_blocks(lists, instant) for lists in parts))

    @staticmethod
    def from_transitions(table: TransitionTable) -> "TransitionCountTable":
        """Look up in a table on the host, which events are appended to."""
        return TransitionCountTable(
            table.lags, *map(BlockLookup, (table.sources, table.followed, table.left))
        )

    def to(self, device: torch.device | str) -> "TransitionCountTable":
        parts = (self.sources, self.followed, self.left)
        return TransitionCountTable(
            self.lags, *(lists.to(device) for lists in parts if isinstance(lists, SortedLists))
        )

    def last_destinations(
        self, source: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Int64[Tensor, "*q l"]:
        """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
        last, some = self.sources.find_last(source, time)
        return torch.where(some[..., None], self.sources.read("recent", last), -1)

    def count(
        self,
        lag: Int64[Tensor, "*q"],
        origin: Int[Tensor, "*q"],
        dst: Int[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
    ) -> Float32[Tensor, "*q s"]:
        """Return T_l(w, v) strictly before each time, `lag` from 0 on; zeros if a node is -1."""
        return count_before(self.followed, cell_key(origin.long(), dst.long(), lag), time)[0]

    def count_all(
        self, lag: Int64[Tensor, "*q"], origin: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the sum of T_l(w, v) over all v strictly before each time; zeros for node -1."""
        return count_before(self.left, origin.long() * self.lags + lag, time)[0]
