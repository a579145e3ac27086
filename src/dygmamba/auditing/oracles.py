"""Ceilings of a test set: the metrics of oracles that know the events of the query time.

A negative sample may be a true event at its timestamp. No score of the pair and the time separates such a negative from
the positive. An oracle is a reference: a value that some knowledge attains. Derivation: docs/research/findings.md.

Legend: p pairs, k events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics

METRIC_NAMES = ("ap", "ap_pooled", "auc", "auc_pooled")
TIE_ORDERS = 400  # random orders of tied pairs from which the spread of AP is estimated


@dataclass(frozen=True)
class EventsByTime:
    """Lookup of the events at each timestamp."""

    # no `slots`: cached_property needs a __dict__
    store: EventStore

    def is_event(self, pairs: PairBatch) -> Bool[Tensor, "p"]:
        """Return whether each directed pair is an event at exactly its time."""
        return self.count_events(pairs) > 0

    def count_events(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the number of events of each directed pair at its time."""
        return _look_up(self._events, self._event_key(pairs.src, pairs.dst, pairs.time))

    def count_source_events(self, pairs: PairBatch) -> Int64[Tensor, "p"]:
        """Return the number of events that the source of each pair has as a source at its time."""
        return _look_up(self._sources, self._source_key(pairs.src, pairs.time))

    @cached_property
    def _times(self) -> Tensor:
        return torch.unique(self.store.time)

    @cached_property
    def _sources(self) -> tuple[Tensor, Tensor]:
        return torch.unique(self._source_key(self.store.src, self.store.time), return_counts=True)

    @cached_property
    def _events(self) -> tuple[Tensor, Tensor]:
        key = self._event_key(self.store.src, self.store.dst, self.store.time)
        return torch.unique(key, return_counts=True)

    def _source_key(self, src: Tensor, time: Tensor) -> Tensor:
        """Return one number per (time, source)."""
        return torch.searchsorted(self._times, time) * self.store.num_nodes + src

    def _event_key(self, src: Tensor, dst: Tensor, time: Tensor) -> Tensor:
        """Return one number per (time, source, destination), -1 if the source has no events at that time.

        time x nodes x nodes would overflow 64 bits on large streams. So (time, source) is replaced by its rank among
        those that occur before the destination is added.
        """
        source = self._source_key(src, time)
        rank = torch.searchsorted(self._sources[0], source)
        return torch.where(_look_up(self._sources, source) > 0, rank * self.store.num_nodes + dst, -1)


def _look_up(counted: tuple[Tensor, Tensor], key: Tensor) -> Int64[Tensor, "p"]:
    """Return the counts of some of the sorted keys, 0 for a key that is not among them."""
    distinct, count = counted
    index = torch.searchsorted(distinct, key).clamp(max=len(distinct) - 1)
    return torch.where(distinct[index] == key, count[index], 0)


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
        events, queries = number_queries(self, pairs)
        posterior = np.zeros(max(events.max(), queries.max()) + 1)
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


def number_rows(*columns: np.ndarray) -> np.ndarray:
    """Return one number per distinct row of the columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        number = np.unique(number * len(values) + index, return_inverse=True)[1]
    return number


def number_queries(
    events: "NegativeDraws | EventStore", pairs: PairBatch
) -> tuple[Int64[np.ndarray, "k"], Int64[np.ndarray, "p"]]:
    """Number events and pairs alike: the same source, destination and time have the same number."""
    columns = (
        np.concatenate([getattr(part, name) for part in (events, pairs)]) for name in ("src", "dst", "time")
    )
    of_events, of_pairs = np.split(number_rows(*columns), [len(events.src)])
    return of_events, of_pairs


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Metrics of the oracles on one evaluation set. The field names are those of the JSON output.

    All values are between 0 and 1. `pooled` metrics rank the whole split at once, the others batches of 200.
    `true_share` is the share of negatives that are events. Each value is attained by a score with this knowledge:

    - `edge_oracle`: which pairs are events at the query time; all of them tie. `untied` breaks the ties at random, as a
      model with distinct scores does; in batches of 200 this alone adds a few tenths of a point.
    - `moment_oracle`: how many events every pair and every source has at the query time. With random negatives it ranks
      by the share of the source's events that the pair has, otherwise by the number of events of the pair.
    - `posterior_oracle`: also which events are positives of the set (who is a new node) and how negatives are drawn. It
      ranks by the expected share of positives among the pairs with the query. For all nodes and random negatives it is
      the moment oracle.
    - `reference`: the highest of the three.
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
    drawn_from: str


def compute_ceiling(events_by_time: EventsByTime, evaluation_set: EvaluationSet) -> Ceiling:
    """Score an evaluation set with the oracles and compute the metrics that every model is evaluated by."""
    pairs = evaluation_set.pairs
    is_event = events_by_time.is_event(pairs)
    posterior = NegativeDraws.of(events_by_time.store, evaluation_set).score_posterior(pairs)
    oracles = {
        "edge_oracle": evaluate_oracle(pairs, is_event),
        "moment_oracle": evaluate_oracle(pairs, score_moment(events_by_time, evaluation_set)),
        "posterior_oracle": evaluate_oracle(pairs, torch.from_numpy(posterior)),
    }
    values = {
        name: value
        for prefix, metrics in oracles.items()
        for name, value in name_metrics(prefix, metrics).items()
    }
    return Ceiling(
        **evaluation_set.about,
        events=len(evaluation_set.events),
        times=len(torch.unique(pairs.time)),
        true_share=float(is_event[pairs.label == 0].double().mean()),
        edge_oracle_ap_untied=_expected_untied_ap(pairs, is_event),
        **values,
        reference_ap=max(metrics["ap"] for metrics in oracles.values()),
        reference_auc=max(metrics["auc"] for metrics in oracles.values()),
    )


def name_metrics(
    prefix: str, metrics: Mapping[str, float], names: tuple[str, ...] = METRIC_NAMES
) -> dict[str, Any]:
    """Return some metrics with a prefix before their names."""
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


def evaluate_oracle(pairs: LabelledPairs, score: Bool[Tensor, "p"] | Float[Tensor, "p"]) -> dict[str, float]:
    """Return AP and AUC of these scores, mean over batches and pooled."""
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
