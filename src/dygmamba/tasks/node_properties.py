"""Node property prediction of TGB: at a time, how a node's interactions will be distributed over classes ("kinds").

A forecast for a time knows only the labels of strictly earlier times. The score of a time is the mean NDCG@10 over its
nodes, the score of a period the mean over its times. As in TGB's loaders, a time belongs to the first period that has
an event after it.

Legend: m labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dygmamba.core.errors import EventError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.leaderboard import Leaderboard, LeaderboardLabels

NDCG_TOP = 10
AVERAGE_WINDOW = 7  # labels of the moving average, as in TGB
NUMBERS_PER_PASS = 1 << 22  # entries of a time's label matrix that are scored at once


def ndcg(score: np.ndarray, truth: np.ndarray, top: int = NDCG_TOP) -> np.ndarray:
    """Return the normalized discounted cumulative gain of each row (Jarvelin and Kekalainen 2002).

    Ties share their mean gain, as in scikit-learn; a row without any gain scores 0.
    """
    order = np.argsort(-score, axis=1, kind="stable")
    ranked, gain = np.take_along_axis(score, order, 1), np.take_along_axis(truth, order, 1)
    first = np.ones(ranked.shape, bool)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    group = np.cumsum(first.ravel()) - 1
    mean = np.bincount(group, gain.ravel()) / np.bincount(group)
    discount = 1 / np.log2(np.arange(2, 2 + min(top, score.shape[1])))
    gained = mean[group].reshape(gain.shape)[:, :top] @ discount
    best = -np.sort(-truth, axis=1)[:, :top] @ discount
    return np.divide(gained, best, out=np.zeros(len(score)), where=best > 0)


@runtime_checkable
class PropertyForecast(Protocol):
    """A forecast of the label matrix of some nodes (rows) at the current time."""

    def advance(self, time: float) -> None:
        """Go on to a time; events strictly before it may be observed."""
        ...

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return a score per node and kind."""
        ...

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        """Observe the labels of the current time."""
        ...


class PersistentForecast:
    """Forecast of TGB's `PersistentForecaster`: the node's last label."""

    def __init__(self, nodes: int, kinds: int) -> None:
        require_memory(8 * nodes * kinds, f"the last labels of {nodes:,} nodes among {kinds:,} kinds")
        self.state = np.zeros((nodes, kinds))

    def advance(self, time: float) -> None:
        """Do nothing: only labels count."""

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return self.state[rows]

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        self.state[rows] = truth


class MovingAverageForecast(PersistentForecast):
    """Forecast of TGB's `MovingAverage`: a mean of the node's labels in which each new one weighs a seventh."""

    def __init__(self, nodes: int, kinds: int) -> None:
        super().__init__(nodes, kinds)
        self.known = np.zeros(nodes, bool)

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        mean = (self.state[rows] * (AVERAGE_WINDOW - 1) + truth) / AVERAGE_WINDOW
        self.state[rows] = np.where(self.known[rows, None], mean, truth)  # the first label counts in full
        self.known[rows] = True


FORECASTS: dict[str, type[PersistentForecast]] = {
    "persistent": PersistentForecast,
    "moving-average": MovingAverageForecast,
}


@dataclass(frozen=True, slots=True)
class NodePropertyLabels:
    """Labels of a stream by time; each labelled node has a row and each kind a column of the label matrices."""

    labels: LeaderboardLabels
    row: np.ndarray  # [m]
    column: np.ndarray  # [m]
    nodes: int
    kinds: int
    ends: tuple[float, float, float]  # time of the last event of each period
    kind_nodes: np.ndarray  # node of each column

    @staticmethod
    def from_board(store: EventStore, board: Leaderboard) -> "NodePropertyLabels":
        """Read the labels of a leaderboard; the kinds are the destinations of a bipartite stream, else all nodes."""
        if board.labels is None:
            raise EventError(
                "the dataset has no node labels to predict; import the folder of a tgbn dataset with its labels",
                code="no-node-labels",
            )
        kinds = store.dst.unique().numpy() if store.bipartite else np.arange(store.num_nodes)
        column = np.zeros(store.num_nodes, np.int64)
        column[kinds] = np.arange(len(kinds))
        nodes, row = np.unique(board.labels.node.numpy(), return_inverse=True)
        last = np.cumsum(board.sizes) - 1
        ends = (float(store.time[last[0]]), float(store.time[last[1]]), float(store.time[last[2]]))
        return NodePropertyLabels(
            board.labels, row, column[board.labels.kind.numpy()], len(nodes), len(kinds), ends, kinds
        )

    def period(self, time: float) -> str | None:
        """Return the first period with an event after `time`, or None."""
        later = [name for name, end in zip(("train", "val", "test"), self.ends, strict=True) if time < end]
        return later[0] if later else None

    def moments(self) -> Iterator[tuple[str | None, float, np.ndarray, np.ndarray]]:
        """Iterate over the times: period, time, rows of the labelled nodes, and their label matrix."""
        time, weight = self.labels.time.numpy(), self.labels.weight.numpy()
        starts = np.flatnonzero(np.diff(time, prepend=np.nan) != 0)
        for begin, end in zip(starts, [*starts[1:], len(time)], strict=True):
            rows, own = np.unique(self.row[begin:end], return_inverse=True)
            truth = np.zeros((len(rows), self.kinds))
            truth[own, self.column[begin:end]] = weight[begin:end]  # the last of several labels holds
            yield self.period(float(time[begin])), float(time[begin]), rows, truth

    def score_forecast(self, forecast: PropertyForecast) -> dict[str, list[tuple[float, int]]]:
        """Return (mean NDCG, nodes) of each time by period; the forecast learns each time after it is scored."""
        scored: dict[str, list[tuple[float, int]]] = {"train": [], "val": [], "test": []}
        for period, time, rows, truth in self.moments():
            if period is None:
                continue
            forecast.advance(time)
            parts = split_rows(rows, self.kinds)
            scores = np.concatenate([ndcg(forecast(rows[part]), truth[part]) for part in parts])
            forecast.learn(rows, truth)
            scored[period].append((float(scores.mean()), len(rows)))
        return scored


def split_rows(rows: np.ndarray, width: int) -> list[slice]:
    """Split rows of `width` numbers so that a part of them has at most `NUMBERS_PER_PASS` numbers."""
    step = max(1, NUMBERS_PER_PASS // max(1, width))
    return [slice(at, at + step) for at in range(0, len(rows), step)]
