"""Node properties, as TGB asks for them: at a moment, how a node's attention will divide among kinds.

A forecast of a moment knows the labels of strictly earlier ones. Each moment is judged by the mean NDCG@10 of its
nodes, a period by the mean over its moments; which period a moment is of follows from TGB's loaders: the first one that
has an event after it.

Legend: n nodes asked at a moment, c kinds, m labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dygmamba.core.errors import EventError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.leaderboard import Leaderboard, LeaderboardLabels

NDCG_TOP = 10
AVERAGE_WINDOW = 7  # labels that the moving average is over, as in TGB
NUMBERS_PER_PASS = 1 << 22  # numbers of a moment that are judged at once


def ndcg(score: np.ndarray, truth: np.ndarray, top: int = NDCG_TOP) -> np.ndarray:
    """The discounted gain of the first kinds over the best there is, one per row; ties share their mean gain.

    Jarvelin and Kekalainen 2002, ties as scikit-learn has them; 0 of a row that has nothing to find.
    """
    order = np.argsort(-score, axis=1, kind="stable")
    ranked, gain = np.take_along_axis(score, order, 1), np.take_along_axis(truth, order, 1)
    first = np.ones(ranked.shape, bool)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    group = np.cumsum(first.ravel()) - 1
    mean = np.bincount(group, gain.ravel()) / np.bincount(group)
    discount = 1 / np.log2(np.arange(2, 2 + min(top, score.shape[1])))
    found = mean[group].reshape(gain.shape)[:, :top] @ discount
    best = -np.sort(-truth, axis=1)[:, :top] @ discount
    return np.divide(found, best, out=np.zeros(len(score)), where=best > 0)


class PersistentForecast:
    """The last label of the node, as it was."""

    def __init__(self, nodes: int, kinds: int) -> None:
        require_memory(8 * nodes * kinds, f"the last labels of {nodes:,} nodes among {kinds:,} kinds")
        self.state = np.zeros((nodes, kinds))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """The last ones."""
        return self.state[rows]

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        """These are the last ones now."""
        self.state[rows] = truth


class MovingAverageForecast(PersistentForecast):
    """A mean of the node's labels in which each new one weighs a seventh, as TGB's `MovingAverage` has it."""

    def __init__(self, nodes: int, kinds: int) -> None:
        super().__init__(nodes, kinds)
        self.known = np.zeros(nodes, bool)

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        """A part of each; a first one whole."""
        mean = (self.state[rows] * (AVERAGE_WINDOW - 1) + truth) / AVERAGE_WINDOW
        self.state[rows] = np.where(self.known[rows, None], mean, truth)
        self.known[rows] = True


FORECASTS: dict[str, type[PersistentForecast]] = {
    "persistent": PersistentForecast,
    "moving-average": MovingAverageForecast,
}


@dataclass(frozen=True, slots=True)
class NodePropertyLabels:
    """The labels of a stream in columns: which row a node has, which column a kind, and the moments in order."""

    labels: LeaderboardLabels
    row: np.ndarray  # [m]
    column: np.ndarray  # [m]
    nodes: int
    kinds: int
    ends: tuple[float, float, float]  # the last event of each period

    @staticmethod
    def of(store: EventStore, board: Leaderboard) -> "NodePropertyLabels":
        """Of a scoreboard that has labels: kinds are the destinations, or where nodes are of one sort all of them."""
        if board.labels is None:
            raise EventError(
                "the dataset has no node labels to foresee; import a folder of a tgbn set with its labels"
            )
        every = store.dst.unique().numpy() if store.bipartite else np.arange(store.num_nodes)
        place = np.zeros(store.num_nodes, np.int64)
        place[every] = np.arange(len(every))
        asked, row = np.unique(board.labels.node.numpy(), return_inverse=True)
        last = np.cumsum(board.sizes) - 1
        ends = (float(store.time[last[0]]), float(store.time[last[1]]), float(store.time[last[2]]))
        return NodePropertyLabels(
            board.labels, row, place[board.labels.kind.numpy()], len(asked), len(every), ends
        )

    def period(self, time: float) -> str | None:
        """The first period that has an event after it."""
        later = [name for name, end in zip(("train", "val", "test"), self.ends, strict=True) if time < end]
        return later[0] if later else None

    def moments(self) -> Iterator[tuple[str | None, np.ndarray, np.ndarray]]:
        """Moment by moment, a part of its nodes at a time: the period, the rows, their labels."""
        time, weight = self.labels.time.numpy(), self.labels.weight.numpy()
        starts = np.flatnonzero(np.diff(time, prepend=np.nan) != 0)
        for begin, end in zip(starts, [*starts[1:], len(time)], strict=True):
            rows, own = np.unique(self.row[begin:end], return_inverse=True)
            truth = np.zeros((len(rows), self.kinds))
            truth[own, self.column[begin:end]] = weight[begin:end]  # of several the last one
            yield self.period(float(time[begin])), rows, truth

    def judged(self, forecast: PersistentForecast) -> dict[str, list[tuple[float, int]]]:
        """The mean NDCG of each moment and of how many nodes it is, by period; each is learned once it is judged."""
        found: dict[str, list[tuple[float, int]]] = {"train": [], "val": [], "test": []}
        step = max(1, NUMBERS_PER_PASS // max(1, self.kinds))
        for period, rows, truth in self.moments():
            if period is None:
                continue
            parts = [slice(at, at + step) for at in range(0, len(rows), step)]
            scores = np.concatenate([ndcg(forecast(rows[part]), truth[part]) for part in parts])
            forecast.learn(rows, truth)
            found[period].append((float(scores.mean()), len(rows)))
        return found
