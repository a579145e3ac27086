"""Link prediction: will this pair interact at this time?

Legend: e events, k training events, b of a batch, m their destinations, p pairs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import Split
from dygmamba.sampling.negatives import (
    PUBLISHED_SEEDS,
    NegativeRequest,
    load_or_sample_negatives,
    sample_negatives,
)
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.losses import PAIRWISE_LOSS, Loss, RankingLoss
from dygmamba.tasks.metrics import link_metrics
from dygmamba.tasks.training_negatives import (
    TRAINING_NEGATIVES,
    CandidateDestinations,
    TrainingNegatives,
    TrainNegativesName,
)

SPLITS = ("val", "test")
SETTINGS = ("transductive", "inductive")
VALIDATION_NEGATIVES: dict[TrainNegativesName, tuple[str, ...]] = {
    "random": ("random",),
    "historical": ("historical",),
    "mixed": ("random", "historical"),
    "mixed-odds": ("random",),  # what it learns is whom a source chooses, and these keep the source
}


@dataclass(frozen=True, slots=True)
class LinkTask:
    """Training events against pairs that were not; validation AP and AUC must both reach their best."""

    opponents: TrainingNegatives
    validation: EvaluationSet | None
    judge: Loss = PAIRWISE_LOSS

    @staticmethod
    def of(
        store: EventStore,
        split: Split,
        device: torch.device,
        against: TrainNegativesName = "random",
        judge: Loss = PAIRWISE_LOSS,
    ) -> "LinkTask":
        """Link prediction on a stream, validated by what it is to answer; random pairs as published."""
        if not len(split.train):
            raise EventError("no training events are left after holding out new nodes; use a longer stream")
        opponents = (
            CandidateDestinations.of(store, split, device, judge.candidates)
            if isinstance(judge, RankingLoss)
            else TRAINING_NEGATIVES[against].of(store, split, device)
        )
        if not len(split.val) and not len(split.test):
            return LinkTask(opponents, None, judge)
        evaluation_sets = [
            build_link_set(store, split, "val", strategy=kind) for kind in VALIDATION_NEGATIVES[against]
        ]
        return LinkTask(opponents, merge_evaluation_sets(evaluation_sets), judge)

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """For each training event a number that says which pair is asked about beside it."""
        return self.opponents.others(seed, epoch)

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Each event as a pair of label 1, then the pairs beside them."""
        return self.opponents.questions(events, others)

    def loss(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """Of every pair alone, or of each event among its candidates."""
        return self.judge(logits, label)

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"] | None:
        """Minus the log of how often each is asked, where that is to be taken out of what is learned."""
        return self.opponents.offset(pairs)

    @property
    def together(self) -> bool:
        """Whether an event's pairs must be in one pass."""
        return self.judge.together

    def metrics(self, score: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        """AP and AUC, both ways."""
        return asdict(link_metrics(score, evaluation_set.pairs.label, evaluation_set.pairs.group))

    def better(self, found: dict[str, Any], best_ap: float, best_auc: float) -> bool:
        """As published: both must be reached."""
        return found["ap"] >= best_ap and found["auc"] >= best_auc


def merge_evaluation_sets(evaluation_sets: Sequence[EvaluationSet]) -> EvaluationSet:
    """The same events with the negatives of every exam; the events themselves are asked about once."""
    first, *more = evaluation_sets
    if not more:
        return first
    parts = [first.pairs, *(evaluation_set.pairs.of_label(0.0) for evaluation_set in more)]
    columns = zip(*((part.src, part.dst, part.time, part.label, part.group) for part in parts), strict=True)
    pairs = PairBatch.of(*(torch.cat(column) for column in columns))
    kinds = "+".join(evaluation_set.about["negatives"] for evaluation_set in evaluation_sets)
    return EvaluationSet(first.about | {"negatives": kinds}, first.events, first.earlier, pairs, pairs.group)


def build_negative_request(
    store: EventStore, split: Split, name: str, setting: str, strategy: str, seed: int | None = None
) -> NegativeRequest:
    """How the published protocol draws the negatives of an exam; `seed` replaces the published one."""
    events = split.val if name == "val" else split.test
    observed = split.train if name == "val" else split.val
    known = torch.arange(len(store))
    if setting == "inductive":  # the published new-node samplers know the new-node events of their split only
        events = known = split.touching_new_nodes(store, events)
    until = float(store.time[observed[-1]]) if len(observed) else float("-inf")
    seed = PUBLISHED_SEEDS[name, setting] if seed is None else seed
    return NegativeRequest(strategy, events, known, until, seed)


def has_events(store: EventStore, split: Split, name: str, setting: str) -> bool:
    """Whether an exam has any positives: a stream without new nodes has no inductive setting."""
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
    """The positives of a period and setting, each with a negative, drawn or, where `folder` holds them, read."""
    request = build_negative_request(store, split, name, setting, strategy, seed)
    if not len(request.events):
        raise EventError(f"the {name} period has no {setting} events; use a longer stream")
    drawn = (
        sample_negatives(store, request)
        if folder is None
        else load_or_sample_negatives(store, request, folder)
    )
    events, number = request.events, torch.arange(len(request.events)).repeat(2)
    pairs = PairBatch.of(
        torch.cat([store.src[events], drawn.src]),
        torch.cat([store.dst[events], drawn.dst]),
        store.time[events].repeat(2),
        label=(torch.arange(2 * len(events)) < len(events)).float(),
        group=number,
    )
    earlier = (split.train,) if name == "val" else (split.train, split.val)
    about = {"split": name, "setting": setting, "negatives": strategy}
    return EvaluationSet(about, events, earlier, pairs, number)
