"""Objectives of boosted trees for nodes: logistic, softmax and squared loss, each with its derivatives.

Legend: r rows, k outputs.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from dygmamba.core.choices import TargetKind

LEAST_SHARE = 1e-6  # of a class in training, so that its initial logit is finite


class NodeObjective(Protocol):
    """A loss that trees are grown on; `weights` are those of the classes, empty for none."""

    def __init__(self, outputs: int, weights: tuple[float, ...]) -> None: ...

    def fit_base(self, target: Float64[Tensor, "r"]) -> Float64[Tensor, "k"]:
        """Return the constant outputs with the lowest loss."""
        ...

    def loss(self, score: Float64[Tensor, "r k"], target: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        """Return the mean loss of the rows."""
        ...

    def derivatives(
        self, score: Float64[Tensor, "r k"], target: Float64[Tensor, "r"]
    ) -> Float64[Tensor, "r k 2"]:
        """Return the first and second derivative of each row's loss by each of its outputs."""
        ...


@dataclass(frozen=True, slots=True)
class BinaryObjective:
    """Binary cross-entropy of one logit."""

    outputs: int
    weights: tuple[float, ...]

    def _weight(self, target: Float64[Tensor, "r"]) -> Float64[Tensor, "r"]:
        low, high = self.weights or (1.0, 1.0)
        return torch.where(target > 0, high, low).double()

    def fit_base(self, target: Float64[Tensor, "r"]) -> Float64[Tensor, "1"]:
        weight = self._weight(target)
        share = ((weight * target).sum() / weight.sum()).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
        return torch.logit(share)[None]

    def loss(self, score: Float64[Tensor, "r 1"], target: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        return binary_cross_entropy_with_logits(score[:, 0], target, weight=self._weight(target))

    def derivatives(
        self, score: Float64[Tensor, "r 1"], target: Float64[Tensor, "r"]
    ) -> Float64[Tensor, "r 1 2"]:
        weight, chance = self._weight(target), torch.sigmoid(score[:, 0])
        return torch.stack([weight * (chance - target), weight * chance * (1 - chance)], dim=1)[:, None]


@dataclass(frozen=True, slots=True)
class ClassObjective:
    """Cross-entropy of one logit per class."""

    outputs: int
    weights: tuple[float, ...]

    def _weight(self) -> Float64[Tensor, "k"]:
        return torch.tensor(self.weights or (1.0,) * self.outputs, dtype=torch.float64)

    def fit_base(self, target: Float64[Tensor, "r"]) -> Float64[Tensor, "k"]:
        count = torch.bincount(target.long(), minlength=self.outputs).double() * self._weight()
        return torch.log((count / count.sum()).clamp(min=LEAST_SHARE))

    def loss(self, score: Float64[Tensor, "r k"], target: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        return cross_entropy(score, target.long(), weight=self._weight(), reduction="sum") / len(target)

    def derivatives(
        self, score: Float64[Tensor, "r k"], target: Float64[Tensor, "r"]
    ) -> Float64[Tensor, "r k 2"]:
        weight, chance = self._weight()[target.long()][:, None], torch.softmax(score, dim=1)
        true = one_hot(target.long(), self.outputs)
        return torch.stack([weight * (chance - true), weight * chance * (1 - chance)], dim=2)


@dataclass(frozen=True, slots=True)
class RegressionObjective:
    """Squared error of one number."""

    outputs: int
    weights: tuple[float, ...]

    def fit_base(self, target: Float64[Tensor, "r"]) -> Float64[Tensor, "1"]:
        return target.mean()[None]

    def loss(self, score: Float64[Tensor, "r 1"], target: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        return (score[:, 0] - target).square().mean()

    def derivatives(
        self, score: Float64[Tensor, "r 1"], target: Float64[Tensor, "r"]
    ) -> Float64[Tensor, "r 1 2"]:
        error = 2 * (score[:, 0] - target)
        return torch.stack([error, torch.full_like(error, 2.0)], dim=1)[:, None]


OBJECTIVES: dict[TargetKind, type[NodeObjective]] = {
    "binary": BinaryObjective,
    "classes": ClassObjective,
    "regression": RegressionObjective,
}
