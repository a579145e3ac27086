"""Transitions between destinations: decayed counts of events on v exactly l events after an event on w, exact.

For an event (u, v, t) let w_1, ..., w_L be the last L destinations of the source u strictly before t, the last one
first. The event is then a transition of lag l from w_l to v, for each l. `Transitions` counts them over all sources:
T_l(w, v) is the sum of exp(-age / scale) over the transitions of lag l from w to v strictly before a time, and
out_l(w) the same sum over all v. In a stream of messages this is whom senders write to after they wrote to w.

Events at the same instant do not see each other: none of them is a last destination of another one. Where they are
last destinations of a later event, those of one source are taken in the order of their destinations' numbers, the
largest as the last. So the order of simultaneous events is irrelevant, and an event has at most L transitions,
whatever the size of an instant.

`SourceHistories` lists the times at which each source acted and, for each, its last L destinations up to it. The
transitions are lists of decayed counts (`ops/decayed_counts`), one for each (l, w, v) and one for each (l, w). So
appending an event appends at most L entries of each kind, and a look-up is a binary search and a decay.

Legend: n nodes, e events, m entries, l lags, q queries, s scales, k ages.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.decayed_counts import (
    DecayedCounts,
    NeighborMeetings,
    add_groups,
    append_events,
    build_decayed_counts,
    count_before,
    past_size_and_age,
    sum_neighbor_meetings,
)
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.hash_map import HashMap
from dygmamba.ops.transitions import reference

TRANSITIONS = Dispatch(reference, cpu=("cpu",))
MAX_NODES = 1 << 30  # a key has 30 bits for each node
MAX_LAGS = 7  # and 3 bits for the lag
KEYS_PER_PART = 1 << 14


@dataclass(frozen=True, slots=True)
class SourceHistories:
    """Times of the events of each source, oldest first, each source in a block that may have spare room.

    Source i has `size[i]` entries from `start[i]` on, and room for `room[i]`. `recent` are the last destinations up to
    and including each entry, the last one first; -1 where there are fewer.
    """

    start: Int64[Tensor, "n"]
    size: Int64[Tensor, "n"]
    room: Int64[Tensor, "n"]
    time: Float64[Tensor, "m"]
    recent: Int64[Tensor, "m l"]
    used: int  # entries of `time` that are part of a block


def create_histories(sizes: Int64[Tensor, "n"], lags: int) -> SourceHistories:
    """Create empty histories with room for this many events of each source."""
    m = int(sizes.sum())
    start = sizes.cumsum(0) - sizes
    time, recent = torch.zeros(m, dtype=torch.float64), torch.full((m, lags), -1)
    return SourceHistories(start, torch.zeros_like(sizes), sizes.clone(), time, recent, m)


def add_sources(histories: SourceHistories, nodes: int) -> SourceHistories:
    """Add sources without events so that there are `nodes` of them."""
    more = max(0, nodes - len(histories.start))
    start, size, room = (
        torch.cat([column, column.new_zeros(more)])
        for column in (histories.start, histories.size, histories.room)
    )
    return SourceHistories(start, size, room, histories.time, histories.recent, histories.used)


def extend_histories(
    histories: SourceHistories, src: Int64[Tensor, "e"], dst: Int64[Tensor, "e"], time: Float64[Tensor, "e"]
) -> tuple[SourceHistories, Int64[Tensor, "e l"]]:
    """Append events in time order, in amortized constant time each; `histories` must not be used afterwards.

    Also returns the last destinations of each event's source strictly before it.
    """
    return TRANSITIONS.pick("cpu").extend_histories(histories, src, dst, time)


def last_destinations(
    histories: SourceHistories, source: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
) -> Int64[Tensor, "q l"]:
    """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
    return TRANSITIONS.pick("cpu").last_destinations(histories, source, time)


def last_ages(
    histories: SourceHistories, source: Int64[Tensor, "q"], time: Float64[Tensor, "q"], count: int
) -> Float64[Tensor, "q k"]:
    """Return the ages of the last `count` events of each source strictly before each time; -1 if there are fewer."""
    return TRANSITIONS.pick("cpu").last_ages(histories, source, time, count)


