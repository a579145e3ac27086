"""Node tasks: predict the label of an event's source (two states, classes or a number) from strictly earlier events.

Legend: e events, k training events, b events of a batch, p pairs, d width of an embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch, EventStore
from dygmamba.data.events.splits import PUBLISHED_SPLIT, Split, SplitRule
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import LabelledPairs, PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.node_targets import NodeTarget


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Prediction of the label of each event's source; the target's watched metric selects the best epoch.

    The destination of a query is the event's own, for models that look at both nodes. Labels are kept apart from the
    stream, so that no model can read them.
    """

    target: NodeTarget
    label: Float32[Tensor, "e"]  # encoded by the target, on the device
    partner: Int64[Tensor, "k"]  # the training events' destinations
    weight: Float32[Tensor, "*w"]  # of a positive, or of each class, in the loss
    validation: EvaluationSet
    test: EvaluationSet
    embedding: Float32[Tensor, "e d"] | None = None  # what queries carry, one row per event

    @staticmethod
    def create(store: EventStore, split: Split, device: torch.device, target: NodeTarget) -> "NodeTask":
        """Create the task of a target for a labelled stream."""
        assert store.label is not None
        label = target.encode(store.label)
        return NodeTask(
            target=target,
            label=label.to(device),
            partner=store.dst[split.train].to(device),
            weight=target.loss_weight().to(device),
            validation=build_node_set(store, split, "val", label),
            test=build_node_set(store, split, "test", label),
        )

    def with_embeddings(self, embedding: Float32[Tensor, "e d"]) -> "NodeTask":
        """Return the task whose queries carry these embeddings of their events."""
        validation, test = (
            replace(one, pairs=one.pairs.with_columns(QueryColumns(one.events, embedding)))
            for one in (self.validation, self.test)
        )
        return replace(self, embedding=embedding, validation=validation, test=test)

    def evaluation_set(self, name: str) -> EvaluationSet:
        return {"val": self.validation, "test": self.test}[name]

    @property
    def needs_joint_pairs(self) -> bool:
        return False

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Return the events' own destinations: nothing is drawn."""
        return self.partner

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return each event as a query about its source; `group` is its row in the stream."""
        pairs = PairBatch.from_pairs(events.src, others, events.time)
        if self.embedding is not None:
            pairs = pairs.with_columns(QueryColumns(events.event, self.embedding))
        return pairs.with_labels(self.label[events.event], events.event)

    def loss(self, logits: Float32[Tensor, "p *c"], label: Float32[Tensor, "p"]) -> Tensor:
        return self.target.loss(logits, label, self.weight)

    def metrics(self, score: Float[Tensor, "p *c"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        return self.target.metrics(score, evaluation_set.pairs.label)

    def constant_metrics(self, evaluation_set: EvaluationSet) -> dict[str, float]:
        """Return the metrics of the best constant prediction from the labels of the training period."""
        train = self.label[evaluation_set.earlier[0].to(self.label.device)]
        return self.target.constant_metrics(train.cpu(), evaluation_set.pairs.label)

    def is_better(self, metrics: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
        return self.target.is_better(metrics, best)


def build_node_set(store: EventStore, split: Split, name: str, label: Float32[Tensor, "e"]) -> EvaluationSet:
    """Build the evaluation set of the "val" or "test" period: one query about each event's source."""
    events = split.val if name == "val" else split.test
    earlier = (split.train,) if name == "val" else (split.train, split.val)
    pairs = PairBatch.from_pairs(store.src[events], store.dst[events], store.time[events])
    labelled = pairs.with_labels(label[events], events)
    return EvaluationSet({"split": name}, events, earlier, labelled, torch.arange(len(events)))


def split_for_nodes(store: EventStore, by: SplitRule = PUBLISHED_SPLIT) -> Split:
    """Split chronologically (70/15/15 or as the user chose) without holding out new nodes, as DyGLib does."""
    return by.split(store, new_node_share=0.0)
