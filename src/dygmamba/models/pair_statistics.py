"""What has happened to each directed pair and each destination so far, updated event by event.

Legend: b events of a batch, k asked keys.
"""

import numpy as np
from jaxtyping import Float64, Int64

from dygmamba.data.events.event_store import EventBatch
from dygmamba.ops.hash_map import HashMap


class KeyStatistics:
    """First time, last time and number of events of every key seen."""

    def __init__(self) -> None:
        self._map = HashMap()
        self.first = np.zeros(0)
        self.last = np.zeros(0)
        self.count = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._map)

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Slot of each key, -1 where it was never seen."""
        return self._map.slots(keys)

    def insert(self, keys: Int64[np.ndarray, "b"]) -> Int64[np.ndarray, "b"]:
        """Slot of each key; new ones have count 0 until `add`."""
        slots = self._map.insert(keys)
        if len(self._map) > len(self.count):
            more = max(len(self._map), 2 * len(self.count)) - len(self.count)
            self.first = np.concatenate([self.first, np.full(more, np.inf)])
            self.last = np.concatenate([self.last, np.full(more, -np.inf)])
            self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        return slots

    def add(self, slots: Int64[np.ndarray, "b"], time: Float64[np.ndarray, "b"]) -> None:
        """One more event of each slot's key."""
        np.minimum.at(self.first, slots, time)
        np.maximum.at(self.last, slots, time)
        np.add.at(self.count, slots, 1)

    def last_seen(self, keys: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k"]:
        """Last time of each key, -inf where it was never seen."""
        slots = self.slots(keys)
        known = slots >= 0
        last = np.full(len(keys), -np.inf)
        last[known] = self.last[slots[known]]
        return last


def to_numpy(events: EventBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, destination and time of a batch as numpy arrays."""
    return events.src.cpu().numpy(), events.dst.cpu().numpy(), events.time.cpu().numpy()
