"""A growing map from 64-bit keys to dense slots 0, 1, 2, ... in order of arrival; whole arrays at a time."""

import numpy as np
from jaxtyping import Int64

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.hash_map import reference

HASH_MAP = Dispatch(__name__, {"cpu": ("cpu",)})


class HashMap:
    """Array in, array out: `slots(keys)` looks up, `insert(keys)` also adds the unknown ones."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._table: reference.Table | None = None  # made when there are keys

    def __len__(self) -> int:
        return 0 if self._table is None else len(self._table)

    def insert(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Slot of each key, giving new keys the next free slots; keys are >= 0."""
        return self._in_use().insert(keys)

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Slot of each key, -1 where it is unknown."""
        return self._in_use().slots(keys)

    def keys(self) -> Int64[np.ndarray, "k"]:
        """All keys, in the order of their slots."""
        return self._in_use().keys()

    def _in_use(self) -> reference.Table:
        """The table in the form that computes now; where that has changed, the same keys in the same slots."""
        before, form = self._table, HASH_MAP["cpu"].Table
        if before is not None and type(before) is form:
            return before
        self._table = table = form(max(len(self), self._capacity))
        if before is not None:
            table.insert(before.keys())
        return table
