"""Attention: softmaxes over the real tokens of a sequence, and the sums that they weight.

The functions here are the definitions; `autograd` and `triton` compute the same, faster.

Legend: p sequences (r = 2 p of p pairs: the first of each, then the second of each), l tokens, d width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.dispatch import dispatched

__all__ = ["gated_sum", "masked_softmax", "pair_attention"]


@dispatched(cuda=("autograd:masked_softmax",))
def masked_softmax(score: Float[Tensor, "p l k"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p l k"]:
    """Softmax over unmasked tokens; all zeros for a sequence without any. Scores of masked tokens have no effect."""
    score = torch.where(mask[..., None], score, torch.finfo(score.dtype).min)
    return score.softmax(dim=1) * mask[..., None]


@dispatched(cuda=("triton:gated_sum",), any=("autograd:gated_sum",))
def gated_sum(
    x: Float[Tensor, "p l d"], gate: Float[Tensor, "d"], mask: Bool[Tensor, "p l"]
) -> Float[Tensor, "p d"]:
    """Sum the tokens, weighted by the masked softmax of their products with the gate; always in x's precision."""
    with torch.autocast(x.device.type, enabled=False):
        weight = masked_softmax.reference(x @ gate[:, None], mask)  # [p l 1]
        return (weight * x).sum(dim=1)


@dispatched(
    cuda=("triton:long_pair_attention", "triton:short_pair_attention"),
    any=("autograd:long_pair_attention", "autograd:short_pair_attention", "autograd:half_pair_attention"),
)
def pair_attention(projected: Float[Tensor, "r l k"], mask: Bool[Tensor, "r l"]) -> Float[Tensor, "r l d"]:
    """Linear attention of each sequence of a pair to the other one: y = softmax(q) w^T v / sqrt(d).

    v are the values of the other sequence, w is the softmax of its keys over its unmasked tokens. Masked tokens have no
    effect; a sequence without tokens gives zeros.

    Args:
        projected: Query, key and value side by side, k = 3 d.
        mask: Which tokens are real.
    """
    query, key, value = projected.chunk(3, dim=-1)
    summary = masked_softmax.reference(key, mask).mT @ value * query.shape[-1] ** -0.5  # [r d d]
    return query.softmax(dim=-1) @ summary.roll(query.shape[0] // 2, dims=0)
