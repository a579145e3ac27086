"""The negatives of an evaluation set: how often each pair is expected to be drawn, and the posterior of a positive.

Legend: p pairs, k events.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH


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
