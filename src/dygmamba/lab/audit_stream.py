"""What a stream's test is made of, and what tells its answers without any model.

Legend: p pairs, k events.

What rules reach that learn nothing: a figure below theirs is no achievement.

Legend: p pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.config import build_config, find_preset
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics, roc_auc

LENGTHS, CALL_SIZES = (32, 256, 1024, 2048), (20, 30, 200)  # histories, and events per call, that are in use
BATCH_SIZES = (20, 30, PUBLISHED_BATCH)
SAMPLED_PAIRS = 20_000  # pairs of events of one time whose order is looked at


@dataclass(frozen=True, slots=True)
class PeriodStatistics:
    """What the events of a period are: shares of its events, but `surprise`, which is of its distinct pairs."""

    split: str
    events: int
    times: int
    nodes: int
    repeats: float  # their pair met at an earlier time
    surprise: float  # of the period's distinct pairs, those never seen before the period
    new_nodes: float  # one end was never trained on
    tied: float  # another event has the same time
    visible: float  # an earlier batch of 200 holds events of the same time
    visible_events: float  # how many such events there are, mean over the period


@dataclass(frozen=True, slots=True)
class PaddingLeak:
    """How well the padded length of a call alone tells events from negatives, if each has a call of its own."""

    length: int
    batch: int
    auc: float


@dataclass(frozen=True, slots=True)
class RowOrder:
    """What the row number says among events of one time; None where no two events share a time.

    `source` and `destination`: of two events of one time, how often the later row has the larger node, a ROC-AUC; 0.5
    is no order. `neighbors`: how often the next row of the same time has the same source, `chance`: any other row.
    """

    source: float | None
    destination: float | None
    neighbors: float | None
    chance: float | None


@dataclass(frozen=True, slots=True)
class BatchSizeBias:
    """The same scores judged in batches of several sizes, and at once."""

    scores: str
    ap: dict[str, float]
    ap_pooled: float


def period(store: EventStore, split: Split, name: str) -> PeriodStatistics:
    """What the events of a period repeat, share and see."""
    events = split.val if name == "val" else split.test
    time, pair = store.time.numpy(), (store.src * store.num_nodes + store.dst).numpy()
    own, when = pair[events], time[events]
    met = find_last_times(pair, time, own, when)
    before = np.unique(pair[: int(events[0])])
    distinct = np.unique(own)
    run = np.unique(when, return_inverse=True, return_counts=True)
    first = np.searchsorted(when, when)  # the period's first event of each one's time
    batch = np.arange(len(own)) // PUBLISHED_BATCH * PUBLISHED_BATCH
    told = np.maximum(batch - first, 0)
    touching = split.touching_new_nodes(store, events)
    return PeriodStatistics(
        split=name,
        events=len(own),
        times=len(run[0]),
        nodes=len(torch.unique(torch.cat([store.src[events], store.dst[events]]))),
        repeats=float(np.isfinite(met).mean()),
        surprise=float((~np.isin(distinct, before)).mean()),
        new_nodes=len(touching) / len(own),
        tied=float((run[2][run[1]] > 1).mean()),
        visible=float((told > 0).mean()),
        visible_events=float(told.mean()),
    )


def find_last_times(key: np.ndarray, time: np.ndarray, asked: np.ndarray, when: np.ndarray) -> np.ndarray:
    """When each key was last seen strictly before a time, -inf where never; `time` is sorted."""
    distinct, place = np.unique(key, return_inverse=True)
    order = np.argsort(place, kind="stable")
    moments, moment = np.unique(time, return_inverse=True)
    entries = place[order] * (len(moments) + 1) + moment[order]  # sorted: by key, then by time
    own = np.searchsorted(distinct, asked).clip(max=len(distinct) - 1)
    found = np.searchsorted(entries, own * (len(moments) + 1) + np.searchsorted(moments, when)) - 1
    known = (found >= 0) & (distinct[own] == asked)
    known[known] = place[order][found[known]] == own[known]
    return np.where(known, time[order][found], -np.inf)


def padding(stream: Stream, evaluation_set: EvaluationSet, dataset: str) -> list[PaddingLeak]:
    """The published way: events and negatives in two calls, each padded to its own longest history."""
    pairs, half = evaluation_set.pairs, len(evaluation_set.events)
    past = stream.index.past(pairs.dst, pairs.time)[1]
    lengths = sorted({*LENGTHS, int(find_preset("dyg-mamba", dataset).get("length", LENGTHS[0]))})
    found = []
    for length in lengths:
        seen = past.clamp(max=length)
        for batch in CALL_SIZES:
            calls = [part.max().expand(len(part)) for side in seen.split(half) for part in side.split(batch)]
            found.append(PaddingLeak(length, batch, roc_auc(torch.cat(calls).double(), pairs.label)))
    return found


def order(store: EventStore, events: Int64[Tensor, "k"]) -> RowOrder:
    """Whether rows of one time are sorted by a node, over pairs of events drawn by a fixed seed."""
    rng, time = np.random.default_rng(0), store.time[events].numpy()
    low, high = np.searchsorted(time, time), np.searchsorted(time, time, side="right")
    tied = np.flatnonzero(high - low > 1)
    if not len(tied):
        return RowOrder(None, None, None, None)
    one = rng.choice(tied, SAMPLED_PAIRS)
    other = rng.integers(low[one], high[one])
    first, later = np.minimum(one, other), np.maximum(one, other)
    src, dst = store.src[events].numpy(), store.dst[events].numpy()
    apart, next_row = one != other, time[1:] == time[:-1]
    return RowOrder(
        source=_share_larger(src[later], src[first]),
        destination=_share_larger(dst[later], dst[first]),
        neighbors=float((src[1:] == src[:-1])[next_row].mean()),
        chance=float((src[one] == src[other])[apart].mean()) if apart.any() else None,
    )


def _share_larger(later: np.ndarray, first: np.ndarray) -> float | None:
    differ = later != first
    return float((later > first)[differ].mean()) if differ.any() else None


def bias(evaluation_set: EvaluationSet, scores: dict[str, Float[Tensor, "p"]]) -> list[BatchSizeBias]:
    """What the size of a batch is worth: the fewer pairs are ranked at once, the higher the mean."""
    pairs, found = evaluation_set.pairs, []
    for name, score in scores.items():
        judged = {size: link_metrics(score, pairs.label, pairs.group, size) for size in BATCH_SIZES}
        by_size = {str(size): one.ap for size, one in judged.items()}
        found.append(BatchSizeBias(name, by_size, judged[PUBLISHED_BATCH].ap_pooled))
    return found


RULE_MODELS = ("edgebank", "popularity")


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What a rule has on one question of the protocol."""

    rule: str
    split: str
    setting: str
    negatives: str
    ap: float
    ap_pooled: float
    auc: float
    auc_pooled: float


