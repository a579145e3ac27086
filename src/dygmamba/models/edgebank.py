"""EdgeBank (Poursafaei et al., NeurIPS 2022): a pair is likely if memory holds it; no training.

What it has been told of is the walk's affair: strictly earlier cells of events, or as published (decision 023).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dygmamba.core.settings import Settings, Share
from dygmamba.data.events.event_store import EventBatch
from dygmamba.models.base import DatasetFacts, Heuristic, ModelSpec
from dygmamba.models.pair_statistics import KeyStatistics, to_numpy
from dygmamba.sampling.view import PairView


@dataclass(frozen=True, slots=True)
class EdgeBankConfig(Settings):
    """Which pairs memory keeps: all, those of a recent window, or those repeated often enough."""

    memory: Literal["unlimited", "window", "repeat", "threshold"] = (
        "unlimited"  # pairs that are kept: all, of a window, of one as long as repeats take, frequent ones
    )
    window: Share = 0.15  # share of the observed events the fixed window covers


class History:
    """Everything observed: statistics per pair, the sorted times, the sum of the pairs' mean repeat gaps."""

    def __init__(self) -> None:
        self.pairs = KeyStatistics()
        self.events = 0
        self._times = np.zeros(1024)  # sorted; doubled when full
        self.gap_sum = 0.0

    def add(self, key: np.ndarray, time: np.ndarray) -> None:
        """Take in a batch in time order."""
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
        """numpy.quantile of all observed times; they arrive sorted, so only two of them are read."""
        place = share * (self.events - 1)
        low, part = int(place), place - int(place)
        a, b = self._times[low], self._times[min(low + 1, self.events - 1)]
        return float(b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part)

    @property
    def last(self) -> float:
        """Latest time observed."""
        return float(self._times[self.events - 1])


def _unlimited(history: History, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return np.ones(len(slots), dtype=bool)


def _window(history: History, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return history.pairs.last[slots] >= history.quantile(1 - config.window)


def _repeat(history: History, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    """A window as long as the mean, over all pairs, of a pair's mean repeat gap (0 for a single event)."""
    return history.pairs.last[slots] >= history.last - history.gap_sum / len(history.pairs)


def _threshold(history: History, slots: np.ndarray, config: EdgeBankConfig) -> np.ndarray:
    return history.pairs.count[slots] >= history.events / len(history.pairs)


MEMORIES = {"unlimited": _unlimited, "window": _window, "repeat": _repeat, "threshold": _threshold}


class EdgeBank(Heuristic):
    """Score 1 for a directed pair in memory, 0 otherwise."""

    def __init__(self, config: EdgeBankConfig, facts: DatasetFacts) -> None:
        self._config = config
        self._num_nodes = facts.num_nodes
        self._holds = MEMORIES[config.memory]
        self._history = History()

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        """1.0 where memory holds the pair."""
        key = view.pairs.src.cpu().numpy() * self._num_nodes + view.pairs.dst.cpu().numpy()
        slots = self._history.pairs.slots(key)
        score = np.zeros(len(key), np.float32)
        known = np.flatnonzero(slots >= 0)
        if len(known):
            score[known] = self._holds(self._history, slots[known], self._config)
        return torch.from_numpy(score)

    def observe(self, events: EventBatch) -> None:
        """Remember a batch."""
        src, dst, time = to_numpy(events)
        if len(src):
            self._history.add(src * self._num_nodes + dst, time)

    def reset(self) -> None:
        """Forget everything."""
        self._history = History()


SPEC = ModelSpec(
    config=EdgeBankConfig,
    build=EdgeBank,
    trainable=False,
    title="EdgeBank (Poursafaei et al. 2022)",
    looks_at="whether the directed pair is in memory",
    cost="one look-up of the pair",
)
