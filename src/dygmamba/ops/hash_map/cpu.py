"""The hash map in Numba: linear probing with multiplicative hashing; -1 marks a free place."""

import numpy as np

from dygmamba.ops.numba_kernels import inlined, kernel


class Table:
    """Open-addressing table, at most half full; the methods are those of `HashMap`."""

    def __init__(self, capacity: int) -> None:
        self._keys = np.full(1 << max(4, int(2 * capacity - 1).bit_length()), -1, np.int64)
        self._slots = np.empty(len(self._keys), np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def keys(self) -> np.ndarray:
        known, taken = np.empty(self._size, np.int64), self._keys != -1
        known[self._slots[taken]] = self._keys[taken]
        return known

    def insert(self, keys: np.ndarray) -> np.ndarray:
        while 2 * (self._size + len(keys)) > len(self._keys):
            self._keys, self._slots = grow(self._keys, self._slots)
        found = np.empty(len(keys), np.int64)
        self._size = insert(self._keys, self._slots, self._size, np.ascontiguousarray(keys), found)
        return found

    def slots(self, keys: np.ndarray) -> np.ndarray:
        found = np.empty(len(keys), np.int64)
        find(self._keys, self._slots, np.ascontiguousarray(keys), found)
        return found


@inlined(inline="always")
def _place(keys, key):
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & (keys.shape[0] - 1)
    while keys[at] != -1 and keys[at] != key:
        at = (at + 1) & (keys.shape[0] - 1)
    return at


@kernel()
def insert(keys, slots, size, new, found):
    """Add each key of `new`, write its slot to `found`, return the new size."""
    for i in range(new.shape[0]):
        at = _place(keys, new[i])
        if keys[at] == -1:
            keys[at] = new[i]
            slots[at] = size
            size += 1
        found[i] = slots[at]
    return size


@kernel()
def find(keys, slots, queries, found):
    """Write the slot of each queried key, or -1."""
    for i in range(queries.shape[0]):
        at = _place(keys, queries[i])
        found[i] = slots[at] if keys[at] != -1 else -1


@kernel()
def grow(keys, slots):
    """Return the map in a table twice as large."""
    new_keys = np.full(2 * keys.shape[0], -1, np.int64)
    new_slots = np.empty(2 * keys.shape[0], np.int64)
    for i in range(keys.shape[0]):
        if keys[i] != -1:
            at = _place(new_keys, keys[i])
            new_keys[at] = keys[i]
            new_slots[at] = slots[i]
    return new_keys, new_slots
