"""Linear attention of each sequence of a pair to the other one.

y = softmax(q) w^T v / sqrt(d), with v the values of the other sequence and w the softmax of its keys over its unmasked
tokens.

Legend: r = 2 p sequences of p pairs (the first of each, then the second of each), l tokens, d width, k = 3 d.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.dispatch import ANY, Dispatch

PAIR_ATTENTION = Dispatch(
    __name__, {"cuda": ("triton_long", "triton", "short", "half"), ANY: ("long", "short", "half")}
)


def pair_attention(projected: Float[Tensor, "r l k"], mask: Bool[Tensor, "r l"]) -> Float[Tensor, "r l d"]:
    """Attend from each token to the other sequence; `projected` is query, key and value side by side.

    Masked tokens have no effect; a sequence without tokens gives zeros.
    """
    return PAIR_ATTENTION.choose(projected.device.type, projected).pair_attention(projected, mask)
