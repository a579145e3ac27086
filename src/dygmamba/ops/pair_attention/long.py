"""Long sequences: y = softmax(q) M with M = w^T v / sqrt(d), [d d] per sequence; hand-written gradients.

With dM = softmax(q)^T dy, the softmax of the keys needs no sum over tokens of its own: dw = v dM^T / sqrt(d) gives
sum_l w dw = sum_d M dM. The operations between the products are `Softmaxes`, which a GPU has kernels for.

Legend: r = 2 p sequences of p pairs, l tokens, d width.
"""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.pair_attention.gradients import FULL_PRECISION, pair_sides, softmax_backward, write_product

# Number of tokens above which this is faster: the width by operation count and as measured. At least FEWEST, so that
# shorter sequences keep the bits of earlier versions.
FEWEST = 128


def serves(projected: Tensor) -> bool:
    """Return whether sequences are long and in full precision."""
    _, length, channels = projected.shape
    return projected.dtype in FULL_PRECISION and length > max(FEWEST, channels // 3)


class Softmaxes:
    """The operations on single numbers, between the products of matrices."""

    def forward(self, projected: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return softmax(q), the exponentials of the keys [r l d], and their sums [r d], infinite without tokens."""
        query, key, _ = projected.chunk(3, dim=-1)
        weight = torch.where(mask[..., None], key, torch.finfo(key.dtype).min)
        weight.sub_(weight.amax(dim=1, keepdim=True)).exp_()
        total = weight.sum(dim=1).masked_fill_(~mask.any(dim=1, keepdim=True), torch.inf)
        return query.softmax(dim=-1), weight, total

    def write_query_gradient(self, target: Tensor, grad: Tensor, query: Tensor) -> None:
        """Write the gradient of the queries, given that of softmax(q)."""
        target.copy_(softmax_backward(grad, query, -1))

    def write_key_gradient(self, target: Tensor, weight: Tensor, slope: Tensor, mean: Tensor) -> None:
        """Write weight (slope - mean), with a mean for each sequence and column; `slope` may be overwritten."""
        torch.mul(weight, slope.sub_(mean[:, None]), out=target)


class LongAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y [r l d]."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, mask: Tensor, softmaxes: Softmaxes) -> Tensor:
        """Divide the exponentials by their sum in M, which has fewer entries."""
        value = projected.chunk(3, dim=-1)[2]
        query, weight, total = softmaxes.forward(projected, mask)
        share = (query.shape[-1] ** -0.5 / total).roll(len(query) // 2, dims=0)
        mixed = query.new_empty(len(query), query.shape[-1], query.shape[-1])
        for own, other in pair_sides(query):
            torch.bmm(weight[other].mT, value[other], out=mixed[own])
        mixed *= share[..., None]
        ctx.save_for_backward(projected, query, weight, share, mixed)
        ctx.softmaxes = softmaxes
        return query @ mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of queries, keys and values side by side."""
        projected, query, weight, share, mixed = ctx.saved_tensors
        (dy,), value, dprojected = grads, projected.chunk(3, dim=-1)[2], torch.empty_like(projected)
        dquery, dkey, dvalue = dprojected.chunk(3, dim=-1)
        ctx.softmaxes.write_query_gradient(dquery, dy @ mixed.mT, query)
        dmixed = query.mT @ dy
        mean = (mixed * dmixed).sum(dim=-1) * share * query.shape[-1] ** 0.5  # [r d]
        dmixed *= share[..., None]
        for own, other in pair_sides(query):
            write_product(dvalue[own], weight[own], dmixed[other])
            slope = value[own] @ dmixed[other].mT
            ctx.softmaxes.write_key_gradient(dkey[own], weight[own], slope, mean[other])
        return dprojected, None, None


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return LongAttention.apply(projected, mask, Softmaxes())
