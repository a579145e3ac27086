"""Proved upper bounds of AP and AUC on an evaluation set, and the posterior probability of a positive.

Three facts, proved in docs/research/findings.md:

- A function of the pair and the time scores equal queries equally. So no such function, not even one that has read the
  labels, separates a positive from a negative with the same source, destination and time (`bound_by_labels`).
- A score that does not depend on the drawn negatives has an expected AUC, over draws, of at most 1 minus the sum over
  pairs of queries of the smaller of the two expected numbers of comparisons that one order of them loses
  (`ExpectedBound`).
- AP <= 1 - (1 - AUC) N / (P + N) for P positives and N negatives, whatever the scores are.

Legend: p pairs, k events, q distinct queries, b batches, c classes of queries with equal draws.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, lgamma, log

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH

LEVEL = 0.01  # probability with which a draw of negatives may exceed `likely_auc`
MAX_PRODUCTS = 10**11  # multiplications for one group of batches; above, its batches are bounded one by one
ROWS = 512  # classes of queries that are compared with all others at once


@dataclass(frozen=True, slots=True)
class MetricBound:
    """Upper bound of AP and AUC: `ap` and `auc` as the mean over batches, the others over all pairs at once."""

    ap: float
    auc: float
    ap_pooled: float
    auc_pooled: float


def bound_by_labels(pairs: LabelledPairs, batch: int = PUBLISHED_BATCH) -> MetricBound:
    """Return bounds for every score that is a function of the pair and the time, the labels known.

    The means over batches allow another function in every batch.
    """
    query, positive = _number_queries(pairs), pairs.label.numpy() > 0
    number = pairs.group.numpy() // batch
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))[:-1]
    by_batch = [_bound_ranking(query[rows], positive[rows]) for rows in np.split(order, ends)]
    ap, auc = np.mean(by_batch, axis=0)
    return MetricBound(float(ap), float(auc), *_bound_ranking(query, positive))


def _number_queries(pairs: PairBatch) -> np.ndarray:
    return number_rows(pairs.src.numpy(), pairs.dst.numpy(), pairs.time.numpy())


def number_rows(*columns: np.ndarray) -> np.ndarray:
    """Return one number per distinct row of the columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        number = np.unique(number * len(values) + index, return_inverse=True)[1]
    return number


