"""Reference of the split projection: one product, cut in two."""

from torch import Tensor
from torch.nn.functional import linear


def split_projection(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Return the first and the second half of the channels of x W^T."""
    return linear(x, weight).chunk(2, dim=-1)
