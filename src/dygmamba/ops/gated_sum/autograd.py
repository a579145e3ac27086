"""The gated sum with its own gradient: a token's gradient w dy + ds g is one product of rank 2, written once."""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.masked_softmax.reference import masked_softmax


class GatedSum(torch.autograd.Function):
    """The sum of tokens weighted by the softmax of their products with a gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
        """[p l d], [d] and [p l] to [p d]."""
        with torch.autocast(x.device.type, enabled=False):
            weight = masked_softmax(x @ gate[:, None], mask)  # [p l 1]
            total = (weight.mT @ x).squeeze(1)
        ctx.save_for_backward(x, gate, weight, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of tokens and gate."""
        (dy,), (x, gate, weight, total) = grads, ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            mean = (total * dy).sum(dim=-1)[:, None, None]
            dscore = weight * (x @ dy[..., None] - mean)  # [p l 1]
            dx = torch.cat([weight, dscore], dim=-1) @ torch.stack([dy, gate.expand_as(dy)], dim=1)
            return dx, dscore.flatten() @ x.flatten(0, 1), None


def gated_sum(x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
    """[p l d], [d] and [p l] to [p d]."""
    return GatedSum.apply(x, gate, mask)
