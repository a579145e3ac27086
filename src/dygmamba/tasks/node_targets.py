"""Targets of node tasks: two states, several classes or a number; each with its loss and its metrics.

The label of an event is the target of its source at that time. The kind of a target is found from the labels of the
stream (`infer_kind`) or given by the user.

Legend: e events, p queries, c classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dygmamba.core.choices import TargetKind
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split
from dygmamba.tasks.metric_names import NODE_METRICS
from dygmamba.tasks.metrics import classification_metrics, pair_metric, regression_metrics

FEW_CLASSES = 50  # whole numbers with at most this many different values are classes
MAX_CLASSES = 1_000  # outputs of a model


class NodeTarget:
    """Base class of what a model of nodes predicts; a target of several outputs or with weights overrides these."""

    __slots__ = ()
    kind: ClassVar[TargetKind]
    watched: ClassVar[str]  # metric that selects the best epoch

    @property
    def outputs(self) -> int:
        """Number of outputs of the model."""
        return 1

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the classes; none for a number, or if all are equal."""
        return ()

    def encode(self, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e"]:
        """Return labels as the loss and the metrics take them."""
        raise NotImplementedError

    def loss_weight(self) -> Float32[Tensor, "*c"]:
        """Return the weights of the classes in the loss: of a positive, or of each class."""
        return torch.tensor(1.0)

    def loss(
        self, output: Float[Tensor, "p *c"], target: Float32[Tensor, "p"], weight: Float32[Tensor, "*w"]
    ) -> Tensor:
        """Return the sum of the losses of all queries; `weight` is the loss weight on the outputs' device."""
        raise NotImplementedError

    def metrics(self, output: Float[Tensor, "p *c"], target: Float[Tensor, "p"]) -> dict[str, Any]:
        """Return the metrics over a whole period at once."""
        raise NotImplementedError

    def constant_metrics(self, train: Float[Tensor, "k"], target: Float[Tensor, "p"]) -> dict[str, float]:
        """Return the metrics of the best constant prediction; `train` are the targets of training, all encoded.

        Empty if a constant says nothing, as for AUC.
        """
        return {}

    def is_better(self, metrics: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
        """Return whether the watched metric of a validation is at least as good as the best so far."""
        return metrics[self.watched] >= best.get(self.watched, -1.0)


def node_metrics(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> dict[str, float | int]:
    """Return how well the scores rank events of label 1 above the others; nan if the period lacks a class."""
    ranking = {name: pair_metric(name, score, label) for name in NODE_METRICS["binary"]}
    return {**ranking, "n": len(label), "positives": int((label > 0).sum())}


@dataclass(frozen=True, slots=True)
class BinaryTarget(NodeTarget):
    """Two states; the output is the logit of the larger label."""

    values: tuple[float, float]
    positive_weight: float = 1.0  # of a positive in the loss
    kind: ClassVar[TargetKind] = "binary"
    watched: ClassVar[str] = "auc"

    @property
    def weights(self) -> tuple[float, ...]:
        return 1.0, self.positive_weight

    def encode(self, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e"]:
        return (label == self.values[1]).float()

    def loss_weight(self) -> Float32[Tensor, ""]:
        return torch.tensor(self.positive_weight)

    def loss(
        self, output: Float[Tensor, "p"], target: Float32[Tensor, "p"], weight: Float32[Tensor, ""]
    ) -> Tensor:
        return binary_cross_entropy_with_logits(output, target, pos_weight=weight, reduction="sum")

    def metrics(self, output: Float[Tensor, "p"], target: Float[Tensor, "p"]) -> dict[str, Any]:
        return node_metrics(output, target)


@dataclass(frozen=True, slots=True)
class ClassTarget(NodeTarget):
    """One of several classes, the labels of the training period in ascending order; an output is a logit per class.

    A label that training does not have is no class: its events count as errors.
    """

    values: tuple[float, ...]
    class_weights: tuple[float, ...] = ()  # in the loss; without any all classes have weight 1
    kind: ClassVar[TargetKind] = "classes"
    watched: ClassVar[str] = "macro_f1"

    @property
    def outputs(self) -> int:
        return len(self.values)

    @property
    def weights(self) -> tuple[float, ...]:
        return self.class_weights

    def encode(self, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e"]:
        """Return the number of each label's class; that of an unknown label is the number of classes."""
        values = torch.tensor(self.values, device=label.device)
        number = torch.searchsorted(values, label.contiguous()).clamp(max=len(values) - 1)
        return torch.where(values[number] == label, number, len(values)).float()

    def loss_weight(self) -> Float32[Tensor, "c"]:
        return torch.tensor(self.class_weights or (1.0,) * len(self.values))

    def loss(
        self, output: Float[Tensor, "p c"], target: Float32[Tensor, "p"], weight: Float32[Tensor, "c"]
    ) -> Tensor:
        return cross_entropy(output, target.long(), weight=weight, reduction="sum")

    def metrics(self, output: Float[Tensor, "p c"], target: Float[Tensor, "p"]) -> dict[str, Any]:
        return classification_metrics(output.argmax(dim=1), target.long()) | {"classes": len(self.values)}

    def constant_metrics(self, train: Float[Tensor, "k"], target: Float[Tensor, "p"]) -> dict[str, float]:
        """Return the metrics of the most frequent class of the training period."""
        most_frequent = int(torch.bincount(train.long()).argmax())
        found = classification_metrics(torch.full_like(target, most_frequent).long(), target.long())
        return {name: found[name] for name in NODE_METRICS[self.kind]}


@dataclass(frozen=True, slots=True)
class RegressionTarget(NodeTarget):
    """A number; a model learns it in units of its standard deviation in training, from its mean there."""

    mean: float
    scale: float
    kind: ClassVar[TargetKind] = "regression"
    watched: ClassVar[str] = "mae"

    def encode(self, label: Float32[Tensor, "e"]) -> Float32[Tensor, "e"]:
        return ((label.double() - self.mean) / self.scale).float()

    def decode(self, output: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
        """Return outputs in the unit of the labels."""
        return output.double() * self.scale + self.mean

    def loss(
        self, output: Float[Tensor, "p"], target: Float32[Tensor, "p"], weight: Float32[Tensor, ""]
    ) -> Tensor:
        return (output - target).square().sum()

    def metrics(self, output: Float[Tensor, "p"], target: Float[Tensor, "p"]) -> dict[str, Any]:
        return regression_metrics(self.decode(output), self.decode(target))

    def constant_metrics(self, train: Float[Tensor, "k"], target: Float[Tensor, "p"]) -> dict[str, float]:
        """Return the absolute error of the median and the squared error of the mean of the training period."""
        true, own = self.decode(target), self.decode(train)
        best = {"mae": own.median(), "rmse": own.mean()}
        return {name: regression_metrics(value.expand_as(true), true)[name] for name, value in best.items()}

    def is_better(self, metrics: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
        return metrics["mae"] <= best.get("mae", float("inf"))


def infer_kind(label: Float32[Tensor, "e"]) -> TargetKind:
    """Return "binary" for two values, "classes" for few whole numbers, else "regression"."""
    values = torch.unique(label)
    if len(values) <= 2:
        return "binary"
    is_whole = bool((values == values.round()).all())
    return "classes" if is_whole and len(values) <= FEW_CLASSES else "regression"


def create_target(store: EventStore, split: Split, kind: str = "auto", balance: bool = False) -> NodeTarget:
    """Create the target of a labelled stream.

    Args:
        store: The stream.
        split: Periods; classes, weights and units come from the training period.
        kind: "binary", "classes", "regression", or "auto" to find it from the labels.
        balance: Weight classes so that all count the same in the loss.

    Raises:
        EventError: The stream has no labels, or they cannot be learned from.
        ConfigError: The kind is unknown or does not fit the options.
    """
    if store.label is None:
        raise EventError(
            "the stream has no labels to classify; read it with `label=COLUMN`", code="no-labels"
        )
    known = store.label[torch.cat([split.train, split.val])]  # the test period chooses nothing
    chosen = infer_kind(known) if kind == "auto" else kind
    if chosen not in TARGETS:
        raise ConfigError(
            f"`target` takes auto, {', '.join(get_args(TargetKind))}; got '{kind}'", code="unknown-target"
        )
    return TARGETS[chosen](store.label, split, balance)


def _create_binary(label: Float32[Tensor, "e"], split: Split, balance: bool) -> BinaryTarget:
    values = torch.unique(label[torch.cat([split.train, split.val])]).tolist()
    if len(values) == 1 and values[0] in (0, 1):
        values = [0.0, 1.0]
    if len(values) != 2:
        raise EventError(
            f"a binary target needs two different labels; the stream has {len(values)}. Recode the column, or set "
            "`target` to 'classes' or 'regression'",
            code="invalid-labels",
        )
    target = BinaryTarget((values[0], values[1]))
    positive = target.encode(label)
    for period, events in (("training", split.train), ("validation", split.val)):
        positives = int(positive[events].sum())
        if positives in (0, len(events)):
            raise EventError(
                f"the {period} period has {positives} positives among {len(events)} events; "
                "both classes must occur. Use a longer stream",
                code="one-class",
            )
    return BinaryTarget(target.values, compute_positive_weight(positive[split.train])) if balance else target


def _create_classes(label: Float32[Tensor, "e"], split: Split, balance: bool) -> ClassTarget:
    values, counts = torch.unique(label[split.train], return_counts=True)
    _require_validation(split)
    if len(values) < 2:
        raise EventError(
            f"the training period has {len(values)} classes; at least two must occur. Use a longer stream",
            code="one-class",
        )
    if len(values) > MAX_CLASSES:
        raise EventError(
            f"the training period has {len(values):,} different labels, but at most {MAX_CLASSES:,} classes are "
            "possible; set `target` to 'regression' or group the labels",
            code="too-many-classes",
        )
    weights = (counts.sum() / (len(values) * counts)).tolist() if balance else ()
    return ClassTarget(tuple(values.tolist()), tuple(weights))


def _create_regression(label: Float32[Tensor, "e"], split: Split, balance: bool) -> RegressionTarget:
    if balance:
        raise ConfigError(
            "`balance` weights classes, but the target is a number; leave it out, or set `target` to 'classes'",
            code="balance-without-classes",
        )
    _require_validation(split)
    known = label[split.train].double()
    scale = float(known.std(correction=0)) if len(known) else 0.0
    if not scale > 0:
        raise EventError(
            "all labels of the training period are equal, so there is nothing to learn; use a longer stream",
            code="constant-labels",
        )
    return RegressionTarget(float(known.mean()), scale)


def _require_validation(split: Split) -> None:
    if not len(split.val):
        raise EventError(
            "the validation period has no event; use a longer stream or choose another `split`",
            code="empty-split",
        )


def compute_positive_weight(label: Float32[Tensor, "p"]) -> float:
    """Return negatives per positive, the weight with which both classes count the same in the loss."""
    positives = float(label.sum())
    return (len(label) - positives) / positives


TARGETS = {"binary": _create_binary, "classes": _create_classes, "regression": _create_regression}
