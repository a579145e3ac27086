"""Linear state-space forecast of node properties: a weighted sum of states that labels and events drive.

For each node and kind there is a bank of states. A label state follows h <- a h + (1 - a) y at each label y of the node
and starts at its first label: a = 0 is the persistent forecast, a = 6/7 TGB's moving average. An event state is the
node's share of earlier events (and of their weights) with each kind, each event counted exp(-age / scale). A last state
is the mean label of all nodes, for nodes without a history. The forecast is linear in the states; its weights minimise
the squared error of the labels of the training period (ridge regression). On validation it competes with its two
special cases, and the best of the three by NDCG is used.

A forecast for a time knows the labels of strictly earlier times and strictly earlier events.

Legend: n nodes, c kinds, s states, r rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.event_store import EventStore
from dygmamba.tasks.node_properties import (
    AVERAGE_WINDOW,
    FORECASTS,
    NodePropertyLabels,
    PropertyForecast,
    ndcg,
    split_rows,
)

AVERAGE_DECAY = (AVERAGE_WINDOW - 1) / AVERAGE_WINDOW
LABEL_DECAYS = (0.0, 0.5, AVERAGE_DECAY, 0.96)
EVENT_SPANS = (1.0, 4.0)  # time scales of event states, in median gaps between label times
MEAN_DECAY = 0.9  # of the mean label of all nodes
RIDGE = 1e-3  # added to the mean square of each state


@dataclass(frozen=True, slots=True)
class PropertyEvents:
    """Events between labelled nodes (rows) and kinds (columns), in time order; `weight` is at least 0."""

    time: np.ndarray
    row: np.ndarray
    column: np.ndarray
    weight: np.ndarray

    @staticmethod
    def from_labels(store: EventStore, labels: NodePropertyLabels) -> "PropertyEvents":
        """Select the events of labelled sources; the weight is the first edge feature, or 1 if one is negative."""
        row, column = np.full(store.num_nodes, -1), np.full(store.num_nodes, -1)
        row[labels.labels.node.numpy()] = labels.row
        column[labels.kind_nodes] = np.arange(labels.kinds)
        src, dst, edge = store.src.numpy(), store.dst.numpy(), store.features.edge.numpy()
        chosen = np.flatnonzero((row[src] >= 0) & (column[dst] >= 0))
        weight = np.ones(len(chosen))
        if edge.shape[1] and (edge[chosen, 0] >= 0).all():
            weight = edge[chosen, 0].astype(np.float64)
        return PropertyEvents(store.time.numpy()[chosen], row[src[chosen]], column[dst[chosen]], weight)


class StateSpaceForecast:
    """A weighted sum of states; `weights` has one per state, in the order of `names`."""

    def __init__(self, labels: NodePropertyLabels, events: PropertyEvents, weights: np.ndarray) -> None:
        times = np.unique(labels.labels.time.numpy())
        self.span = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        self.events, self.weights, self.kinds = events, weights, labels.kinds
        size = (len(LABEL_DECAYS) + 2 * len(EVENT_SPANS)) * labels.nodes * labels.kinds
        require_memory(8 * size, f"the states of {labels.nodes:,} nodes among {labels.kinds:,} kinds")
        self.label_states = np.zeros((len(LABEL_DECAYS), labels.nodes, labels.kinds))
        self.event_states = np.zeros((2 * len(EVENT_SPANS), labels.nodes, labels.kinds))
        self.mean = np.zeros(labels.kinds)
        self.known = np.zeros(labels.nodes, bool)
        self.time, self._next = -np.inf, 0

    @staticmethod
    def names() -> list[str]:
        """Return a description of each state."""
        labels = [f"labels, decay {decay:.3g}" for decay in LABEL_DECAYS]
        events = [
            f"share of {what}, {span:g} periods" for span in EVENT_SPANS for what in ("events", "weight")
        ]
        return [*labels, *events, "mean label"]

    def advance(self, time: float) -> None:
        """Let the event states observe all events strictly before a time; times must not go back."""
        end = int(np.searchsorted(self.events.time, time, side="left"))
        new = slice(self._next, end)
        where = (self.events.row[new], self.events.column[new])
        for place, span in enumerate(EVENT_SPANS):
            scale = span * self.span
            decay = np.exp(-(time - self.time) / scale) if np.isfinite(self.time) else 0.0
            own = np.exp(-(time - self.events.time[new]) / scale)
            for k, amount in enumerate((own, own * self.events.weight[new])):
                state = self.event_states[2 * place + k]
                state *= decay
                np.add.at(state, where, amount)
        self.time, self._next = time, end

    def read_states(self, rows: np.ndarray) -> np.ndarray:
        """Return the states of some nodes: [r c s]; event states as shares of the node's events."""
        events = self.event_states[:, rows]
        total = events.sum(axis=2, keepdims=True)
        shares = np.divide(events, total, out=np.zeros_like(events), where=total > 0)
        mean = np.broadcast_to(self.mean, (1, len(rows), self.kinds))
        return np.moveaxis(np.concatenate([self.label_states[:, rows], shares, mean]), 0, 2)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return self.read_states(rows) @ self.weights

    def learn(self, rows: np.ndarray, truth: np.ndarray) -> None:
        """Update the label states with the labels of one time."""
        first = ~self.known[rows, None]
        for state, decay in zip(self.label_states, LABEL_DECAYS, strict=True):
            mixed = decay * state[rows] + (1 - decay) * truth
            state[rows] = np.where(first, truth, mixed)
        self.known[rows] = True
        seen = self.mean.any()
        self.mean = (
            MEAN_DECAY * self.mean + (1 - MEAN_DECAY) * truth.mean(axis=0) if seen else truth.mean(axis=0)
        )


