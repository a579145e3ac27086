"""Node classification: in which of two states is the source of an event, judged from what came before?"""

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
    """AUC and AP over a whole period at once; nan where a period lacks a class."""

    auc: float
    ap: float
    n: int
    positives: int


def node_metrics(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> NodeMetrics:
    """How well the scores rank the events of label 1 above the others."""
    positives = int((label > 0).sum())
    return NodeMetrics(roc_auc(score, label), average_precision(score, label), len(label), positives)


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The state of each event's source; the pair's other end is the event's own, for models that look at it.

    Labels stand apart from the stream, which shows a model none. Validation AUC alone decides.
    """

    label: Float32[Tensor, "e"]  # on the device
    partner: Int64[Tensor, "k"]  # the training events' destinations
    weight: Float32[Tensor, ""]  # of a positive in the loss
    validation: EvaluationSet
    test: EvaluationSet

    @staticmethod
    def of(store: EventStore, split: Split, device: torch.device, balance: bool = False) -> "NodeTask":
        """Classification of a labelled stream; refused where there is nothing to learn."""
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
        """That of `val` or `test`."""
        return {"val": self.validation, "test": self.test}[name]

    @property
    def together(self) -> bool:
        """Every question is judged alone."""
        return False

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """The events' own destinations: nothing is drawn."""
        return self.partner

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """Each event as a question about its source; `group` is its row in the stream."""
        return PairBatch.of(events.src, others, events.time, self.label[events.event], events.event)

    def offset(self, pairs: PairBatch) -> None:
        """Nothing: no question is drawn."""

    def loss(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """Binary cross-entropy, positives by their weight."""
        return binary_cross_entropy_with_logits(logits, label, pos_weight=self.weight, reduction="sum")

    def metrics(self, score: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        """AUC and AP over the whole period."""
        return asdict(node_metrics(score, evaluation_set.pairs.label))

    def better(self, found: dict[str, Any], best_ap: float, best_auc: float) -> bool:
        """The higher AUC, or the same once more."""
        return found["auc"] >= best_auc


def build_node_set(store: EventStore, split: Split, name: str) -> EvaluationSet:
    """The events of a period as questions about their sources; everything before them has happened."""
    events = split.val if name == "val" else split.test
    earlier = (split.train,) if name == "val" else (split.train, split.val)
    label = torch.zeros(len(store)) if store.label is None else store.label
    pairs = PairBatch.of(store.src[events], store.dst[events], store.time[events], label[events], events)
    return EvaluationSet({"split": name}, events, earlier, pairs, torch.arange(len(events)))


def split_for_nodes(store: EventStore, by: SplitRule = PUBLISHED_SPLIT) -> Split:
    """The chronological 70/15/15, or what the user chose, with every node kept in training (DyGLib)."""
    return by.split(store, new_node_share=0.0)


def compute_positive_weight(label: Float32[Tensor, "p"]) -> float:
    """Negatives per positive: with it both classes weigh the same in the loss."""
    positives = float(label.sum())
    return (len(label) - positives) / positives


def check_labels(store: EventStore, split: Split) -> Float32[Tensor, "e"]:
    """The labels of a stream that can be learned from: 0 or 1, both in training and in validation."""
    label = store.label
    if label is None:
        raise EventError("the stream has no labels to classify; read it with `label=COLUMN`")
    odd = (label != 0) & (label != 1)
    if bool(odd.any()):
        row = int(odd.nonzero()[0])
        raise EventError(f"labels must be 0 or 1, event {row} has {float(label[row]):g}; recode the column")
    periods: tuple[tuple[str, Int64[Tensor, "k"]], ...] = (
        ("training", split.train),
        ("validation", split.val),
    )
    for period, events in periods:
        positives = int(label[events].sum())
        if positives in (0, len(events)):
            raise EventError(
                f"the {period} period has {positives} positives among {len(events)} events; "
                "both classes must occur, use a longer stream"
            )
    return label
