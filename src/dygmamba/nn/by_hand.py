"""Parts of the model with their gradients written down, which spares the copies and sums over tokens of autograd's.

Each is a few lines of torch by definition, and tests hold it to these: `linear(x, W).chunk(2)`, a masked softmax times
the tokens, and `mixers.across`: y = softmax(q) w^T v / sqrt(d), v the values of the other sequence of the pair and w
the softmax of its keys over the tokens that exist.

Legend: r = 2 p sequences of p pairs (the first of each, then the second of each), l tokens, d width.
"""

# once_differentiable gives `backward` a first argument by position, which pyright takes for another signature
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dygmamba.nn.attention import masked_softmax


class Halves(torch.autograd.Function):
    """x W^T in two halves, whose gradients are used as they come instead of being put side by side."""

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


def halves(x: Float[Tensor, "q l d"], weight: Float[Tensor, "k d"]) -> tuple[Tensor, Tensor]:
    """The halves of x W^T along the channels, in autocast's precision where it is on."""
    device, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return Halves.apply(x.to(dtype), weight.to(dtype))


class GatedSum(torch.autograd.Function):
    """The sum of tokens weighted by the softmax of their products with a gate.

    A token's gradient w dy + ds g is one product of rank 2: it is written once.
    """

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


class LongAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y = softmax(q) M, M = w^T v / sqrt(d).

    With dM = softmax(q)^T dy, the softmax of the keys needs no sum over tokens of its own: dw = v dM^T / sqrt(d) gives
    sum_l w dw = sum_d M dM.
    """

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
        for own, other in _sides(query):
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
        dquery.copy_(_through_softmax(dy @ mixed.mT, query, -1))
        dmixed = query.mT @ dy
        mean = (mixed * dmixed).sum(dim=-1) * share * query.shape[-1] ** 0.5  # [r d]
        dmixed *= share[..., None]
        for own, other in _sides(query):
            _write(dvalue[own], weight[own], dmixed[other])
            slope = (value[own] @ dmixed[other].mT).sub_(mean[other, None])
            torch.mul(weight[own], slope, out=dkey[own])
        return dasked, None


class ShortAttention(torch.autograd.Function):
    """The same as y = S v, S = softmax(q) w^T / sqrt(d): fewer numbers than M where there are fewer tokens than d."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, mask: Tensor) -> Tensor:
        """A sequence without tokens has weights, but S is 0 there."""
        query, key, value = asked.chunk(3, dim=-1)
        query = query.softmax(dim=-1)
        weight = torch.where(mask[..., None], key, torch.finfo(key.dtype).min).softmax(dim=1)
        share = (mask.any(dim=1).to(query.dtype) * query.shape[-1] ** -0.5).roll(len(query) // 2)
        mixed = query.new_empty(*mask.shape, mask.shape[1])  # [r l l]
        for own, other in _sides(query):
            torch.bmm(query[own], weight[other].mT, out=mixed[own])
        mixed *= share[:, None, None]
        y = torch.empty_like(query)
        for own, other in _sides(query):
            torch.bmm(mixed[own], value[other], out=y[own])
        ctx.save_for_backward(asked, query, weight, share, mixed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradients of queries, keys and values, written side by side."""
        asked, query, weight, share, mixed = ctx.saved_tensors
        (dy,), value, dasked = grads, asked.chunk(3, dim=-1)[2], torch.empty_like(asked)
        dquery, dkey, dvalue = dasked.chunk(3, dim=-1)
        dmixed, dsoft, dweight = torch.empty_like(mixed), torch.empty_like(query), torch.empty_like(weight)
        for own, other in _sides(query):
            torch.bmm(dy[own], value[other].mT, out=dmixed[own])
        dmixed *= share[:, None, None]
        for own, other in _sides(query):
            _write(dvalue[other], mixed[own].mT, dy[own])
            torch.bmm(dmixed[own], weight[other], out=dsoft[own])
            torch.bmm(dmixed[own].mT, query[own], out=dweight[other])
        dquery.copy_(_through_softmax(dsoft, query, -1))
        dkey.copy_(_through_softmax(dweight, weight, 1))
        return dasked, None


def _sides(x: Tensor) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Each half of the sequences with the one it is paired with."""
    first, second = slice(len(x) // 2), slice(len(x) // 2, None)
    return (first, second), (second, first)


def _write(place: Tensor, first: Tensor, second: Tensor) -> None:
    """Products into a slice of channels; on a CPU torch would take them there one by one, so they are copied."""
    if place.device.type == "cpu":
        place.copy_(first @ second)
    else:
        torch.bmm(first, second, out=place)


def _through_softmax(grad: Tensor, output: Tensor, dim: int) -> Tensor:
    return torch.ops.aten._softmax_backward_data.default(grad, output, dim, output.dtype)
