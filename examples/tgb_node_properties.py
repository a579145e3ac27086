"""Forecast the node properties of TGB (tgbn-trade, tgbn-genre, ...): how a node's events are shared among classes.

Run it with `python examples/tgb_node_properties.py`. It reads FOLDER, as TGB publishes it; if there is no such folder,
it first writes a small one whose users keep their tastes. At each label time a forecast knows the labels of earlier
times and the events before it. The score of a time is the mean NDCG@10 over its nodes, the score of a period the mean
over its times; as in TGB's loaders, a time belongs to the first period that has an event after it.

Three forecasts are compared: TGB's baselines `persistent` (the node's last label) and `moving-average`, and a linear
state space. It has a bank of states for each node and class: a label state follows h <- a h + (1 - a) y at each label y
of the node (a = 0 is the persistent forecast, a = 6/7 the moving average), an event state is the node's share of
earlier events, or of their weights, each counted exp(-age / scale), and the last state is the mean label of all nodes.
Its weights minimise the squared error of the training labels; on validation it competes with its two special cases.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

import dygmamba as dm

FOLDER = Path("tgbn-genre")
PERIODS = ("train", "val", "test")
TOP = 10
AVERAGE_DECAY = 6 / 7  # of TGB's moving average over seven labels
LABEL_DECAYS = (0.0, 0.5, AVERAGE_DECAY, 0.96)
EVENT_SPANS = (1.0, 4.0)  # time scales of event states, in median gaps between label times
MEAN_DECAY = 0.9  # of the mean label of all nodes
STATES = len(LABEL_DECAYS) + 2 * len(EVENT_SPANS) + 1
RIDGE = 1e-3  # added to the mean square of each state


def ndcg(score: np.ndarray, truth: np.ndarray, top: int = TOP) -> np.ndarray:
    """Return the normalized discounted cumulative gain of each row; ties share their mean gain, as in scikit-learn."""
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


@dataclass(frozen=True)
class Labels:
    """Labels in the order of time; each labelled node has a row and each class a column of the label matrices."""

    time: np.ndarray
    row: np.ndarray
    column: np.ndarray
    weight: np.ndarray
    row_nodes: np.ndarray  # node of each row
    column_nodes: np.ndarray  # node of each column: the destinations of a bipartite stream, else all nodes
    period_ends: tuple[float, ...]  # time of the last event of each period

    def moments(self) -> Iterator[tuple[str, float, np.ndarray, np.ndarray]]:
        """Iterate over the label times: period, time, rows of the labelled nodes, and their label matrix."""
        starts = np.flatnonzero(np.diff(self.time, prepend=np.nan) != 0)
        for begin, end in zip(starts, [*starts[1:], len(self.time)], strict=True):
            time = float(self.time[begin])
            later = [name for name, last in zip(PERIODS, self.period_ends, strict=True) if time < last]
            if not later:  # no event shows what is true at this time
                return
            rows, own = np.unique(self.row[begin:end], return_inverse=True)
            truth = np.zeros((len(rows), len(self.column_nodes)))
            truth[own, self.column[begin:end]] = self.weight[begin:end]  # the last of several labels holds
            yield later[0], time, rows, truth


def read_labels(file: Path, data: dm.Dataset) -> Labels:
    """Read a file of labels: time, node, class, weight."""
    table = pa.csv.read_csv(
        file,
        pa.csv.ReadOptions(column_names=["time", "node", "class", "weight"], skip_rows=1),
        convert_options=pa.csv.ConvertOptions(column_types={"node": pa.string(), "class": pa.string()}),
    )
    store = data.store
    node, kind = (
        data.ids.to_node(table[name].combine_chunks(), side)
        for name, side in (("node", "src"), ("class", "dst"))
    )
    if min(node.min(), kind.min()) < 0:
        raise ValueError(f"{file} has a node without events; fetch the folder again")
    times, weight = (table[name].to_numpy().astype(float) for name in ("time", "weight"))
    order = np.lexsort((node, times))
    columns = store.dst.unique().numpy() if store.bipartite else np.arange(store.num_nodes)
    number = np.zeros(store.num_nodes, np.int64)
    number[columns] = np.arange(len(columns))
    rows, row = np.unique(node[order], return_inverse=True)
    events = store.time.numpy()
    # TGB splits at quantiles of time; an event at a quantile belongs to the earlier period
    counts = np.searchsorted(events, np.quantile(events, [0.7, 0.85]), side="right")
    ends = tuple(float(events[count - 1]) for count in (*counts, len(events)))
    return Labels(times[order], row, number[kind[order]], weight[order], rows, columns, ends)


class PersistentForecast:
    """TGB's `PersistentForecaster`: the last label of a node."""

    def __init__(self, labels: Labels) -> None:
        self.state = np.zeros((len(labels.row_nodes), len(labels.column_nodes)))

    def advance(self, time: float) -> None:
        """Do nothing: only labels count."""

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return self.state[rows]

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        self.state[rows] = truth


