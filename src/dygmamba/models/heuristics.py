"""Scores without training: EdgeBank, popularity and recency of pairs and nodes, looked up for each query.

A look-up sees every event strictly before the query, which is what any other model sees. The published form of
EdgeBank, which is told of events in batches of 200, is in `lagging_heuristics.py`.

Legend: p pairs, e training pairs.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.history.association_rules import AssociationRequest
from dygmamba.history.block_lists import directed_key, pair_key
from dygmamba.history.event_history import EventHistory, HistoryRequest, StreamTotals
from dygmamba.history.view import LabelledView, PairView
from dygmamba.models.base import DatasetFacts, Heuristic
from dygmamba.models.configs import EdgeBankConfig, NoConfig
from dygmamba.nn.logistic import fit_logistic

POPULARITY_SCALE = 1e-3  # time scale of decayed popularity, as a share of the training period
LOG_OF_NONE = -1e3  # below the logarithm of any positive number


class HistoryRule(Heuristic):
    """Base class of heuristics that look up the history of a pair and its nodes; there is no memory."""

    stateful = False

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        self.request = HistoryRequest(POPULARITY_SCALE * facts.period)
        self.requests = (self.request,)


class PairQueries:
    """The pairs of a view, with the number and the age of the last event of their nodes and of the pair."""

    def __init__(self, view: PairView, request: HistoryRequest) -> None:
        self.history: EventHistory = view[request]
        self.src, self.dst = view.pairs.src.cpu(), view.pairs.dst.cpu()
        self.time = view.pairs.table_time.cpu()  # events before it are visible
        self.now = view.pairs.time.cpu()

    def number(self, kind: str, key: Int64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        return self.history.number_and_age(kind, key, self.time)[0]

    def age(self, kind: str, key: Int64[Tensor, "p"]) -> Float64[Tensor, "p"]:
        """Return the age of the key's last event at the query time, infinity without one."""
        return self.history.number_and_age(kind, key, self.time)[1] + (self.now - self.time)

    @property
    def directed_pair(self) -> Int64[Tensor, "p"]:
        """Keys of the directed pairs."""
        return directed_key(self.src, self.dst)

    @property
    def pair(self) -> Int64[Tensor, "p"]:
        """Keys of the pairs regardless of direction."""
        return pair_key(self.src, self.dst, torch)


