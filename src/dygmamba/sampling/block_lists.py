"""Lists that entries are appended to: each group has a block of its own with spare room, oldest entry first.

Group i has `size[i]` entries from `start[i]` on, and room for `room[i]`. A full block moves to the end and gets twice
the room, so an append takes amortised constant time. The newest entries can be dropped again: a block then ends
earlier. The arithmetic is that of the kernels that build whole tables, so the numbers are equal bit for bit.

Arrays have spare capacity behind what is in use. They are saved and mapped again as they are (`live/snapshots.py`).

Legend: g groups, e events, b ends of events, a appended entries, m entries, s scales, c values, q queries.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.ops.decayed_counts import DecayedCounts
from dygmamba.ops.decayed_counts.cpu import append_counts, drop_newest
from dygmamba.ops.decayed_sums import DecayedSums
from dygmamba.ops.decayed_sums.cpu import append_sums
from dygmamba.ops.hash_map import cpu as hash_map
from dygmamba.ops.recent_neighbors.cpu import append_neighbors, append_weights, weigh_blocks

LEAST_SPARE = 64  # rows
HUGE_BYTES = 1 << 23
KEYS_PER_PART = 1 << 14
LONG_LIST, SPARE_SHARE = 32, 4  # lists from this length on get a quarter of it as spare room
EVENTS_PER_PART = 1 << 20  # appended at a time when a table is built

ColumnKind = tuple[type[np.generic], tuple[int, ...]]  # type of a column and the shape of its rows


def allocate_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros that takes no memory until it is written.

    A large one is in huge pages where the system has them: entries are written all over it, and the first write to
    each page takes microseconds.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def enlarge(column: np.ndarray, used: int, rows: int) -> np.ndarray:
    """Return a copy with at least `rows` rows; rows beyond `used` are 0 and take no memory until they are written."""
    wide = allocate_zeros((rows, *column.shape[1:]), column.dtype)
    wide[:used] = column[:used]
    return wide


def with_spare(column: np.ndarray) -> np.ndarray:
    """Return a copy with spare capacity behind its rows."""
    return enlarge(column, len(column), 2 * len(column) + LEAST_SPARE)


class Growing:
    """Base class of what is saved as arrays with spare capacity and a few integers.

    Subclasses name their arrays, each with the integer that says how many of its rows are in use (None: all of them),
    their other integers, and their parts, which are of this class too.
    """

    arrays: ClassVar[Mapping[str, str | None]] = {}
    integers: ClassVar[tuple[str, ...]] = ()

    @property
    def parts(self) -> "Mapping[str, Growing]":
        return {}

    def list_arrays(self, prefix: str = "") -> "Iterator[tuple[str, Growing, str, int]]":
        """Yield the name of each array, its owner and attribute, and how many of its rows are in use."""
        for name, used in self.arrays.items():
            rows = len(getattr(self, name)) if used is None else int(getattr(self, used))
            yield prefix + name, self, name, rows
        for name, part in self.parts.items():
            yield from part.list_arrays(f"{prefix}{name}/")

    def put_array(self, name: str, array: np.ndarray) -> None:
        """Replace an array by another one of the same type."""
        setattr(self, name, array)

    def list_integers(self, prefix: str = "") -> "Iterator[tuple[str, Growing, str]]":
        """Yield the name of each integer, its owner and attribute."""
        for name in self.integers:
            yield prefix + name, self, name
        for name, part in self.parts.items():
            yield from part.list_integers(f"{prefix}{name}/")


class KeySlots(Growing):
    """Growing map from 64-bit keys to slots 0, 1, 2, ..., in arrays that can be saved; keys are >= 0."""

    arrays: ClassVar[Mapping[str, str | None]] = {"table": None, "place": None}
    integers = ("count",)

    def __init__(self) -> None:
        self.table, self.place = np.full(LEAST_SPARE, -1, np.int64), np.zeros(LEAST_SPARE, np.int64)
        self.count = 0

    def insert(self, key: Int64[np.ndarray, "a"]) -> Int64[np.ndarray, "a"]:
        """Return the slot of each key; new keys get the next slots."""
        found = np.empty(len(key), np.int64)
        for begin in range(0, len(key), KEYS_PER_PART):  # the table grows as if all keys of a part were new
            part = slice(begin, begin + KEYS_PER_PART)
            while 2 * (self.count + len(key[part])) > len(self.table):
                self.table, self.place = hash_map.grow(self.table, self.place)
            self.count = int(hash_map.insert(self.table, self.place, self.count, key[part], found[part]))
        return found

    def keys(self) -> Int64[np.ndarray, "g"]:
        """Return all keys in the order of their slots."""
        known, taken = np.empty(self.count, np.int64), self.table != -1
        known[self.place[taken]] = self.table[taken]
        return known

    def slots(self, keys: Int64[np.ndarray, "q"]) -> Int64[np.ndarray, "q"]:
        """Return the slot of each key, -1 for an unknown one."""
        found = np.empty(len(keys), np.int64)
        hash_map.find(self.table, self.place, np.ascontiguousarray(keys), found)
        return found


class BlockLists(Growing):
    """Entries by group; subclasses add columns and a kernel that appends."""

    columns: ClassVar[tuple[str, ...]] = ()
    integers = ("groups", "used")
    time: np.ndarray

    def __init_subclass__(cls) -> None:
        cls.arrays = dict.fromkeys(("start", "size", "room"), "groups") | dict.fromkeys(cls.columns, "used")

    def __init__(self, sizes: Int64[np.ndarray, "g"], *kinds: ColumnKind) -> None:
        """Create empty lists with room for so many entries each; long ones get more, so that they do not move at once.

        Args:
            sizes: Number of entries that each list is about to get.
            kinds: Type of each column, and the shape of its rows.
        """
        room = sizes + np.where(sizes >= LONG_LIST, sizes // SPARE_SHARE, 0)
        self.groups, self.used = len(sizes), int(room.sum())
        self.start, self.room = with_spare(room.cumsum() - room), with_spare(room)
        self.size = allocate_zeros(self.room.shape, np.int64)
        for name, (dtype, shape) in zip(self.columns, kinds, strict=True):
            setattr(self, name, allocate_zeros((2 * self.used + LEAST_SPARE, *shape), dtype))

    def ensure_groups(self, groups: int) -> None:
        """Add empty groups so that there are at least `groups` of them."""
        if groups > len(self.start):
            for name in ("start", "size", "room"):
                setattr(self, name, enlarge(getattr(self, name), self.groups, 2 * groups + LEAST_SPARE))
        self.groups = max(self.groups, groups)

    def extend(self, kernel: Callable[..., Any], constants: tuple[Any, ...], *values: np.ndarray) -> None:
        """Append entries with a kernel; it stops where an array is full, and goes on after that has grown."""
        done = 0
        while True:
            columns = [getattr(self, name) for name in self.columns]
            self.used, done = kernel(
                self.start, self.size, self.room, *columns, *constants, self.used, *values, done
            )
            if done == len(values[0]):
                return
            for name in self.columns:
                column = getattr(self, name)
                setattr(self, name, enlarge(column, self.used, 2 * len(column) + LEAST_SPARE))

    def drop(self, group: Int64[np.ndarray, "a"]) -> None:
        """Drop the newest entry of each group, as often as the group is listed."""
        drop_newest(self.size, group)


class CountLists(BlockLists):
    """Times and decayed counts of all groups (`ops/decayed_counts`)."""

    columns = ("time", "running")
    running: np.ndarray

    def __init__(
        self,
        group: Int64[np.ndarray, "e"],
        time: Float64[np.ndarray, "e"],
        groups: int,
        scale: Float64[Tensor, "s"],
    ) -> None:
        """Count events in time order, each in one group below `groups`."""
        sizes = np.bincount(group, minlength=groups)
        super().__init__(sizes, (np.float64, ()), (np.float64, (len(scale),)))
        self.scale = scale
        self._lists: DecayedCounts | None = None
        self.append(group, time)

    @property
    def lists(self) -> DecayedCounts:
        """The counts for look-ups; valid until entries are appended or dropped."""
        if self._lists is None:
            columns = (self.start, self.size, self.room, self.time, self.running)
            tensors: list[Tensor] = [torch.from_numpy(column) for column in columns]
            self._lists = DecayedCounts(*tensors, scale=self.scale, used=self.used)
        return self._lists

    def append(self, group: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"]) -> None:
        """Append events in time order, none earlier than the group's last one."""
        self._lists = None
        self.extend(append_counts, (self.scale.numpy(),), group, time)

    def put_array(self, name: str, array: np.ndarray) -> None:
        self._lists = None
        super().put_array(name, array)

    def ensure_groups(self, groups: int) -> None:
        """Add empty groups so that there are at least `groups` of them."""
        if groups > self.groups:
            self._lists = None
        super().ensure_groups(groups)


