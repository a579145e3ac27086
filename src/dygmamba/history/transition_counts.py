"""Transitions between destinations (`history/transitions.py`), looked up for any two nodes on the model's device.

Legend: l lags, s scales, q queries, p pairs, k destinations of a window, f features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.history.associations import summarise_associations
from dygmamba.history.block_lists import EventRows, directed_key
from dygmamba.history.device_lists import BlockLookup, Lookup, SortedLists, count_before
from dygmamba.history.transitions import TransitionScales, TransitionTable, cell_key


@dataclass(frozen=True, slots=True)
class TransitionLookup(TransitionScales):
    """Request for a table of transitions in which any two nodes can be looked up."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream
    precision: ClassVar[type[np.floating]] = np.float32

    def prepare(self, index: Any) -> Any:
        if index.is_growing:
            return TransitionCountTable.from_transitions(index.table(TransitionTable, self), self)
        return index.move_once(self, lambda: TransitionCountTable.build(index.list_rows(), self))

    @property
    def width(self) -> int:
        """Number of numbers of a pair: how often, which share and how often in reverse, by lag and scale."""
        return 3 * self.lags * len(self.scales)

    @property
    def association_width(self) -> int:
        """Number of association features of a pair."""
        return len(self.association_names)


@dataclass(frozen=True, slots=True)
class TransitionCountTable:
    """Decayed transitions between any two nodes, the last destinations of any source, and their associations.

    `lists` are those of `TransitionTable.lists`.
    """

    request: TransitionLookup
    lists: Mapping[str, Lookup]

    @staticmethod
    def build(rows: EventRows, request: TransitionLookup) -> "TransitionCountTable":
        """Count the transitions of events in time order, to be looked up on any device."""
        table, instant = TransitionTable(request), torch.from_numpy(np.unique(rows.time))
        table.append_rows(rows)
        lists = {name: SortedLists.from_blocks(own, instant) for name, own in table.lists.items()}
        return TransitionCountTable(request, lists)

    @staticmethod
    def from_transitions(table: TransitionTable, request: TransitionLookup) -> "TransitionCountTable":
        """Look up in a table on the host, which events are appended to."""
        return TransitionCountTable(request, {name: BlockLookup(own) for name, own in table.lists.items()})

    def to(self, device: torch.device | str) -> "TransitionCountTable":
        lists = {name: own.to(device) for name, own in self.lists.items() if isinstance(own, SortedLists)}
        return replace(self, lists=lists)

    def last_destinations(
        self, source: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Int64[Tensor, "*q l"]:
        """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
        last, some = self.lists["sources"].find_last(source, time)
        recent = self.lists["sources"].read("recent", last)[..., : self.request.lags]
        return torch.where(some[..., None], recent, -1)

    def count(
        self,
        lag: Int64[Tensor, "*q"],
        origin: Int[Tensor, "*q"],
        dst: Int[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
    ) -> Float32[Tensor, "*q s"]:
        """Return T_l(w, v) strictly before each time, `lag` from 0 on; zeros if a node is -1."""
        return count_before(self.lists["followed"], cell_key(origin.long(), dst.long(), lag), time)[0]

    def count_all(
        self, lag: Int64[Tensor, "*q"], origin: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the sum of T_l(w, v) over all v strictly before each time; zeros for node -1."""
        return count_before(self.lists["left"], origin.long() * self.request.lags + lag, time)[0]

    def compute_associations(
        self, src: Int64[Tensor, "p"], dst: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float32[Tensor, "p f"]:
        """Return the association features of each pair, in the order of `name_associations`."""
        sources, window = self.lists["sources"], self.request.window
        last, some = sources.find_last(src, time)
        place = torch.arange(window, device=src.device)
        some = some[:, None] & (place < sources.get_number(src, last)[:, None])  # [p k]
        origin = torch.where(some, sources.read("recent", last)[:, :window], -1)
        entry = (last[:, None] - place).clamp(min=0)  # of these destinations: entries are in time order
        age = (time[:, None] - sources.read("time", entry)) / min(self.request.scales)

        def count(name: str, key: Tensor) -> Tensor:
            when = time if key.ndim == 1 else time[:, None].expand(key.shape)
            return count_before(self.lists[name], key, when)[1]

        followers, visits = count("followers", directed_key(origin, dst[:, None])), count("visits", origin)
        counts = (followers, visits, count("visits", dst), count("events", torch.zeros_like(dst)))
        return summarise_associations(torch, counts, some, age).float()
