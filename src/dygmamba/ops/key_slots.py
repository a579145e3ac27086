"""A growing hash map from 64-bit keys to slots 0, 1, 2, ... in order of insertion; works on whole arrays.

It probes linearly with multiplicative hashing; -1 marks a free place, and at most half of the places are taken.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from dygmamba.ops.growing import LEAST_SPARE, Growing
from dygmamba.ops.numba_kernels import inlined, kernel

KEYS_PER_PART = 1 << 14


class KeySlots(Growing):
    """Map from keys to slots, in arrays that can be saved; keys are >= 0."""

    arrays: ClassVar[Mapping[str, str | None]] = {"table": None, "place": None}
    integers = ("count",)

    def __init__(self) -> None:
        self.table, self.place = np.full(LEAST_SPARE, -1, np.int64), np.zeros(LEAST_SPARE, np.int64)
        self.count = 0

    def insert(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key; new keys get the next slots."""
        keys, found = np.ascontiguousarray(keys), np.empty(len(keys), np.int64)
        for begin in range(0, len(keys), KEYS_PER_PART):  # the table grows as if all keys of a part were new
            part = slice(begin, begin + KEYS_PER_PART)
            while 2 * (self.count + len(keys[part])) > len(self.table):
                self.table, self.place = _grow(self.table, self.place)
            self.count = int(_insert(self.table, self.place, self.count, keys[part], found[part]))
        return found

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key, -1 for an unknown or a negative one."""
        found = np.empty(len(keys), np.int64)
        _find(self.table, self.place, np.ascontiguousarray(keys), found)
        return found

    def keys(self) -> Int64[np.ndarray, "k"]:
        """Return all keys in the order of their slots."""
        known, taken = np.empty(self.count, np.int64), self.table != -1
        known[self.place[taken]] = self.table[taken]
        return known


@inlined(inline="always")
def _locate(table, key):
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & (table.shape[0] - 1)
    while table[at] != -1 and table[at] != key:
        at = (at + 1) & (table.shape[0] - 1)
    return at


@kernel()
def _insert(table, place, count, new, found):
    """Add each key of `new`, write its slot to `found`, return the new number of keys."""
    for i in range(new.shape[0]):
        at = _locate(table, new[i])
        if table[at] == -1:
            table[at] = new[i]
            place[at] = count
            count += 1
        found[i] = place[at]
    return count


@kernel()
def _find(table, place, keys, found):
    """Write the slot of each key, or -1."""
    for i in range(keys.shape[0]):
        at = _locate(table, keys[i])
        found[i] = place[at] if table[at] != -1 else -1


@kernel()
def _grow(table, place):
    """Return the map in a table twice as large."""
    new_table = np.full(2 * table.shape[0], -1, np.int64)
    new_place = np.empty(2 * table.shape[0], np.int64)
    for i in range(table.shape[0]):
        if table[i] != -1:
            at = _locate(new_table, table[i])
            new_table[at] = table[i]
            new_place[at] = place[i]
    return new_table, new_place
