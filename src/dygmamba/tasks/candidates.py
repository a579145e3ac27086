"""Candidate destinations against which a true destination is ranked: sampled, all, or listed by a leaderboard.

Legend: m destinations of the stream, n nodes, k events, b events of a batch, c candidates.
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
from dygmamba.history.negatives import FirstEvents
from dygmamba.tasks.metric_names import BOARD_CANDIDATES, DEFAULT_CANDIDATES, EARLIER_EVENTS, WHOLE_STREAM


@runtime_checkable
class CandidateSet(Protocol):
    """Candidates against which events are ranked."""

    @property
    def width(self) -> int:
        """Largest number of candidates of an event."""
        ...

    @property
    def about(self) -> dict[str, Any]:
        """Fields of a result row that describe the candidates."""
        ...

    def for_events(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """Return the candidates of these events and a mask that is False at padding."""
        ...


@dataclass(frozen=True, slots=True)
class SampledCandidates:
    """Candidates sampled among all destinations, or those of earlier events, never the event's own destination.

    Samples are without replacement and a function of (seed, event), so they are the same in any batch.

    Attributes:
        store: Events of the stream.
        pool: Distinct destinations: sorted, or in the order of their first events if only earlier ones are candidates.
        position: Position of each node in the pool; -1 for nodes that are not in it.
        first: First events of the destinations if only earlier ones are candidates.
        count: Candidates per event, fewer if the stream has fewer destinations; None for all of them.
        seed: Seed of the samples.
        filtered: Also leave out destinations of the source's other events at the same time, as TGB's generator does.
    """

    store: EventStore
    pool: Int64[Tensor, "m"]
    position: Int64[Tensor, "n"]
    first: FirstEvents | None = None
    count: int | None = DEFAULT_CANDIDATES
    seed: int = 0
    filtered: bool = False

    @staticmethod
    def create(
        store: EventStore,
        count: int | None,
        seed: int,
        filtered: bool = False,
        earlier_than: Int64[Tensor, "k"] | None = None,
    ) -> "SampledCandidates":
        """Create the candidates of a stream.

        Args:
            store: Events of the stream.
            count: Candidates per event; None for all.
            seed: Seed of the samples.
            filtered: Leave out other true destinations of the source at that time.
            earlier_than: Events that are ranked, if each is to be ranked among destinations of strictly earlier events;
                by default all destinations of the stream are candidates.
        """
        first = None
        if earlier_than is not None:
            known = slice(int(earlier_than.max()) + 1 if len(earlier_than) else 0)
            first = FirstEvents.find(store.dst[known], store.time[known])
        pool = torch.unique(store.dst) if first is None else torch.from_numpy(first.node)
        if count is not None and count < 1:
            raise ConfigError(
                f"`candidates` must be at least 1 or 'all'; got {count}", code="unknown-candidates"
            )
        if len(pool) < 2:
            raise EventError(
                "the stream has only one destination, so there is nothing to rank it against; use another stream",
                code="one-destination",
            )
        position = torch.full((store.num_nodes,), -1)
        position[pool] = torch.arange(len(pool))
        return SampledCandidates(store, pool, position, first, count, seed, filtered)

    @property
    def width(self) -> int:
        others = len(self.pool) - 1
        return others if self.count is None else min(self.count, others)

    @property
    def about(self) -> dict[str, Any]:
        # as many as there are: a stream of 7 destinations has 6 candidates, however many were asked for
        count = {"candidates": "all" if self.count is None else self.width}
        seed = {"candidate_seed": None if self.count is None else self.seed}
        drawn_from = {"drawn_from": WHOLE_STREAM if self.first is None else EARLIER_EVENTS}
        return count | seed | {"filtered": self.filtered, "ties": "mean rank"} | drawn_from

    def for_events(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        shape = (len(events), self.width)
        node, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        for row, event in enumerate(events.tolist()):
            chosen = self.pool[self._sample_positions(event)]
            node[row, : len(chosen)], mask[row, : len(chosen)] = chosen, True
        return node, mask

    def _sample_positions(self, event: int) -> Tensor:
        size = len(self.pool if self.first is None else self.first.take_before(float(self.store.time[event])))
        banned = np.sort(self.position[self._true_destinations(event)].numpy())
        banned = banned[banned < size]
        free = size - len(banned)
        if self.count is None or self.count >= free:
            rank = np.arange(free)
        else:
            rng = np.random.default_rng([self.seed % 2**64, event])
            rank = rng.choice(free, self.count, replace=False)
        # the rank-th position that is not banned
        return torch.from_numpy(rank + np.searchsorted(banned - np.arange(len(banned)), rank, side="right"))

    def _true_destinations(self, event: int) -> Int64[Tensor, "_"]:
        """Return the destinations that are not candidates of an event, distinct and sorted."""
        store = self.store
        if not self.filtered:
            return store.dst[event : event + 1]
        low = int(torch.searchsorted(store.time, store.time[event]))
        high = int(torch.searchsorted(store.time, store.time[event], side="right"))
        same = store.src[low:high] == store.src[event]
        return torch.unique(store.dst[low:high][same])


@dataclass(frozen=True, slots=True)
class BoardCandidates:
    """Candidates that a leaderboard lists for each event of a period.

    Some published lists contain the event's own destination; it is kept and ties with the true one.
    """

    board: Leaderboard
    period: Period

    @staticmethod
    def create(board: Leaderboard, period: Period, events: Int64[Tensor, "k"]) -> "BoardCandidates":
        """Create the candidates of a period; raise ConfigError unless all these events belong to it."""
        if period not in board.negatives:
            raise ConfigError(
                f"the leaderboard '{board.name}' lists no candidates for {period}; set `candidates` to a number",
                code="no-board-candidates",
            )
        first, count = board.first(period), len(board.negatives[period])
        if len(events) and not first <= int(events.min()) <= int(events.max()) < first + count:
            raise ConfigError(
                f"the {period} period of this split is not the leaderboard's; train with `split='board'`, or set "
                "`candidates` to a number",
                code="not-the-board-split",
            )
        return BoardCandidates(board, period)

    @property
    def width(self) -> int:
        start = self.board.negatives[self.period].start
        return int(start.diff().max()) if len(start) > 1 else 0

    @property
    def about(self) -> dict[str, Any]:
        return {
            "candidates": BOARD_CANDIDATES,
            "board": self.board.name,
            "candidate_seed": None,
            "filtered": False,
            "ties": "mean rank",
        }

    def for_events(self, events: Int64[Tensor, "b"]) -> tuple[Int64[Tensor, "b c"], Bool[Tensor, "b c"]]:
        lists = self.board.negatives[self.period]
        row = events - self.board.first(self.period)
        start, count = lists.start[row], lists.start[row + 1] - lists.start[row]
        column = torch.arange(self.width)
        mask = column < count[:, None]
        at = (start[:, None] + column).clamp(max=max(0, len(lists.node) - 1))
        node = lists.node[at].long() if len(lists.node) else torch.zeros(mask.shape, dtype=torch.int64)
        return node.masked_fill(~mask, 0), mask
