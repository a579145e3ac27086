"""Sum of a sequence's tokens, weighted by a gate.

Legend: p sequences, l tokens, d width.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.dispatch import ANY, Dispatch

GATED_SUM = Dispatch(__name__, {"cuda": ("triton", "autograd"), ANY: ("autograd",)})


def gated_sum(
    x: Float[Tensor, "p l d"], gate: Float[Tensor, "d"], mask: Bool[Tensor, "p l"]
) -> Float[Tensor, "p d"]:
    """Sum the tokens, weighted by the masked softmax of their products with the gate; always in x's precision."""
    return GATED_SUM.choose(x.device.type, x).gated_sum(x, gate, mask)
