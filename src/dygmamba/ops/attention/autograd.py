"""Attention in torch, faster than the definitions: hand-written gradients, and the cheaper order of the products.

A pair's sequences attend to each other, y = softmax(q) w^T v / sqrt(d). Short ones first multiply S = softmax(q) w^T,
[l l] per sequence, long ones M = w^T v, [d d].

Legend: p sequences (r = 2 p of p pairs), l tokens, d width.
"""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops import attention
from dygmamba.ops.dispatch import serving

LONG = 128  # tokens above which torch's softmax over a middle dimension is slow on an H200
# Tokens above which [d d] is faster: the width by operation count and as measured, and at least so many, so that
# shorter sequences keep the bits of earlier versions.
FEWEST = 128
FULL_PRECISION = (torch.float32, torch.float64)  # half precision occurs under autocast


@serving(lambda score, mask: score.shape[1] > LONG and score.shape[2] > 1)
def masked_softmax(score: Tensor, mask: Tensor) -> Tensor:
    """Divide exponentials by their sum, for many tokens that are not contiguous in memory."""
    score = torch.where(mask[..., None], score, torch.finfo(score.dtype).min)
    weight = torch.exp(score - score.detach().amax(dim=1, keepdim=True)) * mask[..., None]
    return weight / weight.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)


class GatedSum(torch.autograd.Function):
    """The gated sum; a token's gradient w dy + ds g is one product of rank 2, written once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
        """[p l d], [d] and [p l] to [p d]."""
        with torch.autocast(x.device.type, enabled=False):
            weight = attention.masked_softmax.reference(x @ gate[:, None], mask)  # [p l 1]
            total = (weight.mT @ x).squeeze(1)
        ctx.save_for_backward(x, gate, weight, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of tokens and gate."""
        (dy,), (x, gate, weight, total) = grads, ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            mean = (total * dy).sum(dim=-1)[:, None, None]
            dscore = weight * (x @ dy[..., None] - mean)  # [p l 1]
            dx = torch.cat([weight, dscore], dim=-1) @ torch.stack([dy, gate.expand_as(dy)], dim=1)
            return dx, dscore.flatten() @ x.flatten(0, 1), None


def gated_sum(x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
    """[p l d], [d] and [p l] to [p d]."""
    return GatedSum.apply(x, gate, mask)


def half_pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d] in half precision (under autocast): differentiated by torch."""
    query, key, value = projected.chunk(3, dim=-1)
    query, key = query.softmax(dim=-1) * query.shape[-1] ** -0.5, attention.masked_softmax(key, mask)
    p = len(query) // 2
    if query.shape[1] < query.shape[2]:
        return (query @ key.roll(p, dims=0).mT) @ value.roll(p, dims=0)
    return query @ (key.mT @ value).roll(p, dims=0)


class ShortAttention(torch.autograd.Function):
    """y = S v with S = softmax(q) w^T / sqrt(d): [r l 3d] and the mask [r l] to y [r l d]."""

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


@serving(lambda projected, mask: projected.dtype in FULL_PRECISION)
def short_pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return ShortAttention.apply(projected, mask)


class Softmaxes:
    """The operations of `LongAttention` on single numbers, between the products; a GPU has kernels for them."""

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
    """y = softmax(q) M with M = w^T v / sqrt(d): [r l 3d] and the mask [r l] to y [r l d].

    With dM = softmax(q)^T dy, the softmax of the keys needs no sum over tokens of its own: dw = v dM^T / sqrt(d) gives
    sum_l w dw = sum_d M dM.
    """

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


def _is_long(projected: Tensor, mask: Tensor) -> bool:
    _, length, channels = projected.shape
    return projected.dtype in FULL_PRECISION and length > max(FEWEST, channels // 3)


@serving(_is_long)
def long_pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return LongAttention.apply(projected, mask, Softmaxes())


def pair_sides(x: Tensor) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return each half of the sequences with the half it is paired with."""
    first, second = slice(len(x) // 2), slice(len(x) // 2, None)
    return (first, second), (second, first)


def write_product(target: Tensor, first: Tensor, second: Tensor) -> None:
    """Write a batched product into a slice of channels; on a CPU via a copy, as torch would write single elements."""
    if target.device.type == "cpu":
        target.copy_(first @ second)
    else:
        torch.bmm(first, second, out=target)


def softmax_backward(grad: Tensor, output: Tensor, dim: int) -> Tensor:
    """Return the gradient of a softmax's input."""
    return torch.ops.aten._softmax_backward_data.default(grad, output, dim, output.dtype)
