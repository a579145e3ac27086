"""Reference of the hash map: a dictionary."""

import numpy as np


class Table:
    """Slots by key; the methods are those of `HashMap`."""

    def __init__(self, capacity: int) -> None:
        self._slots: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def keys(self) -> np.ndarray:
        return np.fromiter(self._slots, np.int64)

    def insert(self, keys: np.ndarray) -> np.ndarray:
        return np.array([self._slots.setdefault(key, len(self._slots)) for key in keys.tolist()], np.int64)

    def slots(self, keys: np.ndarray) -> np.ndarray:
        return np.array([self._slots.get(key, -1) for key in keys.tolist()], np.int64)
