"""Many tokens: y = softmax(q) M with M = w^T v / sqrt(d), [d d] a sequence; gradients by hand.

With dM = softmax(q)^T dy, the softmax of the keys needs no sum over tokens of its own: dw = v dM^T / sqrt(d) gives
sum_l w dw = sum_d M dM.

Legend: r = 2 p sequences of p pairs, l tokens, d width.
"""

# once_differentiable gives `backward` a first argument by position, which pyright takes for another signature
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.pair_attention.gradients import FULL_PRECISION, pair_sides, softmax_backward, write_product

# Tokens beyond which this way is the quicker one. The arithmetic says the width, and so do times on a CPU; those on an
# H200 say 128 (docs/log.md). On a CPU it is never fewer, so that shorter sequences keep the bits they always had.
LONG = {"cuda": 128}
FEWEST = 128


def serves(asked: Tensor) -> bool:
    """Whether the tokens are many, in full precision."""
    _, length, channels = asked.shape
    return asked.dtype in FULL_PRECISION and length > LONG.get(asked.device.type, max(FEWEST, channels // 3))


class LongAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y [r l d]."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, mask: Tensor) -> Tensor:
        """Exponentials are divided by their sum in M, where they are fewer."""
        query, key, value = asked.chunk(3, dim=-1)
        query = query.softmax(dim=-1)
        weight = torch.where(mask[..., None], key, torch.finfo(key.dtype).min)
        weight.sub_(weight.amax(dim=1, keepdim=True)).exp_()
        total = weight.sum(dim=1).masked_fill_(~mask.any(dim=1, keepdim=True), torch.inf)  # [r d]
        share = (query.shape[-1] ** -0.5 / total).roll(len(query) // 2, dims=0)
        mixed = query.new_empty(len(query), query.shape[-1], query.shape[-1])
        for own, other in pair_sides(query):
            torch.bmm(weight[other].mT, value[other], out=mixed[own])
        mixed *= share[..., None]
        ctx.save_for_backward(asked, query, weight, share, mixed)
        return query @ mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradients of queries, keys and values, written side by side."""
        asked, query, weight, share, mixed = ctx.saved_tensors
        (dy,), value, dasked = grads, asked.chunk(3, dim=-1)[2], torch.empty_like(asked)
        dquery, dkey, dvalue = dasked.chunk(3, dim=-1)
        dquery.copy_(softmax_backward(dy @ mixed.mT, query, -1))
        dmixed = query.mT @ dy
        mean = (mixed * dmixed).sum(dim=-1) * share * query.shape[-1] ** 0.5  # [r d]
        dmixed *= share[..., None]
        for own, other in pair_sides(query):
            write_product(dvalue[own], weight[own], dmixed[other])
            slope = (value[own] @ dmixed[other].mT).sub_(mean[other, None])
            torch.mul(weight[own], slope, out=dkey[own])
        return dasked, None


def pair_attention(asked: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return LongAttention.apply(asked, mask)
