"""The split projection with its own gradient: uses the gradients of the halves without concatenating them."""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


class SplitProjection(torch.autograd.Function):
    """x W^T, split in two halves."""

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
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return SplitProjection.apply(x.to(dtype), weight.to(dtype))