def count_between(
    histories: SourceHistories,
    source: Int64[Tensor, "q"],
    since: Float64[Tensor, "q"],
    time: Float64[Tensor, "q"],
) -> Int64[Tensor, "q"]:
    """Return the number of events of each source strictly later than `since` and strictly before `time`."""
    return TRANSITIONS.pick("cpu").count_between(histories, source, since, time)


class KeyMap(Protocol):
    """Slots by 64-bit key, such as a `HashMap`."""

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key, -1 for an unknown key."""
        ...

    def keys(self) -> Int64[np.ndarray, "k"]:
        """Return all keys in the order of their slots."""
        ...


@dataclass(frozen=True, slots=True)
class TransitionParts:
    """Tables in which transitions are looked up.

    Attributes:
        histories: Last destinations of every source.
        cells: Groups of `followed` by (l, w, v).
        pairs: Groups of `met` by (source, destination).
        followed: Transitions of each (l, w, v).
        left: Transitions of each (w, l), group w * lags + l.
        met: Events of each (source, destination).
    """

    histories: SourceHistories
    cells: KeyMap
    pairs: KeyMap
    followed: DecayedCounts
    left: DecayedCounts
    met: DecayedCounts


class Transitions:
    """Decayed numbers of transitions between destinations over a stream; tensors are on the CPU.

    Building it from a stream and appending the same events to an empty one give the same numbers.
    """

    def __init__(
        self,
        src: Int64[Tensor, "e"],
        dst: Int64[Tensor, "e"],
        time: Float64[Tensor, "e"],
        num_nodes: int,
        lags: int,
        scale: Float64[Tensor, "s"],
    ) -> None:
        """Count the transitions of events in time order, in linear time."""
        if not 0 < lags <= MAX_LAGS or num_nodes > MAX_NODES:
            raise ConfigError(
                f"transitions need 1 to {MAX_LAGS} lags and at most {MAX_NODES} nodes; got {lags} lags and "
                f"{num_nodes} nodes",
                code="transitions-out-of-range",
            )
        self.lags, self._num_nodes = lags, num_nodes
        self._cells, self._pairs = HashMap(), HashMap()
        empty = create_histories(torch.bincount(src, minlength=num_nodes), lags)
        self.histories, cell, total, when = self._record(empty, src, dst, time)
        self._followed: DecayedCounts = build_decayed_counts(cell, when, len(self._cells), scale)
        self._left: DecayedCounts = build_decayed_counts(total, when, lags * num_nodes, scale)
        # the last event of each (source, destination) needs times only, so there is no scale
        pair = _insert(self._pairs, pack_key(src, dst))
        self._met: DecayedCounts = build_decayed_counts(pair, time, len(self._pairs), scale[:0])
        self._newest = float(time[-1]) if len(time) else -math.inf

    @staticmethod
    def from_parts(lags: int, num_nodes: int, parts: TransitionParts) -> "Transitions":
        """Return transitions for look-ups in these parts."""
        table: Any = object.__new__(Transitions)
        table.lags, table._num_nodes, table.histories = lags, num_nodes, parts.histories
        table._cells, table._pairs = parts.cells, parts.pairs
        table._followed, table._left, table._met = parts.followed, parts.left, parts.met
        return table

    @property
    def parts(self) -> TransitionParts:
        return TransitionParts(
            self.histories, self._cells, self._pairs, self._followed, self._left, self._met
        )

    def append(self, src: Int64[Tensor, "e"], dst: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Append later events in time order, in amortized constant time each; nodes may be new."""
        if not len(src):
            return
        if bool((time.diff() < 0).any()) or float(time[0]) < self._newest:
            raise EventError(
                "an appended event is earlier than an event that is already counted; build the counts again",
                code="unsorted-events",
            )
        self._num_nodes = max(self._num_nodes, 1 + int(torch.maximum(src, dst).max()))
        self.histories, cell, total, when = self._record(
            add_sources(self.histories, self._num_nodes), src, dst, time
        )
        self._followed = append_events(add_groups(self._followed, len(self._cells)), cell, when)
        self._left = append_events(add_groups(self._left, self.lags * self._num_nodes), total, when)
        pair = _insert(self._pairs, pack_key(src, dst))
        self._met = append_events(add_groups(self._met, len(self._pairs)), pair, time)
        self._newest = float(time[-1])

    def _record(
        self, histories: SourceHistories, src: Tensor, dst: Tensor, time: Tensor
    ) -> tuple[SourceHistories, Tensor, Tensor, Tensor]:
        """Append events to the histories; return also the (l, w, v), the (w, l) and the time of each transition."""
        histories, previous = extend_histories(histories, src, dst, time)
        some = previous >= 0  # [e l]
        lag = torch.arange(self.lags).expand_as(previous)[some]
        event = torch.arange(len(src))[:, None].expand_as(previous)[some]
        origin = previous[some]
        cell = _insert(self._cells, pack_key(origin, dst[event], lag))
        return histories, cell, origin * self.lags + lag, time[event]

    def counts(
        self, origin: Int64[Tensor, "q l"], dst: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> Float64[Tensor, "q l s"]:
        """Return T_l(w_l, v) strictly before each time; 0 where w_l is -1."""
        lag = torch.arange(self.lags)
        cell = self.find_cells(origin, dst[:, None], lag)
        found = count_before(self._followed, cell.flatten(), time.repeat_interleave(self.lags))
        return found.view(*origin.shape, -1)

    def totals(self, origin: Int64[Tensor, "q l"], time: Float64[Tensor, "q"]) -> Float64[Tensor, "q l s"]:
        """Return out_l(w_l) strictly before each time; 0 where w_l is -1."""
        group = origin * self.lags + torch.arange(self.lags)
        known = (origin >= 0) & (origin < self._num_nodes)
        group = torch.where(known, group, -1).flatten()
        return count_before(self._left, group, time.repeat_interleave(self.lags)).view(*origin.shape, -1)

    def covisits(
        self, origin: Int64[Tensor, "q l"], dst: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> Float64[Tensor, "q s"]:
        """Return the sum of T_i(w, v) + T_i(v, w) over all lags i and the given nodes w, strictly before each time."""
        w, v, lag = origin[:, :, None], dst[:, None, None], torch.arange(self.lags)
        cell = torch.cat([self.find_cells(w, v, lag), self.find_cells(v, w, lag)], dim=1).flatten(1)
        near = NeighborMeetings(
            cell, torch.zeros_like(dst), torch.zeros(1, cell.shape[1], dtype=torch.float64)
        )
        return sum_neighbor_meetings(self._followed, near, time)[:, 0]

    def find_cells(self, origin: Tensor, dst: Tensor, lag: Tensor) -> Tensor:
        """Return the cell of each (l, w, v), -1 if there is none."""
        key, given = pack_key(origin.clamp(min=0), dst, lag), (origin >= 0) & (dst >= 0)
        slot = torch.from_numpy(self._cells.slots(key.flatten().numpy())).view(key.shape)
        return torch.where(given, slot, -1)

    def events_since_met(
        self, src: Int64[Tensor, "q"], dst: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> Int64[Tensor, "q"]:
        """Return how many events of the source are later than its last one on the destination; -1 if there is none.

        Both are strictly before the query time; events at the instant of that last one are not later.
        """
        pair = torch.from_numpy(self._pairs.slots(pack_key(src, dst).numpy()))
        number, _ = past_size_and_age(self._met, pair, time)
        met = number > 0
        since = torch.full_like(time, -torch.inf)
        since[met] = self._met.time[self._met.start[pair[met]] + number[met] - 1]
        return torch.where(met, count_between(self.histories, src, since, time), -1)


def _insert(table: HashMap, key: Tensor) -> Tensor:
    """Return the slot of each key; a part at a time, as the table grows for as many new keys as it is given."""
    parts = [torch.from_numpy(table.insert(part.numpy())) for part in key.split(KEYS_PER_PART)]
    return torch.cat([key[:0], *parts])


def pack_key(origin: Any, dst: Any, lag: Any = 0) -> Any:
    """Return the key of a cell (l, w, v), or of a pair of source and destination with lag 0."""
    return (origin << 33) | (dst << 3) | lag