def _bound_ranking(query: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Return the bound of AP and the maximum of AUC if pairs with equal `query` have equal scores.

    Queries in the order of their share of positives need the fewest pairs for any number of positives.
    """
    index = np.unique(query, return_inverse=True)[1]
    hits = np.bincount(index, positive).astype(float)
    misses = np.bincount(index, ~positive).astype(float)
    order = np.argsort(-hits / (hits + misses), kind="stable")
    return _bound_ap(hits[order], misses[order]), _compute_auc(hits[order], misses[order])


def _bound_ap(hits: np.ndarray, misses: np.ndarray) -> float:
    """Return the mean over j of j / T(j), with T(j) the fewest pairs, in parts of queries, that hold j positives."""
    reached = np.arange(1, hits.sum() + 1)
    return float(np.mean(reached / (reached + _interpolate_misses(hits, misses, reached))))


def _interpolate_misses(hits: np.ndarray, misses: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Return the number of negatives, in parts of queries, above `reached` positives."""
    kept = hits > 0  # queries without positives come last
    return np.interp(reached, np.append(0, np.cumsum(hits[kept])), np.append(0, np.cumsum(misses[kept])))


def _compute_auc(hits: np.ndarray, misses: np.ndarray) -> float:
    """Return the AUC of queries in this order; positives and negatives of one query tie."""
    below = misses.sum() - np.cumsum(misses)
    return float((hits * (below + misses / 2)).sum() / (hits.sum() * misses.sum()))


@dataclass(frozen=True, slots=True)
class ExpectedBound:
    """Bounds for every score that is a function of the pair and the time and does not depend on the drawn negatives.

    Attributes:
        ap: Bound of the expected AP, mean over batches.
        auc: Bound of the expected AUC, mean over batches.
        likely_ap: AP that such a score exceeds in at most one draw of a hundred.
        likely_auc: AUC of that kind.
    """

    ap: float
    auc: float
    likely_ap: float
    likely_auc: float


@dataclass(frozen=True, slots=True)
class NegativeDraws:
    """The events of an evaluation set, and how often each is expected to be drawn as a negative.

    A draw of the random sampler is a destination, uniform among `choices`, for the source and the time of an event. The
    other samplers draw from a pool that excludes every pair of the batch's period; a batch for which the pool is too
    small is filled with pairs of a grid, uniform among those that are not positives of the batch.

    Attributes:
        src: Source of each event of the set.
        dst: Destination of each event.
        time: Time of each event.
        batch: Number of the batch of each event.
        choices: For each event, how many pairs its negative is drawn from; infinite if it cannot be an event.
        keeps_source: Whether a negative has the source of its event.
    """

    src: Int64[np.ndarray, "k"]
    dst: Int64[np.ndarray, "k"]
    time: Float64[np.ndarray, "k"]
    batch: Int64[np.ndarray, "k"]
    choices: Float64[np.ndarray, "k"]
    keeps_source: bool

    @staticmethod
    def of(
        store: EventStore, evaluation_set: EvaluationSet, batch_size: int = PUBLISHED_BATCH
    ) -> "NegativeDraws":
        """Describe the draws of an evaluation set of the published protocol (`tasks.link.build_link_set`)."""
        events, strategy = evaluation_set.events, evaluation_set.about["negatives"]
        is_transductive = evaluation_set.about["setting"] == "transductive"
        known = torch.arange(len(store)) if is_transductive else events
        src, dst, time = _columns(store, events)
        batch = np.arange(len(events)) // batch_size
        if strategy == "random":
            choices = np.full(len(events), float(len(np.unique(store.dst[known].numpy()))))
        else:
            observed = evaluation_set.earlier[-1] if strategy == "inductive" else events[:0]
            until = float(store.time[observed[-1]]) if len(observed) else -np.inf
            choices = _count_fill_choices(_columns(store, known), (src, dst, time), batch, until)
        return NegativeDraws(src, dst, time, batch, choices, keeps_source=strategy == "random")

    @property
    def query(self) -> Int64[np.ndarray, "k"]:
        """Number of the query of each event."""
        return number_rows(self.src, self.dst, self.time)

    @property
    def source_group(self) -> Int64[np.ndarray, "k"]:
        """Number of the events whose negatives may equal the query: those with its time, and source if it is kept."""
        return number_rows(self.src, self.time) if self.keeps_source else number_rows(self.time)

    def compute_posterior(self) -> Float64[np.ndarray, "k"]:
        """Return, for each event, the expected share of positives among the pairs with its query."""
        query, group, rate = self.query, self.source_group, 1 / self.choices
        positives, negatives = np.bincount(query)[query], np.bincount(group, rate)[group]
        if not self.keeps_source:  # a batch does not draw its own positives
            by_batch = number_rows(group, self.batch)
            _, first = np.unique(number_rows(query, self.batch), return_index=True)
            own_rate = np.bincount(by_batch, rate)[by_batch[first]]
            negatives = np.maximum(negatives - np.bincount(query[first], own_rate)[query], 0)
        # rounded, so that equal shares tie although they are quotients of different numbers
        return np.round(positives / (positives + negatives), 12)

    def score_posterior(self, pairs: PairBatch) -> Float64[np.ndarray, "p"]:
        """Score queries by the posterior; one without an event in the set is never positive and has 0."""
        columns = zip(
            (self.src, self.dst, self.time),
            (pairs.src.numpy(), pairs.dst.numpy(), pairs.time.numpy()),
            strict=True,
        )
        number = number_rows(*(np.concatenate(column) for column in columns))
        events, queries = np.split(number, [len(self.src)])
        posterior = np.zeros(number.max() + 1)
        posterior[events] = self.compute_posterior()
        return posterior[queries]

    def select(self, rows: np.ndarray) -> "NegativeDraws":
        """Return some of the events alone."""
        columns = ("src", "dst", "time", "batch", "choices")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})


