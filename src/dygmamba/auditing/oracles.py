"""Ceilings of a test set: the metrics of oracles that know the events of the query time, and proved upper bounds.

A negative sample may be a true event at its timestamp. No score of the pair and the time separates such a negative from
the positive. An oracle is a reference: a value that some knowledge attains. A bound is a value that no score exceeds.
Derivation and proofs: docs/research/findings.md.

Legend: p pairs, m distinct (time, source).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dygmamba.auditing.ceiling_bounds import NegativeDraws, bound_by_labels, bound_expectation
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics

AP_NAMES = ("ap", "ap_pooled")
METRIC_NAMES = (*AP_NAMES, "auc", "auc_pooled")
TIE_ORDERS = 400  # random orders of tied pairs from which the spread of AP is estimated


@dataclass(frozen=True)
class EventsByTime:
    """Lookup of the events at each timestamp."""

    # no `slots`: cached_property needs a __dict__
    store: EventStore

    def is_event(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Return whether each directed pair is an event at exactly its time."""
        return self._last_row(pairs) >= 0

    def count_events(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the number of events of each directed pair at its time."""
        (distinct, _, count), (key, known) = self._events, self._event_key(pairs.src, pairs.dst, pairs.time)
        index = torch.searchsorted(distinct, key).clamp(max=len(distinct) - 1)
        return torch.where(known & _contains(distinct, key), count[index], 0)

    def count_source_events(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the number of events that the source of each pair has as a source at its time."""
        key = self._node_key(pairs.src, pairs.time)
        distinct, count = torch.unique(self._node_key(self.store.src, self.store.time), return_counts=True)
        index = torch.searchsorted(distinct, key).clamp(max=len(distinct) - 1)
        return torch.where(distinct[index] == key, count[index], 0)

    def has_active_nodes(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Return whether both nodes of each pair have events at its time, as source or destination."""
        active = torch.unique(torch.cat([self._sources, self._destinations]))
        src, dst = (_contains(active, self._node_key(node, pairs.time)) for node in (pairs.src, pairs.dst))
        return src & dst

    def has_active_roles(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Return whether at its time the source of each pair is a source and the destination is a destination."""
        is_source = _contains(self._sources, self._node_key(pairs.src, pairs.time))
        return is_source & _contains(self._destinations, self._node_key(pairs.dst, pairs.time))

    def is_event_from(self, pairs: PairBatch, first: Int64[Tensor, "p"]) -> Bool[Tensor, "p"]:
        """Return whether each pair is an event at its time in row `first` or a later row."""
        return self._last_row(pairs) >= first

    @cached_property
    def _times(self) -> Tensor:
        return torch.unique(self.store.time)

    def _node_key(self, node: Tensor, time: Tensor) -> Tensor:
        """Return one number per (time, node)."""
        return torch.searchsorted(self._times, time) * self.store.num_nodes + node

    @cached_property
    def _sources(self) -> Tensor:
        return torch.unique(self._node_key(self.store.src, self.store.time))

    @cached_property
    def _destinations(self) -> Tensor:
        return torch.unique(self._node_key(self.store.dst, self.store.time))

    def _event_key(self, src: Tensor, dst: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return one number per (time, source, destination), and whether the source has events at that time.

        time x nodes x nodes would overflow 64 bits on large streams. So (time, source) is replaced by its rank among
        those that occur before the destination is added.
        """
        source = self._node_key(src, time)
        known = _contains(self._sources, source)
        return torch.searchsorted(self._sources, source) * self.store.num_nodes + dst, known

    @cached_property
    def _events(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys of the distinct events, sorted, and the last row and the number of rows of each."""
        key, _ = self._event_key(self.store.src, self.store.dst, self.store.time)
        distinct, index, count = torch.unique(key, return_inverse=True, return_counts=True)
        last = torch.full((len(distinct),), -1).scatter_reduce(0, index, torch.arange(len(key)), "amax")
        return distinct, last, count

    def _last_row(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the last row in which each pair is an event at its time, -1 if it is none."""
        (distinct, last, _), (key, known) = self._events, self._event_key(pairs.src, pairs.dst, pairs.time)
        exists = known & _contains(distinct, key)
        return torch.where(exists, last[torch.searchsorted(distinct, key).clamp(max=len(distinct) - 1)], -1)


def _contains(ordered: Tensor, values: Tensor) -> Tensor:
    index = torch.searchsorted(ordered, values).clamp(max=len(ordered) - 1)
    return ordered[index] == values


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Metrics of the oracles on one evaluation set, and upper bounds. The field names are those of the JSON output.

    All values are between 0 and 1. `pooled` metrics rank the whole split at once, the others batches of 200.
    `true_share` is the share of negatives that are events.

    References, each attained by a score with this knowledge:

    - `edge_oracle`: which pairs are events at the query time; all of them tie. `untied` breaks the ties at random, as a
      model with distinct scores does; in batches of 200 this alone adds a few tenths of a point. `with_order` also
      knows which rows of the query time are past, as a node memory does that has seen earlier batches with the same
      timestamp.
    - `membership_oracle`: which nodes have events at the query time. `roles_oracle`: also in which role.
    - `moment_oracle`: how many events every pair and every source has at the query time. With random negatives it ranks
      by the share of the source's events that the pair has, otherwise by the number of events of the pair.
    - `posterior_oracle`: also which events are positives of the set (who is a new node) and how negatives are drawn. It
      ranks by the expected share of positives among the pairs with the query. For all nodes and random negatives it is
      the moment oracle.
    - `reference`: the highest of the edge, the moment and the posterior oracle.

    Bounds (`auditing.ceiling_bounds`), for every score that is a function of the pair and the time:

    - `bound`: even if it has read the labels.
    - `expected_bound`: of the expected metric over draws of the negatives, if the score does not depend on the draw.
    - `likely_bound`: exceeded by such a score in at most one of a hundred draws.
    """

    split: str
    setting: str
    negatives: str
    events: int
    times: int
    true_share: float
    edge_oracle_ap: float
    edge_oracle_ap_pooled: float
    edge_oracle_ap_untied: float
    edge_oracle_auc: float
    edge_oracle_auc_pooled: float
    membership_oracle_ap: float
    membership_oracle_ap_pooled: float
    roles_oracle_ap: float
    roles_oracle_ap_pooled: float
    edge_oracle_ap_with_order: float
    order_auc: float | None
    moment_oracle_ap: float
    moment_oracle_ap_pooled: float
    moment_oracle_auc: float
    moment_oracle_auc_pooled: float
    posterior_oracle_ap: float
    posterior_oracle_ap_pooled: float
    posterior_oracle_auc: float
    posterior_oracle_auc_pooled: float
    reference_ap: float
    reference_auc: float
    expected_bound_ap: float
    expected_bound_auc: float
    likely_bound_ap: float
    likely_bound_auc: float
    bound_ap: float
    bound_ap_pooled: float
    bound_auc: float
    bound_auc_pooled: float
    drawn_from: str


def compute_ceiling(events_by_time: EventsByTime, evaluation_set: EvaluationSet) -> Ceiling:
    """Score an evaluation set with the oracles and compute the metrics that every model is evaluated by, and bounds."""
    pairs = evaluation_set.pairs
    is_event, is_negative = events_by_time.is_event(pairs), pairs.label == 0
    edge = _evaluate_oracle(pairs, is_event)
    # first row of the batch of 200 that each query belongs to: a memory has seen the rows before it
    first = evaluation_set.events[(evaluation_set.event_index // PUBLISHED_BATCH) * PUBLISHED_BATCH]
    is_unseen = events_by_time.is_event_from(pairs, first)
    membership = _evaluate_oracle(pairs, events_by_time.has_active_nodes(pairs))
    roles = _evaluate_oracle(pairs, events_by_time.has_active_roles(pairs))
    event_negatives = is_event & is_negative
    draws = NegativeDraws.of(events_by_time.store, evaluation_set)
    moment = _evaluate_oracle(pairs, score_moment(events_by_time, evaluation_set))
    posterior = _evaluate_oracle(pairs, torch.from_numpy(draws.score_posterior(pairs)))
    expected, bound = bound_expectation(draws), bound_by_labels(pairs)
    return Ceiling(
        **evaluation_set.about,
        events=len(evaluation_set.events),
        times=len(torch.unique(pairs.time)),
        true_share=float(is_event[is_negative].double().mean()),
        edge_oracle_ap_untied=_expected_untied_ap(pairs, is_event),
        edge_oracle_ap_with_order=_evaluate_oracle(pairs, is_unseen)["ap"],
        # A positive is always unseen. So a negative that is a past event is ranked below it, and one that is
        # not past ties, which counts half.
        order_auc=float(1 - is_unseen[event_negatives].double().mean() / 2)
        if bool(event_negatives.any())
        else None,
        **_name_metrics("edge_oracle", edge),
        **_name_metrics("membership_oracle", membership, AP_NAMES),
        **_name_metrics("roles_oracle", roles, AP_NAMES),
        **_name_metrics("moment_oracle", moment),
        **_name_metrics("posterior_oracle", posterior),
        reference_ap=max(edge["ap"], moment["ap"], posterior["ap"]),
        reference_auc=max(edge["auc"], moment["auc"], posterior["auc"]),
        **_name_metrics("expected_bound", asdict(expected), ("ap", "auc")),
        likely_bound_ap=min(expected.likely_ap, bound.ap),
        likely_bound_auc=min(expected.likely_auc, bound.auc),
        **_name_metrics("bound", asdict(bound)),
    )


def _name_metrics(
    prefix: str, metrics: Mapping[str, float], names: tuple[str, ...] = METRIC_NAMES
) -> dict[str, Any]:
    return {f"{prefix}_{name}": metrics[name] for name in names}


def score_moment(events_by_time: EventsByTime, evaluation_set: EvaluationSet) -> Float[Tensor, "p"]:
    """Score queries by all events of their time, whether the set holds them or not.

    With random negatives a source with n events at a time has n draws there, so a pair with m events is a positive m
    times for n / pool draws. The other samplers draw every pair alike.
    """
    events = events_by_time.count_events(evaluation_set.pairs).double()
    if evaluation_set.about["negatives"] != "random":
        return events
    return events / events_by_time.count_source_events(evaluation_set.pairs).clamp(min=1)


def _evaluate_oracle(pairs: LabelledPairs, score: Bool[Tensor, "p"] | Float[Tensor, "p"]) -> dict[str, float]:
    return link_metrics(score.double(), pairs.label, pairs.group)


def _expected_untied_ap(pairs: LabelledPairs, is_event: Bool[Tensor, "p"]) -> float:
    """Return the mean over batches of the edge oracle's expected AP if its ties are broken at random.

    For n tied pairs of which P are positive the expected AP is r + (1 - r) H_n / n, with r = (P - 1) / (n - 1) and the
    harmonic number H_n.
    """
    batch = pairs.group // PUBLISHED_BATCH
    positives = torch.bincount(batch[pairs.label > 0]).double()
    n = torch.bincount(batch[is_event], minlength=len(positives)).double()
    rest = torch.where(n > 1, (positives - 1) / (n - 1).clamp(min=1), 1.0)
    harmonic = torch.cat(
        [torch.zeros(1).double(), (1 / torch.arange(1, int(n.max()) + 1).double()).cumsum(0)]
    )
    return float((rest + (1 - rest) * harmonic[n.long()] / n).mean())


def measure_tie_luck(pairs: LabelledPairs, is_event: Bool[Tensor, "p"]) -> float:
    """Return the standard deviation of the edge oracle's AP, mean over batches, if its ties are broken at random."""
    batch, rng = pairs.group // PUBLISHED_BATCH, torch.Generator().manual_seed(0)
    variance, batches = 0.0, int(batch.max()) + 1
    for number in range(batches):
        label = pairs.label[is_event & (batch == number)].double()
        if bool((label > 0).all()):
            continue
        hit = label[torch.rand(TIE_ORDERS, len(label), generator=rng).argsort(dim=1)]
        precision = hit.cumsum(dim=1) / torch.arange(1, len(label) + 1)
        variance += float(((precision * hit).sum(dim=1) / hit.sum(dim=1)).var())
    return variance**0.5 / batches
