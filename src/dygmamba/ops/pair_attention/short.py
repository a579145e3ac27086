"""Short sequences: y = S v with S = softmax(q) w^T / sqrt(d), [l l] per sequence; hand-written gradients.

Legend: r = 2 p sequences of p pairs, l tokens, d width.
"""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.pair_attention.gradients import FULL_PRECISION, pair_sides, softmax_backward, write_product


def serves(projected: Tensor) -> bool:
    """Return whether the inputs are in full precision."""
    return projected.dtype in FULL_PRECISION


class ShortAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y [r l d]."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, mask: Tensor) -> Tensor:
        """A sequence without tokens gets weights from the softmax, but its S is set to 0."""
        query, key, value = projected.chunk(3, dim=-1)
        query = query.softmax(dim=-1)
        weight = torch.where(mask[..., None], key, torch.finfo(key.dtype).min).softmax(dim=1)
        share = (mask.any(dim=1).to(query.dtype) * query.shape[-1] ** -0.5).roll(len(query) // 2)
        mixed = query.new_empty(*mask.shape, mask.shape[1])  # [r l l]
        for own, other in pair_sides(query):
            torch.bmm(query[own], weight[other].mT, out=mixed[own])
        mixed *= share[:, None, None]
        y = torch.empty_like(query)
        for own, other in pair_sides(query):
            torch.bmm(mixed[own], value[other], out=y[own])
        ctx.save_for_backward(projected, query, weight, share, mixed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of queries, keys and values side by side."""
        projected, query, weight, share, mixed = ctx.saved_tensors
        (dy,), value, dprojected = grads, projected.chunk(3, dim=-1)[2], torch.empty_like(projected)
        dquery, dkey, dvalue = dprojected.chunk(3, dim=-1)
        dmixed, dsoft, dweight = torch.empty_like(mixed), torch.empty_like(query), torch.empty_like(weight)
        for own, other in pair_sides(query):
            torch.bmm(dy[own], value[other].mT, out=dmixed[own])
        dmixed *= share[:, None, None]
        for own, other in pair_sides(query):
            write_product(dvalue[other], mixed[own].mT, dy[own])
            torch.bmm(dmixed[own], weight[other], out=dsoft[own])
            torch.bmm(dmixed[own].mT, query[own], out=dweight[other])
        dquery.copy_(softmax_backward(dsoft, query, -1))
        dkey.copy_(softmax_backward(dweight, weight, 1))
        return dprojected, None


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return ShortAttention.apply(projected, mask)
