"""A growing hash map from 64-bit keys to dense slots 0, 1, 2, ... in order of insertion; works on whole arrays."""

import numpy as np
from jaxtyping import Int64

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.hash_map import reference

HASH_MAP = Dispatch(reference, cpu=("cpu",))


class HashMap:
    """Map from keys to slots: `slots(keys)` looks up, `insert(keys)` also adds unknown keys."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._table: reference.Table | None = None  # created with the first keys

    def __len__(self) -> int:
        return 0 if self._table is None else len(self._table)

    def insert(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key; new keys get the next free slots. Keys are >= 0."""
        return self._current_table().insert(keys)

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key, -1 for an unknown key."""
        return self._current_table().slots(keys)

    def keys(self) -> Int64[np.ndarray, "k"]:
        """Return all keys in the order of their slots."""
        return self._current_table().keys()

    def _current_table(self) -> reference.Table:
        """Return the table of the implementation in use; a copy of the old one where that has changed."""
        old, table_type = self._table, HASH_MAP.pick("cpu").Table
        if old is not None and type(old) is table_type:
            return old
        self._table = table = table_type(max(len(self), self._capacity))
        if old is not None:
            table.insert(old.keys())  # in slot order, so every key keeps its slot
        return table
