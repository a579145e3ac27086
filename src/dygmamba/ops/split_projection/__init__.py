"""A linear projection whose output is split into two halves (the input and the gate of a Mamba block).

Legend: q sequences, l tokens, d width, k = 2 e channels of the projection.
"""

from jaxtyping import Float
from torch import Tensor

from dygmamba.ops.dispatch import ANY, Dispatch

SPLIT_PROJECTION = Dispatch(__name__, {ANY: ("autograd",)})


def split_projection(
    x: Float[Tensor, "q l d"], weight: Float[Tensor, "k d"]
) -> tuple[Float[Tensor, "q l e"], Float[Tensor, "q l e"]]:
    """Return the two halves of x W^T along the channels, in autocast's precision if it is enabled."""
    return SPLIT_PROJECTION[x.device.type].split_projection(x, weight)
