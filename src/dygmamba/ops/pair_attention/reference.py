"""Reference of the pair attention.

Legend: r = 2 p sequences of p pairs, l tokens, d width.
"""

from torch import Tensor

from dygmamba.ops.masked_softmax.reference import masked_softmax


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    query, key, value = projected.chunk(3, dim=-1)
    summary = masked_softmax(key, mask).mT @ value * query.shape[-1] ** -0.5  # [r d d]
    return query.softmax(dim=-1) @ summary.roll(query.shape[0] // 2, dims=0)