SPECIAL_CASES = {"persistent": 0.0, "moving-average": AVERAGE_DECAY}


def special_weights(name: str) -> np.ndarray:
    """Return the weights with which the forecast is the persistent one or the moving average."""
    weights = np.zeros(len(StateSpaceForecast.names()))
    weights[LABEL_DECAYS.index(SPECIAL_CASES[name])] = 1.0
    return weights


def fit_state_space(
    store: EventStore, labels: NodePropertyLabels
) -> tuple[StateSpaceForecast, dict[str, Any]]:
    """Fit the weights on training labels and choose on validation.

    Returns:
        A forecast that has seen nothing yet, and what was chosen: `chosen` and, for the fit, `weights` by state.
    """
    events = PropertyEvents.from_labels(store, labels)
    size = len(StateSpaceForecast.names())
    forecast = StateSpaceForecast(labels, events, np.zeros(size))
    gram, moment = np.zeros((size, size)), np.zeros(size)
    candidates: dict[str, np.ndarray] = {}
    scores: dict[str, list[float]] = {}
    for period, time, rows, truth in labels.moments():
        if period not in ("train", "val"):
            break
        forecast.advance(time)
        if period == "val" and not candidates:
            candidates = _list_candidates(gram, moment)
        values = {name: [] for name in candidates}
        for part in split_rows(rows, labels.kinds * size):
            states = forecast.read_states(rows[part])
            if period == "train":
                flat = states.reshape(-1, size)
                gram += flat.T @ flat
                moment += flat.T @ truth[part].ravel()
            for name, weights in candidates.items():
                values[name].append(ndcg(states @ weights, truth[part]))
        for name, parts in values.items():
            scores.setdefault(name, []).append(float(np.concatenate(parts).mean()))
        forecast.learn(rows, truth)
    candidates = candidates or _list_candidates(gram, moment)
    chosen = max(candidates, key=lambda name: np.mean(scores[name]) if name in scores else 0.0)
    about: dict[str, Any] = {"chosen": chosen}
    if chosen == "fit":
        about["weights"] = dict(zip(StateSpaceForecast.names(), candidates[chosen].tolist(), strict=True))
    return StateSpaceForecast(labels, events, candidates[chosen]), about


def _list_candidates(gram: np.ndarray, moment: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fitted weights and those of the special cases, the fitted ones first."""
    ridge = RIDGE * np.trace(gram) / len(gram) + np.finfo(float).tiny
    fit = np.linalg.solve(gram + ridge * np.eye(len(gram)), moment)
    return {"fit": fit} | {name: special_weights(name) for name in SPECIAL_CASES}


def build_forecast(
    model: str, store: EventStore, labels: NodePropertyLabels
) -> tuple[PropertyForecast, dict[str, Any]]:
    """Build a forecast by name, and the fields of a result row that say what was fitted."""
    if model in FORECASTS:
        return FORECASTS[model](labels.nodes, labels.kinds), {}
    return fit_state_space(store, labels)
