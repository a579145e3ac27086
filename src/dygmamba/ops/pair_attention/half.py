"""Beside autocast, which chooses a precision operation by operation: the cheaper product first, autograd's gradient."""

from torch import Tensor

from dygmamba.ops.masked_softmax import masked_softmax


def pair_attention(asked: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    query, key, value = asked.chunk(3, dim=-1)
    query, key = query.softmax(dim=-1) * query.shape[-1] ** -0.5, masked_softmax(key, mask)
    p = len(query) // 2
    if query.shape[1] < query.shape[2]:
        return (query @ key.roll(p, dims=0).mT) @ value.roll(p, dims=0)
    return query @ (key.mT @ value).roll(p, dims=0)
