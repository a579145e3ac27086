"""Tables that events are appended to, and dropped from again, newest first; look-ups equal those of whole tables.

Each table takes events in time order, none earlier than those it has, and drops the newest ones. Keys of pairs are
numbers of two nodes below `MAX_NODES`, so that new nodes change no key.

Legend: e events, a appended or dropped events, q queries, s scales, l lags, c values, n nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from dygmamba.ops.decayed_counts import DecayedCounts, past_size_and_age
from dygmamba.ops.decayed_sums import DecayedSums
from dygmamba.ops.decayed_sums.cpu import find_last
from dygmamba.ops.transitions import (
    SourceHistories,
    TransitionParts,
    Transitions,
    last_destinations,
    pack_key,
)
from dygmamba.ops.transitions.cpu import append_destinations
from dygmamba.sampling.block_lists import (
    BlockLists,
    CountLists,
    EventRows,
    Growing,
    KeySlots,
    SumLists,
    interleave,
)
from dygmamba.sampling.columns import (
    ColumnRequest,
    ColumnTable,
    NumericHistory,
    QueryColumns,
    history_keys,
    stack_moments,
    type_keys,
)
from dygmamba.sampling.counts import EventCounts, pair_key
from dygmamba.sampling.decayed_counts import Role
from dygmamba.sampling.node_values import NodeValueRequest, compute_side, is_first_meeting, stack_values

MAX_NODES = 1 << 28  # the key of a pair and an event type fits into 63 bits
HISTORIES_OF_NODES = (True, True, False)  # whether the keys of a history of columns are nodes
COUNT_KINDS = ("node", "pair", "sent", "received", "way")  # groups of counts
NODE_KINDS = ("node", "sent", "received")  # of them: their keys are nodes


class KeyedLists(Growing):
    """Lists by 64-bit key; where the keys are nodes, a node's group is its number."""

    lists_by_group: CountLists | SumLists
    slots: KeySlots | None

    @property
    def parts(self) -> Mapping[str, Growing]:
        slots: dict[str, Growing] = {} if self.slots is None else {"slots": self.slots}
        return {"lists": self.lists_by_group, **slots}

    def find(self, key: Int64[np.ndarray, "q"]) -> Int64[np.ndarray, "q"]:
        """Return the group of each key, -1 for an unknown or a negative one (padding)."""
        if self.slots is None:
            return np.where((key >= 0) & (key < self.lists_by_group.groups), key, -1)
        return np.where(key >= 0, self.slots.slots(np.maximum(key, 0)), -1)

    def insert(self, key: Int64[np.ndarray, "a"]) -> Int64[np.ndarray, "a"]:
        """Return the group of each key; new keys get new groups."""
        group = key if self.slots is None else self.slots.insert(key)
        if len(key):
            self.lists_by_group.ensure_groups(1 + int(group.max()))
        return group

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Return the group of each key, -1 for unknown keys and for negative ones (padding)."""
        return torch.from_numpy(self.find(np.ascontiguousarray(key.numpy()).reshape(-1))).view(key.shape)

    def drop(self, key: Int64[np.ndarray, "a"]) -> None:
        """Drop the newest event of each key, as often as the key is listed."""
        self.lists_by_group.drop(self.find(key))


def _first_groups(key: np.ndarray, slots: KeySlots | None) -> tuple[np.ndarray, int]:
    """Return the group of each key and the number of groups."""
    if slots is None:
        return key, 1 + int(key.max()) if len(key) else 0
    return slots.insert(key), slots.count


class KeyedCounts(KeyedLists):
    """Decayed counts by key; a form of `CountGroups`."""

    def __init__(
        self,
        key: Int64[np.ndarray, "e"],
        time: Float64[np.ndarray, "e"],
        scale: Float64[Tensor, "s"],
        is_node: bool = False,
    ) -> None:
        self.slots = None if is_node else KeySlots()
        group, groups = _first_groups(key, self.slots)
        self.counts = self.lists_by_group = CountLists(group, time, groups, scale)

    @property
    def lists(self) -> DecayedCounts:
        """The counts for look-ups; valid until events are appended or dropped."""
        return self.counts.lists

    def append(self, key: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"]) -> None:
        """Append events."""
        self.counts.append(self.insert(key), time)


class KeyedSums(KeyedLists, NumericHistory):
    """Decayed sums of numeric columns by key."""

    def __init__(
        self,
        key: Int64[np.ndarray, "e"],
        time: Float64[np.ndarray, "e"],
        value: Float64[np.ndarray, "e c"],
        scale: Float64[Tensor, "s"],
        is_node: bool = False,
    ) -> None:
        self.slots = None if is_node else KeySlots()
        group, groups = _first_groups(key, self.slots)
        self.values = self.lists_by_group = SumLists(group, time, value, groups, scale)

    @property
    def sums(self) -> DecayedSums:
        """The sums for look-ups; valid until events are appended or dropped."""
        return self.values.lists

    def append(
        self, key: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"], value: Float64[np.ndarray, "a c"]
    ) -> None:
        """Append events with their values."""
        self.values.append(self.insert(key), time, value)


class LiveCounts(Growing):
    """Decayed counts of nodes and pairs of every kind on some scales."""

    def __init__(self, rows: EventRows, scales: tuple[float, ...]) -> None:
        scale = torch.tensor(scales, dtype=torch.float64)
        self.groups = {
            kind: KeyedCounts(*list_keys(rows, kind), scale, kind in NODE_KINDS) for kind in COUNT_KINDS
        }
        self.counts = EventCounts(MAX_NODES, scale, self.groups)

    @property
    def parts(self) -> Mapping[str, Growing]:
        return dict(self.groups)

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        for kind, groups in self.groups.items():
            groups.append(*list_keys(rows, kind))

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        for kind, groups in self.groups.items():
            groups.drop(list_keys(rows, kind)[0])


def list_keys(rows: EventRows, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys and times of a kind of groups (`sampling/counts.py`); a self-loop is one event of its node."""
    src, dst = rows.src, rows.dst
    match kind:
        case "node":
            is_loop = src == dst
            if not is_loop.any():
                return rows.ends, rows.end_times
            once = interleave(np.ones_like(is_loop), ~is_loop)
            return rows.ends[once], rows.end_times[once]
        case "pair":
            return np.minimum(src, dst) * MAX_NODES + np.maximum(src, dst), rows.time
        case "sent":
            return src, rows.time
        case "received":
            return dst, rows.time
        case _:
            return src * MAX_NODES + dst, rows.time


