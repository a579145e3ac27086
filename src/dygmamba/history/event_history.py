"""Exact history of nodes, pairs and the whole stream: number of events, age of the last one, decayed number of events.

Every look-up takes the query time and sees strictly earlier events only, so heuristics read exactly what models read.

Legend: e events, p queries, s scales.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.history.counts import EventCounts
from dygmamba.history.table_request import TableRequest


@dataclass(frozen=True, slots=True)
class HistoryRequest(TableRequest):
    """Request for the history of nodes and pairs.

    Attributes:
        scale: Time scale of the decayed number of events.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ConfigError(
                f"a history request needs a time scale above 0; got {self.scale}", code="invalid-request"
            )

    @property
    def tokens(self) -> int:
        """Cost of one query in tokens of a sequence."""
        return 1

    def prepare(self, index: Any) -> Any:
        return EventHistory(index.counts((self.scale,)), index.totals)


@dataclass(frozen=True)
class StreamTotals:
    """Running totals over all events of a stream, looked up by the number of earlier events.

    No `slots`: cached_property needs a `__dict__`.
    """

    key: Int64[np.ndarray, "e"]  # of each event's directed pair
    time: Float64[np.ndarray, "e"]  # in order

    def count_earlier(self, time: Float64[np.ndarray, "p"]) -> Int64[np.ndarray, "p"]:
        """Return the number of events strictly before each time."""
        return np.searchsorted(self.time, time)

    def quantile(self, share: float, earlier: Int64[np.ndarray, "p"]) -> Float64[np.ndarray, "p"]:
        """Return numpy.quantile of the times of the first `earlier` events; -inf where there are none."""
        place = share * np.maximum(earlier - 1, 0)
        low = place.astype(np.int64)
        part, last = place - low, np.maximum(earlier - 1, 0)
        a, b = self.time[low], self.time[np.minimum(low + 1, last)]
        value = np.where(part >= 0.5, b - (b - a) * (1 - part), a + (b - a) * part)
        return np.where(earlier > 0, value, -np.inf)

    def last_time(self, earlier: Int64[np.ndarray, "p"]) -> Float64[np.ndarray, "p"]:
        """Return the time of the last of the first `earlier` events; -inf where there are none."""
        return np.where(earlier > 0, self.time[np.maximum(earlier - 1, 0)], -np.inf)

    def count_pairs(self, earlier: Int64[np.ndarray, "p"]) -> Int64[np.ndarray, "p"]:
        """Return the number of distinct pairs among the first `earlier` events."""
        return self._totals[0][earlier]

    def mean_repeat_gap(self, earlier: Int64[np.ndarray, "p"]) -> Float64[np.ndarray, "p"]:
        """Return the mean over all pairs of a pair's mean time gap (0 for one event) among the first events."""
        pairs, gaps = self._totals
        return gaps[earlier] / np.maximum(pairs[earlier], 1)

    @cached_property
    def _totals(self) -> tuple[Int64[np.ndarray, "e1"], Float64[np.ndarray, "e1"]]:
        """Numbers of distinct pairs, and sums over pairs of their mean gaps, after 0, 1, 2, ... events."""
        order = np.argsort(self.key, kind="stable")
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = self.key[order][1:] != self.key[order][:-1]
        begin = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
        repeats = np.arange(len(order)) - begin  # of the pair, before this event
        since_first = self.time[order] - self.time[order][begin]
        mean_gap = since_first / np.maximum(repeats, 1)
        # an event replaces its pair's mean gap by the new one
        change = np.zeros(len(order))
        change[order] = np.where(is_first, 0.0, mean_gap - np.where(is_first, 0.0, np.roll(mean_gap, 1)))
        new_pair = np.zeros(len(order), np.int64)
        new_pair[order] = is_first
        return np.append(0, new_pair.cumsum()), np.append(0.0, change.cumsum())


@dataclass(frozen=True, slots=True)
class EventHistory:
    """History of each key; the kinds of keys are those of `EventCounts.groups`.

    These are "node" and "pair" (in any role), "sent" (by a source), "received" (by a destination) and
    "directed_pair". Tensors are on the CPU.
    """

    counts: EventCounts
    totals: StreamTotals

    def number_and_age(
        self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> tuple[Int64[Tensor, "p"], Float64[Tensor, "p"]]:
        """Return the number of events of each key strictly before each time, and the age of the last (inf if none)."""
        number, age = self.counts.groups[kind].find_number_and_age(key.numpy(), time.numpy())
        return torch.from_numpy(number), torch.from_numpy(np.where(age < 0, np.inf, age))

    def decayed_number(
        self, kind: str, key: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float64[Tensor, "p"]:
        """Return the decayed number of events of each key strictly before each time."""
        return torch.from_numpy(self.counts.groups[kind].count_before(key.numpy(), time.numpy())[:, 0])