def score_rules(stream: Stream, evaluation_set: EvaluationSet, dataset: str) -> dict[str, Float[Tensor, "p"]]:
    """The score of each pair by each rule; all of them know strictly earlier events only."""
    scores = {name: _score_model(name, stream, evaluation_set, dataset) for name in RULE_MODELS}
    return scores | {
        f"recency of the {name}": _score_recency(stream, evaluation_set, own)
        for name, own in RECENCY_KEYS.items()
    }


def evaluate_rules(evaluation_set: EvaluationSet, scores: dict[str, Float[Tensor, "p"]]) -> list[RuleResult]:
    """The rules judged as any model is."""
    found = []
    for rule, score in scores.items():
        one = link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group)
        found.append(RuleResult(rule, **evaluation_set.about, **{key: getattr(one, key) for key in METRICS}))
    return found


METRICS = ("ap", "ap_pooled", "auc", "auc_pooled")


def _score_model(
    name: str, stream: Stream, evaluation_set: EvaluationSet, dataset: str
) -> Float[Tensor, "p"]:
    """A registered model without training, with the settings that `evaluate` gives it."""
    spec, about = find_model(name), evaluation_set.about
    config = build_config(spec.config, find_preset(name, dataset, about["negatives"]))
    scorer = spec.build(config, DatasetFacts.of(stream.store, stream.split.train))
    return score_evaluation_set(scorer, stream, evaluation_set)


Columns = tuple[np.ndarray, np.ndarray, int]
RECENCY_KEYS: dict[str, Callable[[Columns], np.ndarray]] = {
    "pair": lambda ends: ends[0] * ends[2] + ends[1],
    "source": lambda ends: ends[0],
    "destination": lambda ends: ends[1],
}


def _score_recency(
    stream: Stream, evaluation_set: EvaluationSet, own: Callable[[Columns], np.ndarray]
) -> Float[Tensor, "p"]:
    """1 / (1 + age of the last event with this key), 0 where there is none."""
    store, pairs = stream.store, evaluation_set.pairs
    key = own((store.src.numpy(), store.dst.numpy(), store.num_nodes))
    asked = own((pairs.src.numpy(), pairs.dst.numpy(), store.num_nodes))
    when = pairs.time.numpy()
    return torch.from_numpy(1 / (1 + when - find_last_times(key, store.time.numpy(), asked, when)))