def _columns(store: EventStore, events: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return store.src[events].numpy(), store.dst[events].numpy(), store.time[events].numpy()


def _count_fill_choices(
    known: tuple[np.ndarray, np.ndarray, np.ndarray],
    positives: tuple[np.ndarray, np.ndarray, np.ndarray],
    batch: np.ndarray,
    until: float,
) -> np.ndarray:
    """Return the size of the grid for positives whose negative fills up a small pool, infinity for the others.

    A batch of several times counts as not filled, which can only raise the bounds: without replacement, and with
    different times, its draws are not known to concentrate as independent ones do.
    """
    src, dst, time = known
    pair = number_rows(src, dst)
    _, first_row = np.unique(pair, return_index=True)
    first_time = time[first_row]
    grid = len(np.unique(src)) * len(np.unique(dst))
    choices = np.full(len(batch), np.inf)
    for rows in np.split(np.arange(len(batch)), np.flatnonzero(np.diff(batch)) + 1):
        begin, end = positives[2][rows[0]], positives[2][rows[-1]]
        if begin != end:
            continue
        window = slice(np.searchsorted(time, begin, side="left"), np.searchsorted(time, end, side="right"))
        in_pool = (first_time > until) & (first_time <= begin)
        pool = int(in_pool.sum()) - int(in_pool[np.unique(pair[window])].sum())
        own_pairs = len(np.unique(number_rows(positives[0][rows], positives[1][rows])))
        choices[rows[: max(len(rows) - pool, 0)]] = grid - own_pairs
    return choices


def bound_expectation(draws: NegativeDraws) -> ExpectedBound:
    """Bound the metrics of every score that does not depend on the drawn negatives."""
    sizes = np.bincount(draws.batch)
    loss = sum(_sum_lost_comparisons(part, 1 / (len(sizes) * sizes**2.0)) for part in _split_by_time(draws))
    auc = 1 - loss
    likely = _find_likely_auc(auc, len(sizes) * int(sizes.min()))
    # each batch has as many negatives as positives, so AP <= (1 + AUC) / 2
    ap = min((1 + auc) / 2, _bound_expected_ap(draws)) if draws.keeps_source else (1 + auc) / 2
    return ExpectedBound(ap, auc, (1 + likely) / 2, likely)


def _split_by_time(draws: NegativeDraws) -> Iterator[NegativeDraws]:
    """Yield the events of consecutive batches that share timestamps; no query occurs in two of these parts."""
    starts = np.flatnonzero(np.diff(draws.batch, prepend=-1))
    cuts = [start for start in starts[1:] if draws.time[start] != draws.time[start - 1]]
    for rows in np.split(np.arange(len(draws.batch)), cuts):
        yield draws.select(rows)


def _sum_lost_comparisons(draws: NegativeDraws, weight: Float64[np.ndarray, "b"]) -> float:
    """Return the share of comparisons that every order of the queries loses in expectation.

    c(x, y) is the expected weight of comparisons of a positive with query x and a negative with query y. Of two queries
    one is ranked first, so the smaller of c(x, y) and c(y, x) is lost; half of c(x, x) is lost to the tie.
    """
    batches, column = np.unique(draws.batch, return_inverse=True)
    label, size = _classify_queries(draws, column)
    first = np.unique(label, return_index=True)[1]
    if len(batches) > 1 and len(size) ** 2 * len(batches) > MAX_PRODUCTS:
        parts = (draws.select(draws.batch == number) for number in batches)
        return sum(_sum_lost_comparisons(part, weight) for part in parts)
    positives = np.zeros((len(size), len(batches)))
    np.add.at(positives, (label, column), weight[draws.batch])
    positives /= size[:, None]
    group = draws.source_group
    by_group = np.zeros((group.max() + 1, len(batches)))
    np.add.at(by_group, (group, column), 1 / draws.choices)
    rate = by_group[group[first]]
    if not draws.keeps_source:
        pair = number_rows(draws.src, draws.dst)
        is_present = np.zeros((pair.max() + 1, len(batches)), bool)
        is_present[pair, column] = True
        # a shared class has one pair per query, all of them in the same batch
        rate = np.where(is_present[pair[first]], 0, rate)
    lost = 0.0
    for start in range(0, len(size), ROWS):
        rows = slice(start, start + ROWS)
        smaller = np.minimum(positives[rows] @ rate.T, rate[rows] @ positives.T)
        lost += float(size[rows] @ smaller @ size)
    # every unordered pair was counted twice, and c(x, x) once: half of the sum is the loss of both
    return lost / 2


def _classify_queries(draws: NegativeDraws, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the queries that are positive and drawn equally often in every batch; return the number of each event.

    The second result is the number of queries of each class. Events of one group and batch whose pair has no other
    event are alike; every other query is a class of its own.
    """
    pair, query = number_rows(draws.src, draws.dst), draws.query
    is_single = np.bincount(pair)[pair] == 1
    shared = number_rows(draws.source_group, column)
    label = number_rows(np.where(is_single, shared, shared.max() + 1 + query))
    return label, np.where(np.bincount(label, ~is_single) > 0, 1, np.bincount(label)).astype(float)


def _bound_expected_ap(draws: NegativeDraws) -> float:
    """Bound the expected AP if every batch may have a function of its own; the draws must be independent.

    The number of negatives above a positive is at most as spread, in convex order, as a Poisson variable.
    """
    bounds = []
    for rows in np.split(np.arange(len(draws.batch)), np.flatnonzero(np.diff(draws.batch)) + 1):
        part = draws.select(rows)
        query, group = part.query, part.source_group
        first = np.unique(query, return_index=True)[1]
        hits = np.bincount(query).astype(float)
        misses = np.bincount(group, 1 / part.choices)[group[first]]
        order = np.argsort(-hits / misses, kind="stable")
        reached = np.arange(1.0, len(rows) + 1)
        mean = _interpolate_misses(hits[order], misses[order], reached)
        bounds.append(float(_expected_precision(reached, mean).mean()))
    return float(np.mean(bounds))


def _expected_precision(hits: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the expectation of hits / (hits + X) for Poisson variables X with these means."""
    most = int(mean.max() + 12 * np.sqrt(mean.max() + 1) + 12)  # the rest of the sum is below 1e-12
    count = np.arange(most + 1)
    log_factorial = np.array([lgamma(k + 1) for k in count])
    log_mass = count * np.log(mean)[:, None] - mean[:, None] - log_factorial
    return (np.exp(log_mass) * hits[:, None] / (hits[:, None] + count)).sum(1)


def _find_likely_auc(auc: float, draws: int) -> float:
    """Return the AUC that is exceeded with probability `LEVEL` at most if its expectation is `auc` (Chernoff)."""
    low, high = auc, 1.0
    if auc >= 1 or exp(draws * log(auc)) > LEVEL:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        divergence = (1 - middle) * log((1 - middle) / (1 - auc)) + middle * log(middle / auc)
        low, high = (low, middle) if exp(-draws * divergence) <= LEVEL else (middle, high)
    return high
