"""Lists of events by key that events are appended to, and dropped from again, newest first.

Each group has a block of its own, oldest entry first: group i has `size[i]` entries from `start[i]` on, and room for
`room[i]`. Lists that are built whole have exactly the room they need. A full block moves to the end and gets twice the
room, so an append takes amortised constant time. Lists that are about to grow get spare room at once.

Every look-up takes a time and sees strictly earlier entries only. Arrays are numpy's, and nothing here needs torch.

Legend: g groups, e events, b ends of events, a appended entries, s scales, c values, q, r queries, k neighbors.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops import blocks
from dygmamba.ops.growing import LEAST_SPARE, Growing, allocate_zeros, with_spare
from dygmamba.ops.key_slots import KeySlots

LONG_LIST, SPARE_SHARE = 32, 4  # growing lists from this length on get a quarter of it as spare room
EVENTS_PER_PART = 1 << 20  # appended at a time where a table is built in parts
NODE_BITS = 28  # the key of a pair and an event type fits into 63 bits
MAX_NODES = 1 << NODE_BITS

ColumnKind = tuple[type[np.generic], tuple[int, ...]]  # type of a column and the shape of its rows


@dataclass(frozen=True)
class EventRows:
    """Events in time order that tables append or drop.

    They are the rows of a stream from `first` on, or those in `chosen`; `edge` and `codes` have all rows of the stream.
    No `slots`: cached_property needs a `__dict__`.
    """

    src: Int64[np.ndarray, "e"]
    dst: Int64[np.ndarray, "e"]
    time: Float64[np.ndarray, "e"]
    num_nodes: int
    first: int = 0
    chosen: Int64[np.ndarray, "e"] | None = None
    edge: Float32[np.ndarray, "r de"] | None = None
    codes: Int32[np.ndarray, "r dc"] | None = None

    def __post_init__(self) -> None:
        if self.num_nodes > MAX_NODES:
            raise EventError(
                f"tables of pairs take at most {MAX_NODES:,} nodes; got {self.num_nodes:,}",
                code="stream-too-large",
            )

    @cached_property
    def event(self) -> Int64[np.ndarray, "e"]:
        """Row of each event."""
        return np.arange(self.first, self.first + len(self.src)) if self.chosen is None else self.chosen

    @property
    def _rows(self) -> slice | np.ndarray:
        return slice(self.first, self.first + len(self.src)) if self.chosen is None else self.chosen

    def read_numbers(self, columns: Sequence[int]) -> Float32[np.ndarray, "e c"]:
        """Return some columns of the edge features."""
        assert self.edge is not None
        return self.edge[self.event[:, None], np.array(columns, np.int64)]

    def read_codes(self, column: int) -> Int32[np.ndarray, "e"]:
        """Return the codes of a categorical column."""
        assert self.codes is not None
        return self.codes[self._rows, column]

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
        for begin in range(0, len(self.src), EVENTS_PER_PART):
            part = slice(begin, begin + EVENTS_PER_PART)
            chosen = None if self.chosen is None else self.chosen[part]
            columns = {name: getattr(self, name)[part] for name in ("src", "dst", "time")}
            yield replace(self, **columns, first=self.first + begin, chosen=chosen)


def interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return first[0], second[0], first[1], second[1], ..."""
    both = np.empty(2 * len(first), first.dtype)
    both[::2], both[1::2] = first, second
    return both


def directed_key(src: Any, dst: Any) -> Any:
    """Return a key of directed pairs, of arrays of numpy or of tensors; negative if a node is."""
    return (src << NODE_BITS) | dst


def pair_key(a: Any, b: Any, xp: Any = np) -> Any:
    """Return a key of undirected pairs: the same for (a, b) and (b, a); `xp` is the module of the arrays."""
    return directed_key(xp.minimum(a, b), xp.maximum(a, b))


def flatten_rows(table: Any) -> Any:
    """Return an array of numpy, or a tensor, with one dimension besides the rows; there may be no row."""
    return table.reshape(len(table), math.prod(table.shape[1:]))


class SortedKeys:
    """Slots of keys that are sorted, such as those of lists on disk."""

    def __init__(self, known: Int64[np.ndarray, "g"]) -> None:
        self.known = known

    def slots(self, keys: Int64[np.ndarray, "q"]) -> Int64[np.ndarray, "q"]:
        """Return the slot of each key, -1 for an unknown one."""
        if not len(self.known):
            return np.full_like(keys, -1)
        slot = np.minimum(np.searchsorted(self.known, keys), len(self.known) - 1)
        return np.where(self.known[slot] == keys, slot, -1)


