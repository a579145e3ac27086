"""Logistic regression with a handful of coefficients, fitted exactly.

Legend: p rows, c columns.
"""

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

MAX_STEPS = 100
TOLERANCE = 1e-12


def fit_logistic(
    x: Float64[Tensor, "p c"], target: Float64[Tensor, "p"], offset: Float64[Tensor, "p"] | float = 0.0
) -> Float64[Tensor, "c"]:
    """Fit a logistic regression by Newton's method with step halving; a tiny ridge keeps constant columns solvable."""
    weight, ridge = x.new_zeros(x.shape[1]), 1e-9 * torch.eye(x.shape[1], dtype=x.dtype)

    def loss(at: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(x @ at + offset, target))

    now = loss(weight)
    for _ in range(MAX_STEPS):
        p = torch.sigmoid(x @ weight + offset)
        slope = x.T @ (p - target) / len(x)
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + ridge
        step = torch.linalg.solve(hessian, slope)
        while (then := loss(weight - step)) > now and float(step.abs().max()) > TOLERANCE:
            step = step / 2
        if then > now or float(step.abs().max()) <= TOLERANCE:
            break
        weight, now = weight - step, then
    return weight
