"""Logistic regression with a handful of weights, fitted exactly.

Legend: p rows, c columns.
"""

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

MAX_STEPS = 100
TOLERANCE = 1e-12  # largest change of a weight at which the fit ends


def fit_logistic(
    x: Float64[Tensor, "p c"],
    target: Float64[Tensor, "p"],
    offset: Float64[Tensor, "p"] | float = 0.0,
    penalty: Float64[Tensor, "c"] | None = None,
) -> Float64[Tensor, "c"]:
    """Fit a logistic regression by Newton's method with step halving.

    Args:
        x: Columns.
        target: Probabilities to fit.
        offset: Added to the log-odds.
        penalty: Of half the squared weights; a tiny one is always added, which keeps constant logits solvable.
    """
    weight = x.new_zeros(x.shape[1])
    ridge = weight + 1e-9 if penalty is None else penalty + 1e-9

    def loss(at: Tensor) -> float:
        fit = binary_cross_entropy_with_logits(x @ at + offset, target)
        return float(fit + 0.5 * (ridge * at.square()).sum())

    now = loss(weight)
    for _ in range(MAX_STEPS):
        p = torch.sigmoid(x @ weight + offset)
        slope = x.T @ (p - target) / len(x) + ridge * weight
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + torch.diag(ridge)
        step = torch.linalg.solve(hessian, slope)
        while (then := loss(weight - step)) > now and float(step.abs().max()) > TOLERANCE:
            step = step / 2
        if then > now or float(step.abs().max()) <= TOLERANCE:
            break
        weight, now = weight - step, then
    return weight