class MovingAverageForecast(PersistentForecast):
    """TGB's `MovingAverage`: a mean of a node's labels in which each new one weighs a seventh."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self.known = np.zeros(len(labels.row_nodes), bool)

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        mean = AVERAGE_DECAY * self.state[rows] + (1 - AVERAGE_DECAY) * truth
        self.state[rows] = np.where(self.known[rows, None], mean, truth)  # the first label counts in full
        self.known[rows] = True


class StateSpaceForecast:
    """A weighted sum of states, each a number per node and class."""

    def __init__(self, labels: Labels, data: dm.Dataset, weights: np.ndarray) -> None:
        shape, store = (len(labels.row_nodes), len(labels.column_nodes)), data.store
        row, column = np.full(store.num_nodes, -1), np.full(store.num_nodes, -1)
        row[labels.row_nodes], column[labels.column_nodes] = np.arange(shape[0]), np.arange(shape[1])
        src, dst, edge = store.src.numpy(), store.dst.numpy(), store.features.edge.numpy()
        chosen = np.flatnonzero((row[src] >= 0) & (column[dst] >= 0))
        self.event_time, self.events = store.time.numpy()[chosen], (row[src[chosen]], column[dst[chosen]])
        has_weights = edge.shape[1] > 0 and (edge[chosen, 0] >= 0).all()
        self.event_weight = edge[chosen, 0].astype(float) if has_weights else np.ones(len(chosen))
        self.weights, self.span = weights, float(np.median(np.diff(np.unique(labels.time))))
        self.label_states = np.zeros((len(LABEL_DECAYS), *shape))
        self.event_states = np.zeros((2 * len(EVENT_SPANS), *shape))
        self.mean, self.known = np.zeros(shape[1]), np.zeros(shape[0], bool)
        self.time, self.seen = -np.inf, 0

    def advance(self, time: float) -> None:
        """Let the event states observe all events strictly before a time."""
        end = int(np.searchsorted(self.event_time, time, side="left"))
        new = slice(self.seen, end)
        for k, span in enumerate(EVENT_SPANS):
            scale = span * self.span
            count = np.exp(-(time - self.event_time[new]) / scale)
            self.event_states[2 * k : 2 * k + 2] *= np.exp(-(time - self.time) / scale)
            for state, amount in zip(
                self.event_states[2 * k : 2 * k + 2], (count, count * self.event_weight[new]), strict=True
            ):
                np.add.at(state, (self.events[0][new], self.events[1][new]), amount)
        self.time, self.seen = time, end

    def read_states(self, rows: np.ndarray) -> np.ndarray:
        """Return the states of some nodes, [rows, classes, states]; event states as shares of the node's events."""
        events = self.event_states[:, rows]
        total = events.sum(axis=2, keepdims=True)
        shares = np.divide(events, total, out=np.zeros_like(events), where=total > 0)
        mean = np.broadcast_to(self.mean, (1, len(rows), len(self.mean)))
        return np.moveaxis(np.concatenate([self.label_states[:, rows], shares, mean]), 0, 2)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return self.read_states(rows) @ self.weights

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        first = ~self.known[rows, None]
        for state, decay in zip(self.label_states, LABEL_DECAYS, strict=True):
            state[rows] = np.where(first, truth, decay * state[rows] + (1 - decay) * truth)
        self.known[rows] = True
        share = 1 - MEAN_DECAY if self.mean.any() else 1.0
        self.mean = (1 - share) * self.mean + share * truth.mean(axis=0)


