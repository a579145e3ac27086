"""Objectives of boosted trees: a loss of all rows of a training table, with its derivatives by each row's scores.

Legend: r rows, k outputs, e events, w rows of an event: the event itself and its candidates.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from dygmamba.models.base import TargetFacts

MIN_SHARE = 1e-6  # of a class in training, so that its initial logit is finite


@runtime_checkable
class Objective(Protocol):
    """Loss of the rows of a training table, given the scores of each of them."""

    def fit_base(self) -> Float64[Tensor, "k"]:
        """Return the constants that the trees are added to."""
        ...

    def loss(self, score: Float64[Tensor, "r k"]) -> Float64[Tensor, ""]:
        """Return the mean loss."""
        ...

    def derivatives(self, score: Float64[Tensor, "r k"]) -> Float64[Tensor, "r k 2"]:
        """Return the first and second derivative of the summed loss by each score."""
        ...


@dataclass(frozen=True, slots=True)
class LogisticObjective:
    """Binary cross-entropy of each row; `weights` are those of the two states, none for equal ones."""

    label: Float64[Tensor, "r"]
    weights: tuple[float, ...] = ()

    def _weigh(self, values: Float64[Tensor, "r"]) -> Float64[Tensor, "r"]:
        """Multiply by the weight of each row's state."""
        return torch.where(self.label > 0, *self.weights[::-1]) * values if self.weights else values

    def fit_base(self) -> Float64[Tensor, "1"]:
        """Return the logit of the mean label."""
        share = self._weigh(self.label).sum() / self._weigh(torch.ones_like(self.label)).sum()
        return torch.logit(share.clamp(MIN_SHARE, 1 - MIN_SHARE))[None]

    def loss(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, ""]:
        weight = self._weigh(torch.ones_like(self.label)) if self.weights else None
        return binary_cross_entropy_with_logits(score[:, 0], self.label, weight=weight)

    def derivatives(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, "r 1 2"]:
        chance = torch.sigmoid(score[:, 0])
        return torch.stack([self._weigh(chance - self.label), self._weigh(chance) * (1 - chance)], dim=1)[
            :, None
        ]


@dataclass(frozen=True, slots=True)
class SoftmaxObjective:
    """Softmax cross-entropy of each event among its candidates (Cao et al., ListNet, ICML 2007, with one true item).

    The rows of an event are consecutive, the event itself first. The second derivatives are the diagonal of the
    Hessian, p (1 - p).
    """

    width: int  # rows of an event

    def fit_base(self) -> Float64[Tensor, "1"]:
        """Return 0: a constant cancels in the softmax."""
        return torch.zeros(1, dtype=torch.float64)

    def loss(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, ""]:
        rows = score.view(-1, self.width)  # [e w]
        return (rows.logsumexp(dim=1) - rows[:, 0]).mean()

    def derivatives(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, "r 1 2"]:
        chance = score.view(-1, self.width).softmax(dim=1)
        gradient = chance.clone()
        gradient[:, 0] -= 1
        return torch.stack([gradient.flatten(), (chance * (1 - chance)).flatten()], dim=1)[:, None]


@dataclass(frozen=True, slots=True)
class ClassObjective:
    """Cross-entropy of one logit per class; `weights` are those of the classes, none for equal ones."""

    label: Float64[Tensor, "r"]
    outputs: int
    weights: tuple[float, ...] = ()

    @property
    def _weight(self) -> Float64[Tensor, "k"]:
        return torch.tensor(self.weights or (1.0,) * self.outputs, dtype=torch.float64)

    def fit_base(self) -> Float64[Tensor, "k"]:
        """Return the logarithms of the classes' shares."""
        count = torch.bincount(self.label.long(), minlength=self.outputs).double() * self._weight
        return torch.log((count / count.sum()).clamp(min=MIN_SHARE))

    def loss(self, score: Float64[Tensor, "r k"]) -> Float64[Tensor, ""]:
        total = cross_entropy(score, self.label.long(), weight=self._weight, reduction="sum")
        return total / len(self.label)

    def derivatives(self, score: Float64[Tensor, "r k"]) -> Float64[Tensor, "r k 2"]:
        weight, chance = self._weight[self.label.long()][:, None], torch.softmax(score, dim=1)
        true = one_hot(self.label.long(), self.outputs)
        return torch.stack([weight * (chance - true), weight * chance * (1 - chance)], dim=2)


@dataclass(frozen=True, slots=True)
class RegressionObjective:
    """Squared error of one number."""

    label: Float64[Tensor, "r"]

    def fit_base(self) -> Float64[Tensor, "1"]:
        return self.label.mean()[None]

    def loss(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, ""]:
        return (score[:, 0] - self.label).square().mean()

    def derivatives(self, score: Float64[Tensor, "r 1"]) -> Float64[Tensor, "r 1 2"]:
        error = 2 * (score[:, 0] - self.label)
        return torch.stack([error, torch.full_like(error, 2.0)], dim=1)[:, None]


def create_objective(label: Float64[Tensor, "r"], target: TargetFacts) -> Objective:
    """Return the loss of single rows for a target of this kind."""
    if target.kind == "binary":
        return LogisticObjective(label, target.weights)
    if target.kind == "classes":
        return ClassObjective(label, target.outputs, target.weights)
    return RegressionObjective(label)
