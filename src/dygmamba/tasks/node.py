"""Node classification: predict the binary label of an event's source from strictly earlier events.

Legend: e events, k training events, b events of a batch, p pairs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.errors import EventError
from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import PUBLISHED_SPLIT, Split, SplitRule
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import average_precision, roc_auc


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """AUC and AP over a whole period at once; nan if the period lacks a class."""

    auc: float
    ap: float
    n: int
    positives: int


def node_metrics(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> NodeMetrics:
    """Compute how well the scores rank events of label 1 above the others."""
    positives = int((label > 0).sum())
    return NodeMetrics(roc_auc(score, label), average_precision(score, label), len(label), positives)


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Binary classification of each event's source; the best epoch has the best validation AUC.

    The destination of a query is the event's own, for models that look at both nodes. Labels are kept apart from the
    stream, so that no model can read them.
    """

    label: Float32[Tensor, "e"]  # on the device
    partner: Int64[Tensor, "k"]  # the training events' destinations
    weight: Float32[Tensor, ""]  # of a positive in the loss
    validation: EvaluationSet
    test: EvaluationSet

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device, balance: bool = False) -> "NodeTask":
        """Create the task for a labelled stream; raise EventError if its labels cannot be learned from."""
        label = check_labels(store, split)
        weight = compute_positive_weight(label[split.train]) if balance else 1.0
        return NodeTask(
            label=label.to(device),
            partner=store.dst[split.train].to(device),
            weight=torch.tensor(weight, device=device),
            validation=build_node_set(store, split, "val"),
            test=build_node_set(store, split, "test"),
        )

    def evaluation_set(self, name: str) -> EvaluationSet:
        return {"val": self.validation, "test": self.test}[name]

    @property
    def needs_joint_pairs(self) -> bool:
        return False

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Return the events' own destinations: nothing is drawn."""
        return self.partner

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Return each event as a query about its source; `group` is its row in the stream."""
        return PairBatch.from_pairs(events.src, others, events.time, self.label[events.event], events.event)

    def offset(self, pairs: PairBatch) -> None:
        """Return None: no query is sampled, so nothing needs a correction."""

    def loss(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        return binary_cross_entropy_with_logits(logits, label, pos_weight=self.weight, reduction="sum")

    def metrics(self, score: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        return asdict(node_metrics(score, evaluation_set.pairs.label))

    def is_better(self, metrics: dict[str, Any], best: Mapping[str, float]) -> bool:
        return metrics["auc"] >= best["auc"]


def build_node_set(store: EventStore, split: Split, name: str) -> EvaluationSet:
    """Build the evaluation set of the "val" or "test" period: one query about each event's source."""
    events = split.val if name == "val" else split.test
    earlier = (split.train,) if name == "val" else (split.train, split.val)
    label = torch.zeros(len(store)) if store.label is None else store.label
    pairs = PairBatch.from_pairs(
        store.src[events], store.dst[events], store.time[events], label[events], events
    )
    return EvaluationSet({"split": name}, events, earlier, pairs, torch.arange(len(events)))


def split_for_nodes(store: EventStore, by: SplitRule = PUBLISHED_SPLIT) -> Split:
    """Split chronologically (70/15/15 or as the user chose) without holding out new nodes, as DyGLib does."""
    return by.split(store, new_node_share=0.0)


def compute_positive_weight(label: Float32[Tensor, "p"]) -> float:
    """Return negatives per positive, the weight with which both classes count the same in the loss."""
    positives = float(label.sum())
    return (len(label) - positives) / positives


def check_labels(store: EventStore, split: Split) -> Float32[Tensor, "e"]:
    """Return the labels of a stream; raise EventError unless both 0 and 1 occur in training and in validation."""
    label = store.label
    if label is None:
        raise EventError(
            "the stream has no labels to classify; read it with `label=COLUMN`", code="no-labels"
        )
    odd = (label != 0) & (label != 1)
    if bool(odd.any()):
        row = int(odd.nonzero()[0])
        raise EventError(
            f"labels must be 0 or 1; event {row} has {float(label[row]):g}. Recode the column",
            code="invalid-labels",
        )
    periods: tuple[tuple[str, Int64[Tensor, "k"]], ...] = (
        ("training", split.train),
        ("validation", split.val),
    )
    for period, events in periods:
        positives = int(label[events].sum())
        if positives in (0, len(events)):
            raise EventError(
                f"the {period} period has {positives} positives among {len(events)} events; "
                "both classes must occur. Use a longer stream",
                code="one-class",
            )
    return label
