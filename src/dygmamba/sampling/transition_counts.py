"""Transitions between destinations, looked up for any two nodes on the model's device.

The numbers are those of `ops/transitions`, in the layout of `sampling/decayed_counts.py`: one column of sorted keys for
all groups and one binary search per look-up, so that a CUDA graph can capture it. The table covers a fixed set of
events; `Transitions` is the form that events are appended to.

Legend: e events, t instants, m entries, g cells (l, w, v) that occurred, l lags, s scales, q queries.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.ops.transitions import create_histories, extend_histories
from dygmamba.sampling.decayed_counts import (
    DecayedCountLists,
    KeyedTable,
    compute_entry_keys,
    find_last_entries,
)
from dygmamba.sampling.transitions import TransitionScales


@dataclass(frozen=True, slots=True)
class TransitionCountRequest(TransitionScales):
    """Request for a table of transitions in which any two nodes can be looked up."""

    on_host: ClassVar[bool] = False  # the table is on the device of the stream

    @property
    def width(self) -> int:
        """Number of numbers of a pair: how often, which share and how often in reverse, by lag and scale."""
        return 3 * self.lags * len(self.scales)


@runtime_checkable
class TransitionLookup(Protocol):
    """Transitions between any two nodes: of a fixed set of events, or of events that are appended to."""

    @property
    def lags(self) -> int: ...

    def last_destinations(
        self, source: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Int64[Tensor, "*q l"]:
        """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
        ...

    def count(
        self,
        lag: Int64[Tensor, "*q"],
        origin: Int[Tensor, "*q"],
        dst: Int[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
    ) -> Float32[Tensor, "*q s"]:
        """Return T_l(w, v) strictly before each time, `lag` from 0 on; zeros if a node is -1."""
        ...

    def count_all(
        self, lag: Int64[Tensor, "*q"], origin: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the sum of T_l(w, v) over all v strictly before each time; zeros for node -1."""
        ...


@dataclass(frozen=True, slots=True)
class TransitionCountTable(KeyedTable):
    """Decayed transitions of a stream (or of its training events), and the last destinations of its sources."""

    num_nodes: int
    lags: int
    scale: Float64[Tensor, "s"]
    instant: Float64[Tensor, "t"]
    entry: Int64[Tensor, "e"]  # sorted keys (source, instant), one for each event
    recent: Int64[Tensor, "e l"]  # last destinations of the source up to and including each of these events
    known: Int64[Tensor, "g"]  # keys of the cells (l, w, v), sorted
    followed: DecayedCountLists
    left: DecayedCountLists

    @staticmethod
    def build(
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        request: TransitionCountRequest,
    ) -> "TransitionCountTable":
        """Count the transitions of events in time order."""
        lags, scale, instant = request.lags, torch.tensor(request.scales).double(), torch.unique(time)
        empty = create_histories(torch.bincount(src, minlength=num_nodes), lags)
        histories, previous = extend_histories(empty, src, dst, time)
        entry = compute_entry_keys(histories.size, histories.time, instant)  # each block is full
        some = previous >= 0
        event, lag = some.nonzero().unbind(1)
        origin, when = previous[some], time[event]
        known, cell = torch.unique((lag * num_nodes + origin) * num_nodes + dst[event], return_inverse=True)
        followed = DecayedCountLists.build(cell, when, len(known), scale, instant)
        left = DecayedCountLists.build(lag * num_nodes + origin, when, lags * num_nodes, scale, instant)
        return TransitionCountTable(
            num_nodes, lags, scale, instant, entry, histories.recent, known, followed, left
        )

    def to(self, device: torch.device | str) -> "TransitionCountTable":
        return TransitionCountTable(
            self.num_nodes,
            self.lags,
            self.scale.to(device),
            self.instant.to(device),
            self.entry.to(device),
            self.recent.to(device),
            self.known.to(device),
            self.followed.to(device),
            self.left.to(device),
        )

    def last_destinations(
        self, source: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Int64[Tensor, "*q l"]:
        """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
        if not len(self.entry):
            return torch.full((*source.shape, self.lags), -1, device=source.device)
        last, some = find_last_entries(self.entry, source * self._stride, self._rank(time))
        return torch.where(some[..., None], self.recent[last], -1)

    def count(
        self,
        lag: Int64[Tensor, "*q"],
        origin: Int[Tensor, "*q"],
        dst: Int[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
    ) -> Float32[Tensor, "*q s"]:
        """Return T_l(w, v) strictly before each time, `lag` from 0 on; zeros if a node is -1."""
        key = (lag * self.num_nodes + origin) * self.num_nodes + dst
        first = self._find_first(key, (origin >= 0) & (dst >= 0), self.known)
        return self.followed.before(first, self._rank(time), time, self.scale)

    def count_all(
        self, lag: Int64[Tensor, "*q"], origin: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the sum of T_l(w, v) over all v strictly before each time; zeros for node -1."""
        first = torch.where(origin >= 0, (lag * self.num_nodes + origin) * self._stride, -1)
        return self.left.before(first, self._rank(time), time, self.scale)