class BlockLists(Growing):
    """Entries by key; subclasses name the columns and append with a kernel.

    Keys are numbers from 0 on, such as nodes, and a key's group is itself; or they have slots, and its group is its
    slot.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    other_arrays: ClassVar[
        Mapping[str, str]
    ] = {}  # beside the columns, each with the integer of its rows in use
    integers = ("groups", "used")
    time: np.ndarray

    def __init_subclass__(cls) -> None:
        own = dict.fromkeys(("start", "size", "room"), "groups") | dict.fromkeys(cls.columns, "used")
        cls.arrays = own | dict(cls.other_arrays)

    def __init__(
        self, *kinds: ColumnKind, slots: KeySlots | SortedKeys | None = None, is_growing: bool = False
    ) -> None:
        """Create lists without entries.

        Args:
            kinds: Type of each column, and the shape of its rows.
            slots: Groups by key; None if keys are numbers of groups.
            is_growing: Whether more follows after the first entries, so that these get spare room.
        """
        self.slots, self.is_growing, self.groups, self.used = slots, is_growing, 0, 0
        self.start, self.size, self.room = (np.zeros(0, np.int64) for _ in range(3))
        for name, (dtype, shape) in zip(self.columns, kinds, strict=True):
            setattr(self, name, np.zeros((0, *shape), dtype))

    @property
    def parts(self) -> Mapping[str, Growing]:
        return {"slots": self.slots} if isinstance(self.slots, KeySlots) else {}

    def reserve(self, sizes: Int64[np.ndarray, "g"]) -> None:
        """Make room for so many first entries of each group; growing lists of many entries do not move at once."""
        room, spare = sizes, np.asarray
        if self.is_growing:
            room, spare = sizes + np.where(sizes >= LONG_LIST, sizes // SPARE_SHARE, 0), with_spare
        self.groups, self.used = len(sizes), int(room.sum())
        self.start, self.room = spare(room.cumsum() - room), spare(room)
        self.size = allocate_zeros(self.room.shape, np.int64)
        rows = 2 * self.used + LEAST_SPARE if self.is_growing else self.used
        for name in self.columns:
            column = getattr(self, name)
            setattr(self, name, allocate_zeros((rows, *column.shape[1:]), column.dtype))

    def ensure_groups(self, groups: int) -> None:
        """Add empty groups so that there are at least `groups` of them."""
        self.make_room(groups, "start", "size", "room")
        self.groups = max(self.groups, groups)

    def insert(self, key: Int64[np.ndarray, "a"]) -> Int64[np.ndarray, "a"]:
        """Return the group of each key; new keys get new groups."""
        return self.slots.insert(key) if isinstance(self.slots, KeySlots) else np.ascontiguousarray(key)

    def find(self, key: Int64[np.ndarray, "*q"]) -> Int64[np.ndarray, "*q"]:
        """Return the group of each key, -1 for an unknown or a negative one (padding)."""
        if self.slots is None:
            return np.where((key >= 0) & (key < self.groups), key, -1)
        return self.slots.slots(key.reshape(-1)).reshape(key.shape)

    def extend(
        self,
        kernel: Callable[..., Any],
        constants: Sequence[Any],
        group: Int64[np.ndarray, "a"],
        *values: np.ndarray,
    ) -> None:
        """Append entries with a kernel, which stops where an array is full and goes on after that has grown."""
        groups = max(self.groups, 1 + int(group.max()) if len(group) else 0)
        if self.used:
            self.ensure_groups(groups)
        else:
            self.reserve(np.bincount(group, minlength=groups))
        done, values = 0, tuple(map(np.ascontiguousarray, values))
        while True:
            columns = [getattr(self, name) for name in self.columns]
            self.used, done = kernel(
                self.start, self.size, self.room, *columns, *constants, self.used, group, *values, done
            )
            if done == len(group):
                return
            self.make_room(len(self.time) + 1, *self.columns)

    def drop(self, key: Int64[np.ndarray, "a"]) -> None:
        """Drop the newest entry of each key, as often as the key is listed."""
        blocks.drop_newest(self.size, self.find(key))

    def find_last(
        self, key: Int64[np.ndarray, "*q"], time: Float64[np.ndarray, "*q"]
    ) -> Int64[np.ndarray, "*q"]:
        """Return each key's last entry strictly before each time, -1 if there is none."""
        group, entry = self.find(key), np.empty(key.shape, np.int64)
        queries = (group.reshape(-1), np.ascontiguousarray(time).reshape(-1), entry.reshape(-1))
        blocks.find_last(self.start, self.size, self.time, *queries)
        return entry

    def read(self, name: str, entry: Int64[np.ndarray, "*q"], absent: float) -> np.ndarray:
        """Return a column at these entries, `absent` where an entry is -1."""
        column = getattr(self, name)
        if not len(column):
            return np.full((*entry.shape, *column.shape[1:]), absent, column.dtype)
        found = column[entry]
        found[entry < 0] = absent
        return found

    def find_number_and_age(
        self, key: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> tuple[Int64[np.ndarray, "q"], Float64[np.ndarray, "q"]]:
        """Return the number of entries of each key strictly before each time and the age of the last (-1 if none)."""
        entry = self.find_last(key, time)
        number = np.zeros_like(entry)
        some = entry >= 0
        number[some] = entry[some] + 1 - self.start[self.find(key[some])]
        return number, np.where(some, time - self.read("time", entry, 0.0), -1.0)


def check_scales(scale: Float64[np.ndarray, "s"]) -> None:
    """Raise ConfigError unless all time scales are positive and finite."""
    if not bool(((scale > 0) & np.isfinite(scale)).all()):
        raise ConfigError(
            f"time scales must be positive and finite; got {scale.tolist()}", code="bad-time-scale"
        )


class CountLists(BlockLists):
    """Decayed counts of events by key: each event counts exp(-age / scale), exactly, on many time scales.

    `running` is the count of a group just after each entry.
    """

    columns = ("time", "running")
    running: np.ndarray

    def __init__(
        self,
        scale: Float64[np.ndarray, "s"],
        slots: KeySlots | SortedKeys | None = None,
        is_growing: bool = False,
    ) -> None:
        check_scales(scale)
        self.scale = scale
        super().__init__((np.float64, ()), (np.float64, (len(scale),)), slots=slots, is_growing=is_growing)

    def append(self, key: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"]) -> None:
        """Append events in time order, none earlier than the key's last one."""
        self.extend(blocks.append_counts, (self.scale,), self.insert(key), time)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.start, self.size, self.time, self.running, self.scale

    def count_before(
        self, key: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> Float64[np.ndarray, "q s"]:
        """Return the decayed count of each key strictly before each time, on every scale; 0 for unknown keys."""
        out = np.empty((len(key), len(self.scale)))
        blocks.count_before(*self._arrays(), self.find(key), np.ascontiguousarray(time), out)
        return out

    def sum_meetings(
        self,
        key: Int64[np.ndarray, "q k"],
        row: Int64[np.ndarray, "q"],
        age: Float64[np.ndarray, "r k"],
        time: Float64[np.ndarray, "q"],
    ) -> Float64[np.ndarray, "q 2 s"]:
        """Sum up the decayed counts of several keys per query, each weighted by exp(-age / scale).

        Args:
            key: Keys of each query; unknown and negative ones count 0.
            row: Row of `age` for each query, as queries may share it.
            age: Age of each key's weight.
            time: Query times.

        Returns:
            The sum, and the largest of the counts without weights, on every scale.
        """
        out = np.empty((len(time), 2, len(self.scale)))
        queries = [np.ascontiguousarray(part) for part in (self.find(key), row, age, time)]
        blocks.sum_meetings(*self._arrays(), *queries, out)
        return out

    def mean_activity(
        self, key: Int64[np.ndarray, "r k"], time: Float64[np.ndarray, "r"]
    ) -> Float64[np.ndarray, "r s"]:
        """Return the mean of log(1 + count) over the known keys of each query, on every scale; 0 without any."""
        out = np.empty((len(time), len(self.scale)))
        blocks.mean_activity(*self._arrays(), self.find(key), np.ascontiguousarray(time), out)
        return out


class SumLists(BlockLists):
    """Decayed sums of values by key: each event adds its values times exp(-age / scale).

    `running` are the sums of a group just after each entry. `latest` is the mean of the values at the group's last
    instant up to each entry, so the order of simultaneous events is irrelevant. `same` says whether all values of the
    group up to each entry are equal: their mean is then the latest value, exactly, and the ratio of two sums is not.
    """

    columns = ("time", "running", "latest", "same")
    running: np.ndarray
    latest: np.ndarray
    same: np.ndarray

    def __init__(
        self,
        width: int,
        scale: Float64[np.ndarray, "s"],
        slots: KeySlots | None = None,
        is_growing: bool = False,
    ) -> None:
        check_scales(scale)
        self.scale = scale
        kinds = ((np.float64, shape) for shape in ((), (len(scale), width), (width,)))
        super().__init__(*kinds, (np.bool_, (width,)), slots=slots, is_growing=is_growing)

    def append(
        self, key: Int64[np.ndarray, "a"], time: Float64[np.ndarray, "a"], value: Float64[np.ndarray, "a c"]
    ) -> None:
        """Append events in time order, none earlier than the key's last one."""
        self.extend(blocks.append_sums, (self.scale,), self.insert(key), time, value)

    def look_up(
        self, key: Int64[np.ndarray, "q"], time: Float64[np.ndarray, "q"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return, strictly before each time, the sums just after the last entry, the decay since, and latest values.

        The last part says whether all values are equal: [q s c], [q s], [q c] and [q c]. All are 0 for a key without an
        earlier entry. A decayed mean is the ratio of two sums, in which the decay since the last entry cancels.
        """
        entry = self.find_last(key, time)
        age = time - self.read("time", entry, -np.inf)
        decay = np.exp(-age[:, None] / self.scale)
        running, latest, same = (self.read(name, entry, 0) for name in ("running", "latest", "same"))
        return running, decay, latest, same
