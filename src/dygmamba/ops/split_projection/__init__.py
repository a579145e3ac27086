"""A projection in two halves, each of which goes its own way.

Legend: q sequences, l tokens, d width, k = 2 e channels of the projection.
"""

from jaxtyping import Float
from torch import Tensor

from dygmamba.ops.dispatch import ANY, Dispatch

SPLIT_PROJECTION = Dispatch(__name__, {ANY: ("by_hand",)})


def split_projection(
    x: Float[Tensor, "q l d"], weight: Float[Tensor, "k d"]
) -> tuple[Float[Tensor, "q l e"], Float[Tensor, "q l e"]]:
    """The halves of x W^T along the channels, in autocast's precision where it is on."""
    return SPLIT_PROJECTION[x.device.type].halves(x, weight)