class SumLists(BlockLists):
    """Times, decayed sums and latest values of all groups (`ops/decayed_sums`)."""

    columns = ("time", "running", "latest")
    running: np.ndarray
    latest: np.ndarray

    def __init__(
        self,
        group: Int64[np.ndarray, "e"],
        time: Float64[np.ndarray, "e"],
        value: Float64[np.ndarray, "e c"],
        groups: int,
        scale: Float64[Tensor, "s"],
    ) -> None:
        """Sum the values of events in time order, each in one group below `groups`."""
        sizes, width = np.bincount(group, minlength=groups), value.shape[1]
        super().__init__(sizes, (np.float64, ()), (np.float64, (len(scale), width)), (np.float64, (width,)))
        self.scale = scale
        self.append(group, time, np.ascontiguousarray(value))

    @property
    def lists(self) -> DecayedSums:
        """The sums for look-ups; valid until entries are appended or dropped."""
        columns = (self.start, self.size, self.time, self.running, self.latest)
        return DecayedSums(*(torch.from_numpy(column) for column in columns), scale=self.scale)

    def append(
        self, group: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"], value: Float64[np.ndarray, "a c"]
    ) -> None:
        """Append events in time order, none earlier than the group's last one."""
        self.extend(append_sums, (self.scale.numpy(),), group, time, value)


