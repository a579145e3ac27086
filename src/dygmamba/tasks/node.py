"""Node classification: in which of two states is the source of an event, judged from what came before?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.data.events import EventBatch, EventStore
from dygmamba.data.splits import Split, chronological_split
from dygmamba.errors import EventError
from dygmamba.sampling.view import PairBatch
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


def node_queries(events: EventBatch) -> PairBatch:
    """Each event as a question about its source; pairwise models also get its destination, none its label."""
    unknown = torch.zeros_like(events.label)
    return PairBatch.of(events.src, events.dst, events.time, label=unknown)


def node_split(store: EventStore) -> Split:
    """The chronological 70/15/15 with every node kept in training (DyGLib)."""
    return chronological_split(store, new_node_share=0.0)


def positive_weight(label: Float32[Tensor, "p"]) -> float:
    """Negatives per positive: with it both classes weigh the same in the loss."""
    positives = float(label.sum())
    return (len(label) - positives) / positives


def check_labels(store: EventStore, split: Split) -> Float32[Tensor, "e"]:
    """The labels of a stream that can be learned from: 0 or 1, both in training and in validation."""
    label = store.label
    if label is None:
        raise EventError(
            "the stream has no labels to classify; import it with: dygmamba data import FILE --label COLUMN"
        )
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
