"""Half precision (under autocast): the cheaper product first, differentiated by torch."""

from torch import Tensor

from dygmamba.ops.masked_softmax import masked_softmax


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    query, key, value = projected.chunk(3, dim=-1)
    query, key = query.softmax(dim=-1) * query.shape[-1] ** -0.5, masked_softmax(key, mask)
    p = len(query) // 2
    if query.shape[1] < query.shape[2]:
        return (query @ key.roll(p, dims=0).mT) @ value.roll(p, dims=0)
    return query @ (key.mT @ value).roll(p, dims=0)
