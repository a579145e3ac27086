"""EdgeBank, popularity and recency as published: memories that observe whole batches of events (decision 012).

They are used under `batch` visibility, which reproduces the published figures. Under `strict` visibility the same rules
look up every strictly earlier event (`heuristics.py`), as all other models do.

Legend: b events of a batch, k queried keys, p pairs.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch
from dygmamba.history.view import PairView
from dygmamba.models.base import DatasetFacts, Heuristic
from dygmamba.models.configs import EdgeBankConfig, NoConfig
from dygmamba.ops.key_slots import KeySlots


class KeyStatistics:
    """First time, last time and number of events of every key seen."""

    def __init__(self) -> None:
        self._map = KeySlots()
        self.first = np.zeros(0)
        self.last = np.zeros(0)
        self.count = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._map.count

    def slots(self, keys: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Return the slot of each key, -1 for an unknown key."""
        return self._map.slots(keys)

    def insert(self, keys: Int64[np.ndarray, "b"]) -> Int64[np.ndarray, "b"]:
        """Return the slot of each key; new keys have count 0 until `add`."""
        slots = self._map.insert(keys)
        if self._map.count > len(self.count):
            more = max(self._map.count, 2 * len(self.count)) - len(self.count)
            self.first = np.concatenate([self.first, np.full(more, np.inf)])
            self.last = np.concatenate([self.last, np.full(more, -np.inf)])
            self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        return slots

    def add(self, slots: Int64[np.ndarray, "b"], time: Float64[np.ndarray, "b"]) -> None:
        """Count one event for each slot."""
        np.minimum.at(self.first, slots, time)
        np.maximum.at(self.last, slots, time)
        np.add.at(self.count, slots, 1)

    def last_seen(self, keys: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k"]:
        """Return the last time of each key, -inf for an unknown key."""
        slots = self.slots(keys)
        known = slots >= 0
        last = np.full(len(keys), -np.inf)
        last[known] = self.last[slots[known]]
        return last


def to_numpy(events: EventBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return source, destination and time of a batch as numpy arrays."""
    return events.src.cpu().numpy(), events.dst.cpu().numpy(), events.time.cpu().numpy()


class EdgeHistory:
    """All observed events: statistics per pair, sorted timestamps, and the sum of the pairs' mean time gaps."""

    def __init__(self) -> None:
        self.pairs = KeyStatistics()
        self.events = 0
        self._times = np.zeros(1024)  # sorted; the capacity doubles when it is full
        self.gap_sum = 0.0

    def add(self, key: np.ndarray, time: np.ndarray) -> None:
        # only pairs of this batch change, so the sum over all pairs is updated, not recomputed
        slots = self.pairs.insert(key)
        touched = np.unique(slots)
        self.gap_sum -= self._mean_gaps(touched).sum()
        self.pairs.add(slots, time)
        self.gap_sum += self._mean_gaps(touched).sum()
        while self.events + len(time) > len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._times[self.events : self.events + len(time)] = time
        self.events += len(time)

    def _mean_gaps(self, slots: np.ndarray) -> np.ndarray:
        count = self.pairs.count[slots]
        repeated = slots[count > 1]
        return (self.pairs.last[repeated] - self.pairs.first[repeated]) / (self.pairs.count[repeated] - 1)

    def quantile(self, share: float) -> float:
        """Return numpy.quantile of all observed times; they are sorted, so only two of them are read."""
        place = share * (self.events - 1)
        low, part = int(place), place - int(place)
        a, b = self._times[low], self._times[min(low + 1, self.events - 1)]
        return float(b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part)

    @property
    def last(self) -> float:
        return float(self._times[self.events - 1])


def _unlimited(history: EdgeHistory, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return np.ones(len(slots), dtype=bool)


def _window(history: EdgeHistory, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return history.pairs.last[slots] >= history.quantile(1 - config.window)


def _repeat(history: EdgeHistory, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    """Return which pairs met within the last window.

    Its length is the mean time gap of a pair (0 for a pair with one event), averaged over all pairs.
    """
    return history.pairs.last[slots] >= history.last - history.gap_sum / len(history.pairs)


def _threshold(history: EdgeHistory, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return history.pairs.count[slots] >= history.events / len(history.pairs)


MEMORIES = {"unlimited": _unlimited, "window": _window, "repeat": _repeat, "threshold": _threshold}


class LaggingEdgeBank(Heuristic):
    """EdgeBank (Poursafaei et al., NeurIPS 2022): score 1 for a directed pair in memory, 0 otherwise."""

    def __init__(self, config: EdgeBankConfig, facts: DatasetFacts) -> None:
        self._config = config
        self._num_nodes = facts.num_nodes
        self._holds = MEMORIES[config.memory]
        self._history = EdgeHistory()

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        key = view.pairs.src.cpu().numpy() * self._num_nodes + view.pairs.dst.cpu().numpy()
        slots = self._history.pairs.slots(key)
        score = np.zeros(len(key), np.float32)
        known = np.flatnonzero(slots >= 0)
        if len(known):
            score[known] = self._holds(self._history, slots[known], self._config)
        return torch.from_numpy(score)

    def observe(self, events: EventBatch) -> None:
        src, dst, time = to_numpy(events)
        if len(src):
            self._history.add(src * self._num_nodes + dst, time)

    def reset(self) -> None:
        self._history = EdgeHistory()


class LaggingPopularity(Heuristic):
    """Number of events a destination has received so far."""

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self._count = np.zeros(facts.num_nodes, np.int64)

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        return torch.from_numpy(self._count[view.pairs.dst.cpu().numpy()].astype(np.float32))

    def observe(self, events: EventBatch) -> None:
        np.add.at(self._count, events.dst.cpu().numpy(), 1)

    def reset(self) -> None:
        self._count[:] = 0


class LaggingRecency(Heuristic):
    """Recency of the directed pair's last event; without one, recency of the last event the destination received."""

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self._num_nodes = facts.num_nodes
        self.reset()

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        src, dst = view.pairs.src.cpu().numpy(), view.pairs.dst.cpu().numpy()
        now = view.pairs.time.cpu().numpy()
        met = self._pairs.last_seen(src * self._num_nodes + dst)
        active = self._destination[dst]
        score = np.where(np.isfinite(met), 1 + 1 / (1 + now - met), 1 / (1 + now - active))
        return torch.from_numpy(score)

    def observe(self, events: EventBatch) -> None:
        src, dst, time = to_numpy(events)
        self._pairs.add(self._pairs.insert(src * self._num_nodes + dst), time)
        np.maximum.at(self._destination, dst, time)

    def reset(self) -> None:
        self._pairs = KeyStatistics()
        self._destination = np.full(self._num_nodes, -np.inf)