class DestinationLists(BlockLists):
    """Times and last destinations of all sources (`SourceHistories`)."""

    columns = ("time", "recent")
    recent: np.ndarray

    def __init__(self, sizes: Int64[np.ndarray, "n"], lags: int) -> None:
        super().__init__(sizes, (np.float64, ()), (np.int64, (lags,)))

    def append(self, rows: EventRows) -> Int64[np.ndarray, "a l"]:
        """Append events; return the last destinations of each source strictly before its event, -1 if none."""
        previous = np.full((len(rows.src), self.recent.shape[1]), -1)
        self.extend(append_destinations, (), rows.src, rows.dst, rows.time, previous)
        return previous

    @property
    def lists(self) -> SourceHistories:
        """The histories for look-ups; valid until events are appended or dropped."""
        columns = (self.start, self.size, self.room, self.time, self.recent)
        return SourceHistories(*(torch.from_numpy(column) for column in columns), used=self.used)


class LiveTransitions(Growing):
    """Transitions between destinations (`ops/transitions`)."""

    def __init__(self, rows: EventRows, lags: int, scale: Float64[Tensor, "s"]) -> None:
        nodes, self.lags = rows.store.num_nodes, lags
        self.cells, self.pairs = KeySlots(), KeySlots()
        self.sources = DestinationLists(np.bincount(rows.src, minlength=nodes), lags)
        pair = self.pairs.insert(pack_key(rows.src, rows.dst))
        self.met = CountLists(pair, rows.time, self.pairs.count, scale[:0])
        del pair  # as large as a column of the events
        parts = [self._record(part) for part in rows.split()] or [self._record(rows)]
        cell, total, when = (np.concatenate(own) for own in zip(*parts, strict=True))
        del parts
        self.followed = CountLists(cell, when, self.cells.count, scale)
        self.left = CountLists(total, when, lags * nodes, scale)

    @property
    def parts(self) -> Mapping[str, Growing]:
        names = ("sources", "cells", "pairs", "followed", "left", "met")
        return {name: getattr(self, name) for name in names}

    def ensure_nodes(self, nodes: int) -> None:
        """Add sources and origins without events so that there are at least `nodes` of them."""
        self.sources.ensure_groups(nodes)
        self.left.ensure_groups(self.lags * nodes)

    @property
    def transitions(self) -> Transitions:
        """The transitions for look-ups; valid until events are appended or dropped."""
        counts = (self.followed.lists, self.left.lists, self.met.lists)
        parts = TransitionParts(self.sources.lists, self.cells, self.pairs, *counts)
        return Transitions.from_parts(self.lags, self.sources.groups, parts)

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        self.ensure_nodes(rows.store.num_nodes)
        cell, total, when = self._record(rows)
        pair = self.pairs.insert(pack_key(rows.src, rows.dst))
        self.followed.ensure_groups(self.cells.count)
        self.met.ensure_groups(self.pairs.count)
        self.followed.append(cell, when)
        self.left.append(total, when)
        self.met.append(pair, rows.time)

    def _record(self, rows: EventRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Append events to the histories of their sources; return the groups and the time of each transition."""
        event, lag, origin, key = _list_transitions(self.sources.append(rows), rows.dst)
        return self.cells.insert(key), origin * self.lags + lag, rows.time[event]

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        src, dst, time = rows.src, rows.dst, rows.time
        asked = (torch.from_numpy(src), torch.from_numpy(time))
        previous = last_destinations(self.sources.lists, *asked).numpy()  # as they were appended
        _, lag, origin, key = _list_transitions(previous, dst)
        self.followed.drop(self.cells.slots(key))
        self.left.drop(origin * self.lags + lag)
        self.met.drop(self.pairs.slots(pack_key(src, dst)))
        self.sources.drop(src)


def _list_transitions(
    previous: Int64[np.ndarray, "a l"], dst: Int64[np.ndarray, "a"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return event, lag, origin and key of each transition, from the last destinations before each event."""
    event, lag = np.nonzero(previous >= 0)
    origin = previous[event, lag]
    return event, lag, origin, pack_key(origin, dst[event], lag)


class LiveColumns(Growing):
    """Numbers and types of the events of nodes and pairs (`sampling/columns.py`)."""

    def __init__(self, rows: EventRows, request: ColumnRequest) -> None:
        scale = torch.tensor(request.scales, dtype=torch.float64)
        keys, numeric = list_histories(rows), ()
        columns, time = select_columns(rows), rows.time
        if request.columns.numeric:
            value = stack_moments(columns, request).numpy()
            numeric = tuple(
                KeyedSums(key.numpy(), time, value, scale, is_node)
                for key, is_node in zip(keys, HISTORIES_OF_NODES, strict=True)
            )
        self.numeric: tuple[KeyedSums, ...] = numeric
        self.types: tuple[tuple[KeyedCounts, ...], ...] = tuple(
            tuple(KeyedCounts(key.numpy(), time, scale) for key in type_keys(keys, columns, column))
            for column in request.columns.types
        )
        self.table = ColumnTable(request, MAX_NODES, self.numeric, self.types)

    @property
    def parts(self) -> Mapping[str, Growing]:
        tables = [*self.numeric, *(groups for own in self.types for groups in own)]
        return {str(number): table for number, table in enumerate(tables)}

    def append_rows(self, rows: EventRows) -> None:
        """Append events with their columns."""
        request, keys = self.table.request, list_histories(rows)
        columns, time = select_columns(rows), rows.time
        if self.numeric:
            value = stack_moments(columns, request).numpy()
            for history, key in zip(self.numeric, keys, strict=True):
                history.append(key.numpy(), time, value)
        for column, groups in zip(request.columns.types, self.types, strict=True):
            for own, key in zip(groups, type_keys(keys, columns, column), strict=True):
                own.append(key.numpy(), time)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        keys, columns = list_histories(rows), select_columns(rows)
        for history, key in zip(self.numeric, keys, strict=bool(self.numeric)):
            history.drop(key.numpy())
        for column, groups in zip(self.table.request.columns.types, self.types, strict=True):
            for own, key in zip(groups, type_keys(keys, columns, column), strict=True):
                own.drop(key.numpy())


class LiveNodeValues(Growing):
    """Decayed sums of event values by source and by destination (`sampling/node_values.py`)."""

    def __init__(self, rows: EventRows, request: NodeValueRequest) -> None:
        self.request, scale = request, request.make_scale()
        pair = rows.src * MAX_NODES + rows.dst
        self.pairs = KeyedCounts(pair, rows.time, scale[:1])  # only whether a pair has met is read from them
        value = self._stack(rows, is_first_meeting(torch.from_numpy(pair))).numpy()
        self.sent, self.received = (
            KeyedSums(node, rows.time, value, scale, is_node=True) for node in (rows.src, rows.dst)
        )

    def _stack(self, rows: EventRows, first: Tensor) -> Float64[Tensor, "a c"]:
        return stack_values(
            first, rows.store.features.edge[rows.first : rows.stop][:, list(self.request.columns)]
        )

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {"pairs": self.pairs, "sent": self.sent, "received": self.received}

    def append_rows(self, rows: EventRows) -> None:
        """Append events with their values."""
        pair = rows.src * MAX_NODES + rows.dst
        group = self.pairs.find(pair)
        met = (group >= 0) & (self.pairs.counts.size[np.maximum(group, 0)] > 0)
        value = self._stack(rows, is_first_meeting(torch.from_numpy(pair)) & torch.from_numpy(~met)).numpy()
        self.pairs.append(pair, rows.time)
        for lists, node in ((self.sent, rows.src), (self.received, rows.dst)):
            lists.append(node, rows.time, value)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.pairs.drop(rows.src * MAX_NODES + rows.dst)
        for lists, node in ((self.sent, rows.src), (self.received, rows.dst)):
            lists.drop(node)

    def compute_features(
        self, src: Int64[Tensor, "q"], dst: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> Float32[Tensor, "q f"]:
        """Return all features of each pair, in the order of `NodeValueRequest.names`."""
        sides = ((self.sent, src), (self.received, src), (self.received, dst))
        return torch.cat([compute_side(own.sums, own.group(node), time) for own, node in sides], dim=1)


@dataclass(frozen=True, slots=True)
class LiveDecayedCounts:
    """Decayed counts of any node and pair; a form of `DecayedCountLookup`."""

    counts: EventCounts

    def of_node(self, node: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of each node's events strictly before each time; zeros for node -1."""
        groups = self.counts.groups["node"]
        return count_in_32_bits(groups.lists, groups.group(node.long()), time)

    def of_pair(
        self, a: Int[Tensor, "*q"], b: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the decayed count of events between two nodes strictly before each time; zeros if one is -1."""
        groups = self.counts.groups["pair"]
        key = torch.where((a >= 0) & (b >= 0), pair_key(a.long(), b.long(), MAX_NODES), -1)
        return count_in_32_bits(groups.lists, groups.group(key), time)

    def of_role(
        self, role: Role, a: Int64[Tensor, "q"], b: Int64[Tensor, "q"], time: Float64[Tensor, "q"]
    ) -> tuple[Float32[Tensor, "q s"], Int64[Tensor, "q"], Float64[Tensor, "q"]]:
        """Return the decayed count of the events in a role, their number and the age of the latest one."""
        groups, key = self.counts.groups[role], a
        if role in ("pair", "way"):
            key = pair_key(a, b, MAX_NODES) if role == "pair" else a * MAX_NODES + b
            key = torch.where((a >= 0) & (b >= 0), key, -1)
        group = groups.group(key)
        return count_in_32_bits(groups.lists, group, time), *past_size_and_age(groups.lists, group, time)


@dataclass(frozen=True, slots=True)
class LiveTransitionCounts:
    """Transitions between any two nodes; a form of `TransitionLookup`."""

    table: Transitions

    @property
    def lags(self) -> int:
        return self.table.lags

    def last_destinations(
        self, source: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Int64[Tensor, "*q l"]:
        """Return the last destinations of each source strictly before each time, the last one first; -1 if none."""
        found = last_destinations(self.table.histories, source.flatten(), time.flatten())
        return found.view(*source.shape, self.lags)

    def count(
        self,
        lag: Int64[Tensor, "*q"],
        origin: Int[Tensor, "*q"],
        dst: Int[Tensor, "*q"],
        time: Float64[Tensor, "*q"],
    ) -> Float32[Tensor, "*q s"]:
        """Return T_l(w, v) strictly before each time, `lag` from 0 on; zeros if a node is -1."""
        cell = self.table.find_cells(origin.long(), dst.long(), lag)
        return count_in_32_bits(self.table.parts.followed, cell, time)

    def count_all(
        self, lag: Int64[Tensor, "*q"], origin: Int[Tensor, "*q"], time: Float64[Tensor, "*q"]
    ) -> Float32[Tensor, "*q s"]:
        """Return the sum of T_l(w, v) over all v strictly before each time; zeros for node -1."""
        left = self.table.parts.left
        group = torch.where(origin >= 0, origin.long() * self.lags + lag, -1)
        return count_in_32_bits(left, torch.where(group < len(left.size), group, -1), time)


def list_histories(rows: EventRows) -> tuple[Tensor, ...]:
    """Return the keys of the histories of columns."""
    return history_keys(torch.from_numpy(rows.src), torch.from_numpy(rows.dst), MAX_NODES)


def select_columns(rows: EventRows) -> QueryColumns:
    """Return the columns of these events."""
    features = rows.store.features
    return QueryColumns(torch.arange(rows.first, rows.stop), features.edge, features.codes)


def count_in_32_bits(
    lists: DecayedCounts, group: Int64[Tensor, "*q"], time: Float64[Tensor, "*q"]
) -> Float32[Tensor, "*q s"]:
    """Return decayed counts with the operations of `DecayedCountLists.before`, which stores them in 32 bits."""
    last = torch.empty(group.numel(), dtype=torch.int64)
    given = (lists.start, lists.size, lists.time, group.flatten(), time.flatten(), last)
    find_last(*(column.numpy() for column in given))
    last = last.view(group.shape)
    some, last = last >= 0, last.clamp(min=0)
    if not len(lists.time):
        return torch.zeros(*group.shape, len(lists.scale))
    age = torch.where(some, time - lists.time[last], 0.0)
    decay = torch.exp(-age[..., None] / lists.scale).float()
    return torch.where(some[..., None], lists.running[last].float() * decay, 0.0)