def _recency(age: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
    """Return 1 / (1 + age), 0 without an event."""
    return 1 / (1 + age)


def _first_known(first: Float64[Tensor, "p"], second: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
    """Rank by the first age where there is one, before all pairs that have only the second."""
    return torch.where(torch.isfinite(first), 1 + _recency(first), _recency(second))


class EdgeBank(HistoryRule):
    """EdgeBank (Poursafaei et al., NeurIPS 2022): score 1 for a directed pair in memory, 0 otherwise."""

    def __init__(self, config: EdgeBankConfig, facts: DatasetFacts) -> None:
        super().__init__(NoConfig(), facts)
        self._config = config

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        number, age = queries.history.number_and_age("directed_pair", queries.directed_pair, queries.time)
        totals, time = queries.history.totals, queries.time.numpy()
        bound = {"unlimited": _no_bound, "window": self._window, "repeat": _repeat_window}
        if self._config.memory == "threshold":
            earlier = totals.count_earlier(time)
            held = number.numpy() >= earlier / np.maximum(totals.count_pairs(earlier), 1)
        else:
            held = time - age.numpy() >= bound[self._config.memory](totals, time)
        return torch.from_numpy((held & (number.numpy() > 0)).astype(np.float32))

    def _window(self, totals: StreamTotals, time: np.ndarray) -> np.ndarray:
        """Return the begin of the window that holds the last share of the events."""
        return totals.quantile(1 - self._config.window, totals.count_earlier(time))


def _no_bound(totals: StreamTotals, time: np.ndarray) -> np.ndarray:
    return np.full(len(time), -np.inf)


def _repeat_window(totals: StreamTotals, time: np.ndarray) -> np.ndarray:
    """Return the begin of a window as long as the mean time gap of a pair (0 with one event), over all pairs."""
    earlier = totals.count_earlier(time)
    return totals.last_time(earlier) - totals.mean_repeat_gap(earlier)


class Popularity(HistoryRule):
    """Number of events a destination has received so far."""

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        return queries.number("received", queries.dst).double()


class DecayedPopularity(HistoryRule):
    """Log number of events a destination has received, each weighted by exp(-age / scale).

    The scale is a thousandth of the training period.
    """

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        number = queries.history.decayed_number("received", queries.dst, queries.time)
        # the logarithm keeps numbers apart that decay to almost nothing between the snapshots of a stream
        return number.log().clamp(min=LOG_OF_NONE)


class Recency(HistoryRule):
    """Recency of the directed pair's last event; without one, recency of the last event the destination received."""

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        return _first_known(
            queries.age("directed_pair", queries.directed_pair), queries.age("received", queries.dst)
        )


class PairRecency(HistoryRule):
    """Recency of the last event between the two nodes; without one, of the destination's last event in any role."""

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        return _first_known(queries.age("pair", queries.pair), queries.age("node", queries.dst))


class DestinationRecency(HistoryRule):
    """Recency of the destination's last event, sent or received."""

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        return _recency(queries.age("node", queries.dst))


class SourceRecency(HistoryRule):
    """Recency of the source's last event, sent or received: which sources are active, regardless of the destination."""

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        return _recency(queries.age("node", queries.src))


class Association(HistoryRule):
    """Association rules: what most often followed the source's last ten destinations.

    The score is the best confidence over them (`history/association_rules.py`). Destinations that never followed any of
    them come after all others, by their number of events.
    """

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        super().__init__(config, facts)
        self.rules = AssociationRequest()
        self.requests = (self.request, self.rules)

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        queries = PairQueries(view, self.request)
        ends = (queries.src.numpy(), queries.dst.numpy(), queries.time.numpy())
        confidence = torch.from_numpy(view[self.rules].find_best_confidence(*ends))
        popularity = queries.number("received", queries.dst).double()
        return torch.where(confidence > 0, 1 + confidence, popularity / (1 + popularity))


class RecencyRegression(HistoryRule):
    """Logistic regression on two ages: of the pair's last event and of the destination's last event, in any role.

    The logit is bias - w1 log(1 + pair age / gap) - w2 log(1 + destination age / gap), where gap is the median time gap
    of a node. Without an event the age is the time since the stream began plus the training period. `fit` sets the
    weights; before, both are 1.
    """

    def __init__(self, config: NoConfig, facts: DatasetFacts) -> None:
        super().__init__(config, facts)
        self._gap, self._begin, self._period = facts.node_gap, facts.start, facts.period
        self._weight, self._is_fitted = torch.tensor([-1.0, -1.0, 0.0], dtype=torch.float64), False

    def __call__(self, view: PairView) -> Float[Tensor, "p"]:
        return self._features(view) @ self._weight

    @property
    def is_fitted(self) -> bool:
        return self._is_fitted

    def fit(self, queries: LabelledView) -> None:
        """Fit the weights to labelled training pairs, each with strictly earlier training events."""
        self._weight = fit_logistic(self._features(queries.view), queries.pairs.label.cpu().double())
        self._is_fitted = True

    def _features(self, view: PairView) -> Float64[Tensor, "p 3"]:
        queries = PairQueries(view, self.request)
        never = (queries.now - self._begin).clamp(min=0) + self._period
        ages = queries.age("pair", queries.pair), queries.age("node", queries.dst)
        columns = [torch.log1p(torch.where(torch.isfinite(age), age, never) / self._gap) for age in ages]
        return torch.stack([*columns, torch.ones_like(never)], dim=1)
