"""A growing map from 64-bit keys to dense slots 0, 1, 2, ... in order of arrival.

The definition is a dictionary; the compiled form is an open-addressing table that takes whole arrays.
"""

import numpy as np
from jaxtyping import Int64


class KeyMap:
    """Array in, array out: `slots(keys)` looks up, `insert(keys)` also adds the unknown ones."""

    def __init__(self, capacity: int = 1024) -> None:
        self._keys = np.full(1 << max(4, int(2 * capacity - 1).bit_length()), -1, np.int64)
        self._slots = np.empty(len(self._keys), np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def insert(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Slot of each key, giving new keys the next free slots; keys are >= 0."""
        from dygmamba.ops.keymap import cpu

        while 2 * (self._size + len(keys)) > len(self._keys):
            self._keys, self._slots = cpu.grown(self._keys, self._slots)
        found = np.empty(len(keys), np.int64)
        self._size = cpu.insert(self._keys, self._slots, self._size, np.ascontiguousarray(keys), found)
        return found

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Slot of each key, -1 where it is unknown."""
        from dygmamba.ops.keymap import cpu

        found = np.empty(len(keys), np.int64)
        cpu.find(self._keys, self._slots, np.ascontiguousarray(keys), found)
        return found
