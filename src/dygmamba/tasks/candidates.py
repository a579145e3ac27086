"""Whom a true destination is ranked against: some destinations drawn for its event, or all there are.

Legend: m destinations of the stream, b events, c candidates.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.data.events import EventStore
from dygmamba.errors import ConfigError, EventError
from dygmamba.tasks.asked import SOME


@dataclass(frozen=True, slots=True)
class Candidates:
    """How candidates are chosen: `count` of them, None for all; never the event's own destination.

    A draw is a function of seed and event, without replacement, the same in any batch. `filtered` also leaves out the
    destinations of the source's other events of that time, as TGB's generator does.
    """

    store: EventStore
    pool: Int64[Tensor, "m"]
    count: int | None = SOME
    seed: int = 0
    filtered: bool = False

    @staticmethod
    def of(store: EventStore, count: int | None, seed: int, filtered: bool = False) -> "Candidates":
        """Among every destination of the stream."""
        pool = torch.unique(store.dst)
        if count is not None and count < 1:
            raise ConfigError(f"`candidates` must be at least 1 or 'all', got {count}")
        if len(pool) < 2:
            raise EventError("the stream has one destination; there is nothing to rank it against")
        return Candidates(store, pool, count, seed, filtered)

    @property
    def width(self) -> int:
        """The most candidates that an event can have."""
        others = len(self.pool) - 1
        return others if self.count is None else min(self.count, others)

    @property
    def about(self) -> dict[str, Any]:
        """What a result row says of them."""
        drawn = {"candidates": "all"} if self.count is None else {"candidates": self.count}
        seed = {"candidate_seed": None if self.count is None else self.seed}
        return drawn | seed | {"filtered": self.filtered, "ties": "mean rank"}

    def against(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """The candidates of some events, and which of them count: an event may have fewer than others."""
        shape = (len(events), self.width)
        node, counts = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        for row, event in enumerate(events.tolist()):
            chosen = self.pool[self._places(event)]
            node[row, : len(chosen)], counts[row, : len(chosen)] = chosen, True
        return node, counts

    def _places(self, event: int) -> Tensor:
        banned = torch.searchsorted(self.pool, self._true(event)).numpy()
        free = len(self.pool) - len(banned)
        if self.count is None or self.count >= free:
            rank = np.arange(free)
        else:
            rng = np.random.default_rng([self.seed % 2**64, event])
            rank = rng.choice(free, self.count, replace=False)
        # the rank-th place that is not banned
        return torch.from_numpy(rank + np.searchsorted(banned - np.arange(len(banned)), rank, side="right"))

    def _true(self, event: int) -> Int64[Tensor, "_"]:
        """The destinations that are no candidates of an event, each once and in order."""
        store = self.store
        if not self.filtered:
            return store.dst[event : event + 1]
        low = int(torch.searchsorted(store.time, store.time[event]))
        high = int(torch.searchsorted(store.time, store.time[event], side="right"))
        same = store.src[low:high] == store.src[event]
        return torch.unique(store.dst[low:high][same])
