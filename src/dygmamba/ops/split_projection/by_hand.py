"""The gradients of the halves used as they come, instead of being put side by side first."""

# once_differentiable gives `backward` a first argument by position, which pyright takes for another signature
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


class Halves(torch.autograd.Function):
    """x W^T in two halves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """One product."""
        ctx.save_for_backward(x, weight)
        return linear(x, weight).chunk(2, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Of x the second half's product is added to the first's; of W each half is written to its place."""
        x, weight = ctx.saved_tensors
        rows, dweight = x.flatten(0, 1), torch.empty_like(weight)
        first, second = (grad.flatten(0, 1) for grad in grads)
        top, bottom = weight.chunk(2)
        dx = (first @ top).addmm_(second, bottom)
        for grad, part in zip((first, second), dweight.chunk(2), strict=True):
            torch.mm(grad.mT, rows, out=part)
        return dx.view_as(x), dweight


def halves(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in autocast's precision where it is on, as a linear map would be."""
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return Halves.apply(x.to(dtype), weight.to(dtype))
