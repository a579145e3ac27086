"""Objectives of boosted trees: a loss of all rows of a training table, with its derivatives by each row's score.

Legend: r rows, e events, w rows of an event: the event itself and its candidates.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

BISECTIONS = 50  # after which the interval is as small as float64 can resolve


@runtime_checkable
class Objective(Protocol):
    """Loss of the rows of a training table, given a score for each of them."""

    def fit_base(self, start: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        """Return the constant that the trees are added to; `start` are the offsets of the rows."""
        ...

    def loss(self, score: Float64[Tensor, "r"]) -> Float[Tensor, ""]:
        """Return the mean loss."""
        ...

    def derivatives(self, score: Float64[Tensor, "r"]) -> Float64[Tensor, "r 2"]:
        """Return the first and second derivative of the summed loss by each score."""
        ...


@dataclass(frozen=True, slots=True)
class LogisticObjective:
    """Binary cross-entropy of each row."""

    label: Float64[Tensor, "r"]

    def fit_base(self, start: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        return fit_base_logit(self.label, start)

    def loss(self, score: Float64[Tensor, "r"]) -> Float[Tensor, ""]:
        return binary_cross_entropy_with_logits(score, self.label).float()

    def derivatives(self, score: Float64[Tensor, "r"]) -> Float64[Tensor, "r 2"]:
        chance = torch.sigmoid(score)
        return torch.stack([chance - self.label, chance * (1 - chance)], dim=1)


@dataclass(frozen=True, slots=True)
class SoftmaxObjective:
    """Softmax cross-entropy of each event among its candidates (Cao et al., ListNet, ICML 2007, with one true item).

    The rows of an event are consecutive, the event itself first. The second derivatives are the diagonal of the
    Hessian, p (1 - p).
    """

    width: int  # rows of an event

    def fit_base(self, start: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
        """Return 0: a constant cancels in the softmax."""
        return start.new_zeros(())

    def loss(self, score: Float64[Tensor, "r"]) -> Float[Tensor, ""]:
        rows = score.view(-1, self.width)  # [e w]
        return (rows.logsumexp(dim=1) - rows[:, 0]).mean().float()

    def derivatives(self, score: Float64[Tensor, "r"]) -> Float64[Tensor, "r 2"]:
        chance = score.view(-1, self.width).softmax(dim=1)
        gradient = chance.clone()
        gradient[:, 0] -= 1
        return torch.stack([gradient.flatten(), (chance * (1 - chance)).flatten()], dim=1)


def fit_base_logit(label: Float64[Tensor, "r"], start: Float64[Tensor, "r"]) -> Float64[Tensor, ""]:
    """Return the constant logit that, added to the offsets, gives the mean label; by bisection, as it is monotone."""
    share = label.mean().clamp(1e-6, 1 - 1e-6)
    low, high = torch.logit(share) - start.max(), torch.logit(share) - start.min()
    for _ in range(BISECTIONS if low < high else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if torch.sigmoid(middle + start).mean() < share else (low, middle)
    return (low + high) / 2
