"""The bound with its own gradient: d bound = bound tr(P dG) / (2 tr(P G)).

P is the scaled power of the Gram matrix, dG = dW W^T + W dW^T.
"""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.core.process_settings import use_matmul_precision
from dygmamba.ops.spectral_bound.reference import iterate, power_of_two


class SpectralBound(torch.autograd.Function):
    """Takes the matrices twice, once per factor of W W^T, so that autograd adds up the two gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """[k n d] to [k]."""
        with use_matmul_precision("highest"), torch.autocast(left.device.type, enabled=False):
            unit = power_of_two(torch.linalg.vector_norm(left, torch.inf, dim=(1, 2), keepdim=True))
            scaled = left / unit
            gram = scaled @ scaled.mT
            bound, power = iterate(gram)
            leading = (power * gram).sum(dim=(1, 2), keepdim=True)
        ctx.save_for_backward(scaled, bound, power, leading)
        return (unit * bound).flatten()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both factors; zero matrices have none."""
        scaled, bound, power, leading = ctx.saved_tensors
        with use_matmul_precision("highest"), torch.autocast(scaled.device.type, enabled=False):
            slope = grads[0][:, None, None] * bound / (2 * leading.clamp(min=1e-30)) * power  # [k n n]
            return slope @ scaled, (scaled.mT @ slope).mT


def spectral_bound(weight: Tensor) -> Tensor:
    """[k n d] to [k]."""
    return SpectralBound.apply(weight, weight)


def bound_matrices(weight: Tensor) -> Tensor:
    """[k n d] to [k n d]."""
    return weight / spectral_bound(weight).clamp(min=1)[:, None, None]
