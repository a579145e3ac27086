"""Properties of an event stream that inflate test metrics without any learning, and the metrics of baselines.

Measured are repeated pairs, events with equal timestamps, the order of their rows, leaks through padding, and the bias
of small batches. A trained model whose metrics are below those of the rules has not learned anything useful.

Legend: p pairs, k events.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.config import find_preset
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.stream import Stream
from dygmamba.runs.evaluation import Scored
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics, roc_auc

LENGTHS, CALL_SIZES = (32, 256, 1024, 2048), (20, 30, 200)  # lengths and batch sizes of published programs
BATCH_SIZES = (20, 30, PUBLISHED_BATCH)
SAMPLED_PAIRS = 20_000  # pairs of events with equal timestamps from which the row order is estimated
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


@dataclass(frozen=True, slots=True)
class PaddingLeak:
    """ROC-AUC of the padded length alone if positives and negatives are padded in separate calls."""

    length: int
    batch: int
    auc: float


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Information in the row order among events with equal timestamps; None if there are none.

    `source` and `destination` are ROC-AUCs: how often the later of two rows has the larger node id (0.5: no order).
    `neighbors` is how often two adjacent rows have the same source, `chance` how often two random rows have.
    """

    source: float | None
    destination: float | None
    neighbors: float | None
    chance: float | None


@dataclass(frozen=True, slots=True)
class BatchSizeBias:
    """AP of the same scores, averaged over batches of several sizes (`ap`, by size) and pooled over all pairs."""

    scores: str
    ap: dict[str, float]
    ap_pooled: float


def describe_period(store: EventStore, split: Split, name: str) -> PeriodStatistics:
    """Compute the statistics of the period `name`, "val" or "test"."""
    events = split.val if name == "val" else split.test
    all_times, all_pairs = store.time.numpy(), (store.src * store.num_nodes + store.dst).numpy()
    pair, time = all_pairs[events], all_times[events]
    last_time = find_last_times(all_pairs, all_times, pair, time)
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
        repeats=float(np.isfinite(last_time).mean()),
        surprise=float((~np.isin(distinct_pairs, earlier_pairs)).mean()),
        new_nodes=len(touching) / len(pair),
        tied=float((count[time_index] > 1).mean()),
        visible=float((visible > 0).mean()),
        visible_events=float(visible.mean()),
    )


def find_last_times(
    key: np.ndarray, time: np.ndarray, query_key: np.ndarray, query_time: np.ndarray
) -> np.ndarray:
    """Return the last time of each query key strictly before the query time, -inf if there is none.

    `key` and `time` are those of all events, sorted by time.
    """
    distinct_keys, key_index = np.unique(key, return_inverse=True)
    order = np.argsort(key_index, kind="stable")
    distinct_times, time_index = np.unique(time, return_inverse=True)
    # (key, time) as one number, sorted, so that one binary search finds the last entry before a query
    base = len(distinct_times) + 1
    entries = key_index[order] * base + time_index[order]
    query_index = np.searchsorted(distinct_keys, query_key).clip(max=len(distinct_keys) - 1)
    found = np.searchsorted(entries, query_index * base + np.searchsorted(distinct_times, query_time)) - 1
    known = (found >= 0) & (distinct_keys[query_index] == query_key)
    known[known] = key_index[order][found[known]] == query_index[known]
    return np.where(known, time[order][found], -np.inf)


def measure_padding_leak(stream: Stream, evaluation_set: EvaluationSet, dataset: str) -> list[PaddingLeak]:
    """Measure how well the padded length predicts the label in published programs.

    They score positives and negatives in separate calls and pad each call to its own longest history.
    """
    pairs, half = evaluation_set.pairs, len(evaluation_set.events)
    history_length = stream.index.past(pairs.dst, pairs.time)[1]
    lengths = sorted({*LENGTHS, int(find_preset("dyg-mamba", dataset).get("length", LENGTHS[0]))})
    leaks = []
    for length in lengths:
        read = history_length.clamp(max=length)
        for batch in CALL_SIZES:
            padded = [part.max().expand(len(part)) for side in read.split(half) for part in side.split(batch)]
            leaks.append(PaddingLeak(length, batch, roc_auc(torch.cat(padded).double(), pairs.label)))
    return leaks


def measure_row_order(store: EventStore, events: Int64[Tensor, "k"]) -> RowOrder:
    """Measure whether rows with equal timestamps are sorted, on pairs of events drawn with a fixed seed."""
    rng, time = np.random.default_rng(0), store.time[events].numpy()
    low, high = np.searchsorted(time, time), np.searchsorted(time, time, side="right")
    tied = np.flatnonzero(high - low > 1)
    if not len(tied):
        return RowOrder(None, None, None, None)
    left = rng.choice(tied, SAMPLED_PAIRS)
    right = rng.integers(low[left], high[left])
    first, later = np.minimum(left, right), np.maximum(left, right)
    src, dst = store.src[events].numpy(), store.dst[events].numpy()
    is_distinct, is_adjacent = left != right, time[1:] == time[:-1]
    return RowOrder(
        source=_share_larger(src[later], src[first]),
        destination=_share_larger(dst[later], dst[first]),
        neighbors=float((src[1:] == src[:-1])[is_adjacent].mean()),
        chance=float((src[left] == src[right])[is_distinct].mean()) if is_distinct.any() else None,
    )


def _share_larger(later: np.ndarray, first: np.ndarray) -> float | None:
    differ = later != first
    return float((later > first)[differ].mean()) if differ.any() else None


def measure_batch_bias(
    evaluation_set: EvaluationSet, scores: dict[str, Float[Tensor, "p"]]
) -> list[BatchSizeBias]:
    """Compute the AP of given scores by batch size: the fewer pairs are ranked together, the higher it is."""
    pairs, biases = evaluation_set.pairs, []
    for name, score in scores.items():
        metrics = {size: link_metrics(score, pairs.label, pairs.group, size) for size in BATCH_SIZES}
        ap = {str(size): value["ap"] for size, value in metrics.items()}
        biases.append(BatchSizeBias(name, ap, metrics[PUBLISHED_BATCH]["ap_pooled"]))
    return biases


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
