"""Whom a true destination is ranked against: some destinations drawn for its event, or all there are.

Legend: m destinations of the stream, b events, c candidates.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.leaderboard import Leaderboard, Period
from dygmamba.tasks.metric_names import BOARD_CANDIDATES, DEFAULT_CANDIDATES


@runtime_checkable
class CandidateSet(Protocol):
    """Whom each of some events is ranked against."""

    @property
    def width(self) -> int:
        """The most candidates that an event can have."""
        ...

    @property
    def about(self) -> dict[str, Any]:
        """What a result row says of them."""
        ...

    def against(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """The candidates of some events, and which of them count: an event may have fewer than others."""
        ...


@dataclass(frozen=True, slots=True)
class SampledCandidates:
    """How candidates are chosen: `count` of them, None for all; never the event's own destination.

    A draw is a function of seed and event, without replacement, the same in any batch. `filtered` also leaves out the
    destinations of the source's other events of that time, as TGB's generator does.
    """

    store: EventStore
    pool: Int64[Tensor, "m"]
    count: int | None = DEFAULT_CANDIDATES
    seed: int = 0
    filtered: bool = False

    @staticmethod
    def of(store: EventStore, count: int | None, seed: int, filtered: bool = False) -> "SampledCandidates":
        """Among every destination of the stream."""
        pool = torch.unique(store.dst)
        if count is not None and count < 1:
            raise ConfigError(f"`candidates` must be at least 1 or 'all', got {count}")
        if len(pool) < 2:
            raise EventError("the stream has one destination; there is nothing to rank it against")
        return SampledCandidates(store, pool, count, seed, filtered)

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


@dataclass(frozen=True, slots=True)
class BoardCandidates:
    """The candidates that a scoreboard lists for each event of a period, as they stand there.

    One that is the event's own destination, as in lists that were drawn without a look, is level with it.
    """

    board: Leaderboard
    period: Period

    @staticmethod
    def of(board: Leaderboard, period: Period, events: Int64[Tensor, "k"]) -> "BoardCandidates":
        """Those of a period, if all of these events are in it."""
        if period not in board.negatives:
            raise ConfigError(
                f"the scoreboard '{board.name}' lists no candidates of {period}; choose `candidates` by a number"
            )
        first, count = board.first(period), len(board.negatives[period])
        if len(events) and not first <= int(events.min()) <= int(events.max()) < first + count:
            raise ConfigError(
                f"the {period} of this split is not the scoreboard's; train with `split='board'`, or choose "
                "`candidates` by a number"
            )
        return BoardCandidates(board, period)

    @property
    def width(self) -> int:
        """The longest list's."""
        start = self.board.negatives[self.period].start
        return int(start.diff().max()) if len(start) > 1 else 0

    @property
    def about(self) -> dict[str, Any]:
        """Whose lists they are."""
        return {
            "candidates": BOARD_CANDIDATES,
            "board": self.board.name,
            "candidate_seed": None,
            "filtered": False,
            "ties": "mean rank",
        }

    def against(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """The lists of some events, those that are shorter filled up."""
        lists = self.board.negatives[self.period]
        row = events - self.board.first(self.period)
        start, count = lists.start[row], lists.start[row + 1] - lists.start[row]
        place = torch.arange(self.width)
        counts = place < count[:, None]
        at = (start[:, None] + place).clamp(max=max(0, len(lists.node) - 1))
        node = lists.node[at].long() if len(lists.node) else torch.zeros(counts.shape, dtype=torch.int64)
        return node.masked_fill(~counts, 0), counts