class EventRows:
    """The events of a store from row `first` to row `stop` (default: the last), which tables append or drop."""

    def __init__(self, store: EventStore, first: int = 0, stop: int | None = None) -> None:
        self.store, self.first, self.stop = store, first, len(store) if stop is None else stop
        columns = (store.src, store.dst, store.time)
        self.src, self.dst, self.time = (column.numpy()[first : self.stop] for column in columns)

    @cached_property
    def ends(self) -> Int64[np.ndarray, "b"]:
        """Source and destination of each event in turn."""
        return interleave(self.src, self.dst)

    @cached_property
    def end_times(self) -> Float64[np.ndarray, "b"]:
        """The time of each of the ends."""
        return self.time.repeat(2)

    def split(self) -> Iterator["EventRows"]:
        """Yield consecutive parts, so that what is computed from one fits into little memory."""
        for first in range(self.first, self.stop, EVENTS_PER_PART):
            yield EventRows(self.store, first, min(first + EVENTS_PER_PART, self.stop))


class NeighborLists(BlockLists):
    """Neighbors, events and times of all nodes, each event listed under its source and its destination."""

    columns = ("neighbor", "event", "time")
    neighbor: np.ndarray
    event: np.ndarray

    def __init__(self, rows: EventRows) -> None:
        nodes = rows.store.num_nodes
        sizes = np.bincount(rows.src, minlength=nodes) + np.bincount(rows.dst, minlength=nodes)
        super().__init__(sizes, (np.int32, ()), (np.int32, ()), (np.float64, ()))
        for part in rows.split():
            self.append_rows(part)

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        self.ensure_groups(rows.store.num_nodes)
        event = np.arange(rows.first, rows.stop).repeat(2)
        other = interleave(rows.dst, rows.src)
        self.extend(append_neighbors, (), rows.ends, other, event, rows.end_times)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.drop(rows.ends)


class WeightLists(BlockLists):
    """Cumulated sampling weights of all nodes' entries, in the blocks of `NeighborLists`."""

    columns = ("time", "count", "running")
    count: np.ndarray
    running: np.ndarray

    def __init__(self, near: NeighborLists, scale: float) -> None:
        """Weight the entries of neighbor lists; equal appends keep the blocks of both at the same places."""
        super().__init__(np.zeros(0, np.int64), *(((np.float64, ()),) * 3))
        self.scale = np.array([scale])
        self.groups, self.used = near.groups, near.used
        self.start, self.size, self.room = near.start.copy(), near.size.copy(), near.room.copy()
        self.time = near.time.copy()
        self.count, self.running = np.zeros(len(self.time)), np.zeros(len(self.time))
        weigh_blocks(self.start, self.size, self.time, self.count, self.running, self.scale)

    def append_rows(self, rows: EventRows) -> None:
        """Append events."""
        self.ensure_groups(rows.store.num_nodes)
        self.extend(append_weights, (self.scale,), rows.ends, rows.end_times)

    def drop_rows(self, rows: EventRows) -> None:
        """Drop the newest events."""
        self.drop(rows.ends)


def interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return first[0], second[0], first[1], second[1], ..."""
    both = np.empty(2 * len(first), first.dtype)
    both[::2], both[1::2] = first, second
    return both
