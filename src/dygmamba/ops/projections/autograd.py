"""Linear maps with hand-written gradients."""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dygmamba.core.process_settings import use_matmul_precision
from dygmamba.ops.projections import autocast_dtype, iterate, power_of_two


class SplitProjection(torch.autograd.Function):
    """x W^T, split in two halves; uses the gradients of the halves without concatenating them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return linear(x, weight).chunk(2, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows, dweight = x.flatten(0, 1), torch.empty_like(weight)
        first, second = (grad.flatten(0, 1) for grad in grads)
        top, bottom = weight.chunk(2)
        dx = (first @ top).addmm_(second, bottom)
        for grad, part in zip((first, second), dweight.chunk(2), strict=True):
            torch.mm(grad.mT, rows, out=part)
        return dx.view_as(x), dweight


def split_projection(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of x W^T, in autocast's precision if it is enabled, as `linear` does."""
    dtype = autocast_dtype(x)
    return SplitProjection.apply(x.to(dtype), weight.to(dtype))


class SpectralBound(torch.autograd.Function):
    """The bound; d bound = bound tr(P dG) / (2 tr(P G)) with the scaled power P of the Gram matrix G.

    Takes the matrices twice, once per factor of G = W W^T, so that autograd adds up the two gradients.
    """

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