Forecast = PersistentForecast | StateSpaceForecast


def score_forecast(forecast: Forecast, labels: Labels) -> dict[str, float]:
    """Return the NDCG of each period; the forecast learns the labels of a time after they are scored."""
    scores: dict[str, list[float]] = {period: [] for period in PERIODS}
    for period, time, rows, truth in labels.moments():
        forecast.advance(time)
        scores[period].append(float(ndcg(forecast(rows), truth).mean()))
        forecast.learn(rows, truth)
    return {period: float(np.mean(own)) for period, own in scores.items() if own}


def single_state(decay: float) -> np.ndarray:
    """Return the weights with which the state space is one of TGB's baselines."""
    weights = np.zeros(STATES)
    weights[LABEL_DECAYS.index(decay)] = 1.0
    return weights


def fit_state_space(labels: Labels, data: dm.Dataset) -> StateSpaceForecast:
    """Fit the weights to the training labels (ridge regression), and choose by the NDCG on validation."""
    forecast = StateSpaceForecast(labels, data, np.zeros(STATES))
    gram, moment = np.zeros((STATES, STATES)), np.zeros(STATES)
    for period, time, rows, truth in labels.moments():
        if period != "train":
            break
        forecast.advance(time)
        states = forecast.read_states(rows).reshape(-1, STATES)
        gram += states.T @ states
        moment += states.T @ truth.ravel()
        forecast.learn(rows, truth)
    ridge = RIDGE * np.trace(gram) / STATES + np.finfo(float).tiny
    fitted = np.linalg.solve(gram + ridge * np.eye(STATES), moment)
    candidates = (fitted, single_state(0.0), single_state(AVERAGE_DECAY))
    found = [score_forecast(StateSpaceForecast(labels, data, weights), labels) for weights in candidates]
    best = max(range(len(candidates)), key=lambda k: found[k].get("val", 0.0))
    return StateSpaceForecast(labels, data, candidates[best])


def write_folder(folder: Path, users: int = 12, classes: int = 15, weeks: int = 24) -> None:
    """Write a folder as TGB's: a label is the share of each class in the week after it."""
    rng, events, labels = np.random.default_rng(0), [], []
    taste = rng.dirichlet(np.full(classes, 0.4), users)
    for week in range(weeks):
        for user in range(users):
            drawn, count = np.unique(rng.choice(classes, 6, p=taste[user]), return_counts=True)
            for kind, number, day in zip(drawn, count, rng.integers(1, 7, len(drawn)), strict=True):
                events.append((10 * week + day, f"u{user},k{kind},{float(number)}"))
                labels += [f"{10 * week},u{user},k{kind},{number / 6}"] if week else []
    folder.mkdir()
    lines = [f"{time},{event}" for time, event in sorted(events, key=lambda event: event[0])]
    for name, body in (("edgelist", lines), ("node_labels", labels)):
        heading = "ts,user_id,genre,weight"
        (folder / f"tgbn-genre_{name}.csv").write_text("\n".join([heading, *body]) + "\n")


if __name__ == "__main__":
    if not FOLDER.exists():
        write_folder(FOLDER)
    data = dm.read(FOLDER)
    labels = read_labels(max(FOLDER.glob("*_node_labels*.csv")), data)  # of several, the latest version
    print(f"{data.name}: {len(labels.row_nodes)} labelled nodes, {len(labels.column_nodes)} classes")
    forecasts = {
        "persistent": PersistentForecast(labels),
        "moving-average": MovingAverageForecast(labels),
        "state-space": fit_state_space(labels, data),
    }
    for name, forecast in forecasts.items():
        scores = score_forecast(forecast, labels)
        print(f"{name:14}", "  ".join(f"{period} NDCG@10 {scores[period]:.4f}" for period in ("val", "test")))
