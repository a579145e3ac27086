"""Statistics of the periods of a stream, and the metrics of baselines.

A trained model whose metrics are below those of the baselines has not learned anything useful.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.runs.evaluation import Scored
from dygmamba.tasks.metrics import PUBLISHED_BATCH

METRICS = ("ap", "ap_pooled", "auc", "auc_pooled")


@dataclass(frozen=True, slots=True)
class PeriodStatistics:
    """Statistics of the validation or test period; shares of its events unless noted otherwise."""

    split: str
    events: int
    times: int
    nodes: int
    repeats: float  # the pair had an event at an earlier time
    surprise: float  # share of the period's distinct pairs that do not occur before the period
    new_nodes: float  # one node does not occur in training
    tied: float  # another event has the same timestamp
    visible: float  # an earlier batch of 200 contains events with the same timestamp
    visible_events: float  # mean number of those events


def describe_period(store: EventStore, split: Split, name: str) -> PeriodStatistics:
    """Compute the statistics of the period `name`, "val" or "test"."""
    events = split.val if name == "val" else split.test
    all_times, all_pairs = store.time.numpy(), (store.src * store.num_nodes + store.dst).numpy()
    pair, time = all_pairs[events], all_times[events]
    known_pairs, first_row = np.unique(all_pairs, return_index=True)
    first_time = all_times[first_row[np.searchsorted(known_pairs, pair)]]
    earlier_pairs = np.unique(all_pairs[: int(events[0])])
    distinct_pairs = np.unique(pair)
    distinct_times, time_index, count = np.unique(time, return_inverse=True, return_counts=True)
    first = np.searchsorted(time, time)  # first row of the period with the same timestamp
    batch_start = np.arange(len(pair)) // PUBLISHED_BATCH * PUBLISHED_BATCH
    visible = np.maximum(batch_start - first, 0)
    touching = split.touching_new_nodes(store, events)
    return PeriodStatistics(
        split=name,
        events=len(pair),
        times=len(distinct_times),
        nodes=len(torch.unique(torch.cat([store.src[events], store.dst[events]]))),
        repeats=float((first_time < time).mean()),
        surprise=float((~np.isin(distinct_pairs, earlier_pairs)).mean()),
        new_nodes=len(touching) / len(pair),
        tied=float((count[time_index] > 1).mean()),
        visible=float((visible > 0).mean()),
        visible_events=float(visible.mean()),
    )


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Metrics of a rule on one evaluation set."""

    rule: str
    split: str
    setting: str
    negatives: str
    ap: float
    ap_pooled: float
    auc: float
    auc_pooled: float
    drawn_from: str


def evaluate_baselines(scored: dict[str, Scored]) -> list[RuleResult]:
    """Return the metrics of the baselines of one evaluation set."""
    return [RuleResult(name, **one.queries.pairs.about, **one.row(METRICS)) for name, one in scored.items()]
