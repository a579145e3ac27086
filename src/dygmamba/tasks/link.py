"""Link prediction: will this pair interact at this time?

Legend: k training events, b events of a batch, p pairs, g ranked events, c candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.core.choices import BestMetric, StoredNegativesName
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.history.negatives import (
    PUBLISHED_SEEDS,
    NegativeRequest,
    load_or_sample_negatives,
    sample_negatives,
)
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.losses import PAIRWISE_LOSS, Loss, RankingLoss
from dygmamba.tasks.metric_names import EARLIER_EVENTS, WHOLE_STREAM
from dygmamba.tasks.metrics import count_ranked_above, link_metrics, rank_metrics
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES, CandidateDestinations, TrainingNegatives

PUBLISHED_POOLS = {"transductive": WHOLE_STREAM, "inductive": "new-node events of the period"}
VALIDATION_NEGATIVES: dict[str, tuple[str, ...]] = {
    "random": ("random",),
    "historical": ("historical",),
    "mixed": ("random", "historical"),
}
# Events of the validation that are ranked after every epoch, and candidates of each
RANKED_EVENTS, RANKED_CANDIDATES = 1_000, 50


@dataclass(frozen=True, slots=True)
class RankedEvents:
    """Events of an evaluation set whose last pairs are their candidates, equally many for each."""

    event: Int64[Tensor, "g"]  # index into the events of the set
    width: int  # candidates of each

    def mrr(self, score: Float[Tensor, "p"]) -> float:
        """Return the mean reciprocal rank, given the scores of all pairs of the set."""
        candidates = score[len(score) - len(self.event) * self.width :].view(len(self.event), self.width)
        return rank_metrics(1 + count_ranked_above(score[self.event], candidates), ("mrr",))["mrr"]


@dataclass(frozen=True, slots=True)
class LinkTask:
    """Tell training events from negative pairs.

    The best epoch must reach both the best AP and the best AUC, or, if events are `ranked`, the best MRR.
    """

    negatives: TrainingNegatives
    validation: EvaluationSet | None
    loss_function: Loss = PAIRWISE_LOSS
    ranked: RankedEvents | None = None

    @staticmethod
    def create(
        store: EventStore,
        split: Split,
        device: torch.device,
        train_negatives: StoredNegativesName = "random",
        loss_function: Loss = PAIRWISE_LOSS,
        best_metric: BestMetric = "ap",
    ) -> "LinkTask":
        """Create the task for a stream.

        Args:
            store: Events of the stream.
            split: Its training, validation and test events.
            device: Device of the training negatives.
            train_negatives: Kind of training negatives; validation uses the matching kinds (`VALIDATION_NEGATIVES`).
            loss_function: Training loss; a `RankingLoss` samples several candidates of the event's source.
            best_metric: Validation metric that chooses the best epoch; "mrr" ranks a sample of the events as well.
        """
        if train_negatives not in TRAINING_NEGATIVES:
            raise ConfigError(
                f"`train_negatives={train_negatives!r}` is of earlier versions, whose runs still open and predict; "
                f"train with {', '.join(TRAINING_NEGATIVES)}",
                code="former-negatives",
            )
        if not len(split.train):
            raise EventError(
                "no training events are left after holding out new nodes; use a longer stream",
                code="no-training-events",
            )
        negatives = (
            CandidateDestinations.create(store, split, device, loss_function.candidates)
            if isinstance(loss_function, RankingLoss)
            else TRAINING_NEGATIVES[train_negatives].create(store, split, device)
        )
        if not len(split.val) and not len(split.test):
            return LinkTask(negatives, None, loss_function)
        validation, ranked = build_validation_set(store, split, train_negatives), None
        if best_metric == "mrr":
            validation, ranked = add_candidates(store, split, validation)
        return LinkTask(negatives, validation, loss_function, ranked)

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        return self.negatives.draw_negatives(seed, epoch)

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return each event as a pair of label 1, then its negatives with label 0."""
        pairs = self.negatives.build_queries(events, others)
        # negatives carry the columns of their positive: the value alone tells nothing
        return pairs.with_columns(QueryColumns.of_events(events.features, events.event[pairs.group]))

    def loss(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        return self.loss_function(logits, label)

    @property
    def needs_joint_pairs(self) -> bool:
        return self.loss_function.needs_joint_pairs

    def metrics(self, score: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        """Return AP and AUC as the mean over published batches and over all pairs at once, and MRR of ranked events."""
        pairs, ranked = evaluation_set.pairs, self.ranked
        if ranked is None:
            return link_metrics(score, pairs.label, pairs.group)
        own = slice(len(score) - len(ranked.event) * ranked.width)  # without the candidates
        metrics = link_metrics(score[own], pairs.label[own], pairs.group[own])
        return metrics | {"mrr": ranked.mrr(score)}

    def is_better(self, metrics: dict[str, Any], best: Mapping[str, float]) -> bool:
        """Return whether MRR, or without it both AP and AUC (as in DyGLib), are at least those of the best epoch."""
        names = ("ap", "auc") if self.ranked is None else ("mrr",)
        return all(metrics[name] >= best[name] for name in names)


def add_candidates(
    store: EventStore, split: Split, evaluation_set: EvaluationSet
) -> tuple[EvaluationSet, RankedEvents]:
    """Add random candidates for some events of an evaluation set, evenly spread over its period."""
    events, pairs = evaluation_set.events, evaluation_set.pairs
    chosen = torch.linspace(0, len(events) - 1, min(RANKED_EVENTS, len(events)), dtype=torch.float64).long()
    earlier_than = events if split.protocol == "time" else None
    candidates = SampledCandidates.create(store, RANKED_CANDIDATES, seed=0, earlier_than=earlier_than)
    node, mask = candidates.for_events(events[chosen])
    # equally many for each, though the first events have fewer to choose from
    width = int(mask.sum(dim=1).min())
    node = node[:, :width]
    own = events[chosen].repeat_interleave(width)
    index = chosen.repeat_interleave(width)
    merged = PairBatch.from_pairs(
        torch.cat([pairs.src, store.src[own]]),
        torch.cat([pairs.dst, node.flatten()]),
        torch.cat([pairs.time, store.time[own]]),
    ).with_labels(torch.cat([pairs.label, torch.zeros(len(own))]), torch.cat([pairs.group, index]))
    if pairs.columns is not None:  # a candidate carries the columns of its event
        merged = merged.with_columns(replace(pairs.columns, row=events[merged.group]))
    event_index = torch.cat([evaluation_set.event_index, index])
    return replace(evaluation_set, pairs=merged, event_index=event_index), RankedEvents(chosen, width)


def build_validation_set(
    store: EventStore, split: Split, train_negatives: StoredNegativesName
) -> EvaluationSet:
    """Build the validation pairs of a kind of training negatives, without candidates to rank."""
    kinds = VALIDATION_NEGATIVES[train_negatives]
    return merge_evaluation_sets([build_link_set(store, split, "val", strategy=kind) for kind in kinds])


def merge_evaluation_sets(evaluation_sets: Sequence[EvaluationSet]) -> EvaluationSet:
    """Merge evaluation sets of the same events: the positives once, then the negatives of every set."""
    first, *more = evaluation_sets
    if not more:
        return first
    parts = [first.pairs, *(evaluation_set.pairs.select_label(0.0) for evaluation_set in more)]
    columns = zip(*((part.src, part.dst, part.time, part.label, part.group) for part in parts), strict=True)
    src, dst, time, label, group = (torch.cat(column) for column in columns)
    pairs = PairBatch.from_pairs(src, dst, time).with_labels(label, group)
    if first.pairs.columns is not None:
        pairs = pairs.with_columns(replace(first.pairs.columns, row=first.events[pairs.group]))
    kinds = "+".join(evaluation_set.about["negatives"] for evaluation_set in evaluation_sets)
    return EvaluationSet(first.about | {"negatives": kinds}, first.events, first.earlier, pairs, pairs.group)


def build_negative_request(
    store: EventStore, split: Split, name: str, setting: str, strategy: str, seed: int | None = None
) -> NegativeRequest:
    """Return how the protocol of the split samples the negatives of an evaluation set.

    Args:
        store: Events of the stream.
        split: Its training, validation and test events.
        name: "val" or "test".
        setting: "transductive" (all nodes) or "inductive" (new nodes).
        strategy: Name of the negative sampler.
        seed: Replaces the published seed.
    """
    events = split.val if name == "val" else split.test
    observed = split.train if name == "val" else split.val
    earlier_only = split.protocol == "time"
    known = torch.arange(int(events[-1]) + 1 if earlier_only and len(events) else len(store))
    if setting == "inductive":
        # published: the new-node samplers know only the new-node events of their split
        events = known = split.touching_new_nodes(store, events)
    until = float(store.time[observed[-1]]) if len(observed) else float("-inf")
    seed = PUBLISHED_SEEDS[name, setting] if seed is None else seed
    return NegativeRequest(strategy, events, known, until, seed, earlier_only=earlier_only)


def has_events(store: EventStore, split: Split, name: str, setting: str) -> bool:
    """Return whether an evaluation set has positives; a stream without new nodes has no inductive setting."""
    events = split.val if name == "val" else split.test
    return len(events if setting == "transductive" else split.touching_new_nodes(store, events)) > 0


def build_link_set(
    store: EventStore,
    split: Split,
    name: str,
    setting: str = "transductive",
    strategy: str = "random",
    seed: int | None = None,
    folder: Path | None = None,
) -> EvaluationSet:
    """Build the evaluation set of a split and setting: each event with one negative.

    The arguments are those of `build_negative_request`; with `folder` the negatives are stored there and reused.
    """
    request = build_negative_request(store, split, name, setting, strategy, seed)
    if not len(request.events):
        raise EventError(
            f"the {name} period has no {setting} events; use a longer stream", code="no-evaluation-events"
        )
    drawn = (
        sample_negatives(store, request)
        if folder is None
        else load_or_sample_negatives(store, request, folder)
    )
    events, number = request.events, torch.arange(len(request.events)).repeat(2)
    src, dst = torch.cat([store.src[events], drawn.src]), torch.cat([store.dst[events], drawn.dst])
    pairs = PairBatch.from_pairs(src, dst, store.time[events].repeat(2))
    pairs = pairs.with_columns(QueryColumns.of_events(store.features, events.repeat(2)))
    pairs = pairs.with_labels((torch.arange(2 * len(events)) < len(events)).float(), number)
    drawn_from = EARLIER_EVENTS if request.earlier_only else PUBLISHED_POOLS[setting]
    about = {"split": name, "setting": setting, "negatives": strategy, "drawn_from": drawn_from}
    return EvaluationSet(about, events, _list_earlier(split, name), pairs, number)


def build_event_set(store: EventStore, split: Split, name: str, setting: str) -> EvaluationSet:
    """Build the evaluation set of a split and setting without negatives, for ranks among candidates."""
    events = build_negative_request(store, split, name, setting, "random").events
    number = torch.arange(len(events))
    pairs = PairBatch.from_pairs(store.src[events], store.dst[events], store.time[events])
    pairs = pairs.with_labels(torch.ones(len(events)), number)
    return EvaluationSet(
        {"split": name, "setting": setting}, events, _list_earlier(split, name), pairs, number
    )


def _list_earlier(split: Split, name: str) -> tuple[Tensor, ...]:
    return (split.train,) if name == "val" else (split.train, split.val)
