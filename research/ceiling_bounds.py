"""Proved upper bounds of AP and AUC on an evaluation set, and oracles that know less or more than those of an audit.

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
from dataclasses import asdict, dataclass
from math import exp, lgamma, log
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.auditing.oracles import (
    EventsByTime,
    NegativeDraws,
    evaluate_oracle,
    name_metrics,
    number_queries,
    number_rows,
)
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH

LEVEL = 0.01  # probability with which a draw of negatives may exceed `likely_auc`
AP_NAMES = ("ap", "ap_pooled")
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
    query = number_rows(pairs.src.numpy(), pairs.dst.numpy(), pairs.time.numpy())
    positive = pairs.label.numpy() > 0
    number = pairs.group.numpy() // batch
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))[:-1]
    by_batch = [_bound_ranking(query[rows], positive[rows]) for rows in np.split(order, ends)]
    ap, auc = np.mean(by_batch, axis=0)
    return MetricBound(float(ap), float(auc), *_bound_ranking(query, positive))


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


def compute_bounds(events_by_time: EventsByTime, evaluation_set: EvaluationSet) -> dict[str, Any]:
    """Return the bounds of an evaluation set, and the metrics of the oracles that an audit leaves out.

    - `membership_oracle`: which nodes have events at the query time. `roles_oracle`: also in which role.
    - `edge_oracle_ap_with_order`: the edge oracle that also knows which rows of the query time are past, as a node
      memory does that has seen earlier batches with the same timestamp. `order_auc`: how well that knowledge alone
      separates positives from negatives that are events.
    - `bound`: of every score that is a function of the pair and the time, even if it has read the labels.
    - `expected_bound`: of the expected metric over draws of the negatives, if the score does not depend on the draw.
    - `likely_bound`: exceeded by such a score in at most one of a hundred draws.
    """
    pairs = evaluation_set.pairs
    # first row of the batch of 200 that each query belongs to: a memory has seen the rows before it
    first = evaluation_set.events[(evaluation_set.event_index // PUBLISHED_BATCH) * PUBLISHED_BATCH]
    is_unseen = _find_last_rows(events_by_time.store, pairs) >= first
    event_negatives = events_by_time.is_event(pairs) & (pairs.label == 0)
    of_source, of_destination = _find_roles(events_by_time.store, pairs)
    is_active = of_source.any(0) & of_destination.any(0)
    has_roles = of_source[0] & of_destination[1]
    expected = bound_expectation(NegativeDraws.of(events_by_time.store, evaluation_set))
    bound = bound_by_labels(pairs)
    return {
        "edge_oracle_ap_with_order": evaluate_oracle(pairs, is_unseen)["ap"],
        # A positive is always unseen. So a negative that is a past event is ranked below it, and one that is
        # not past ties, which counts half.
        "order_auc": float(1 - is_unseen[event_negatives].double().mean() / 2)
        if bool(event_negatives.any())
        else None,
        **name_metrics("membership_oracle", evaluate_oracle(pairs, is_active), AP_NAMES),
        **name_metrics("roles_oracle", evaluate_oracle(pairs, has_roles), AP_NAMES),
        "expected_bound_ap": expected.ap,
        "expected_bound_auc": expected.auc,
        "likely_bound_ap": min(expected.likely_ap, bound.ap),
        "likely_bound_auc": min(expected.likely_auc, bound.auc),
        **name_metrics("bound", asdict(bound)),
    }


def _find_last_rows(store: EventStore, pairs: PairBatch) -> Int64[Tensor, "p"]:
    """Return the last row in which each pair is an event at its time, -1 if it is none."""
    events, queries = number_queries(store, pairs)
    last = np.full(max(events.max(), queries.max()) + 1, -1)
    last[events] = np.arange(len(events))  # where a number repeats, numpy keeps the last row
    return torch.from_numpy(last[queries])


def _find_roles(store: EventStore, pairs: PairBatch) -> tuple[Bool[Tensor, "2 p"], Bool[Tensor, "2 p"]]:
    """Return of each pair's source, and of its destination, whether it is a source and a destination at the time."""

    def number(node: Tensor, time: Tensor) -> Tensor:
        return torch.searchsorted(times, time) * store.num_nodes + node

    times = torch.unique(store.time)
    roles = [number(node, store.time) for node in (store.src, store.dst)]
    of_source, of_destination = (
        torch.stack([torch.isin(number(node, pairs.time), role) for role in roles])
        for node in (pairs.src, pairs.dst)
    )
    return of_source, of_destination
