"""Softmax over the real (unmasked) tokens of a sequence.

Legend: p sequences, l tokens, k scores of each.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

MASKED_SOFTMAX = Dispatch(__name__, {"cuda": ("exponentials",)})


def masked_softmax(score: Float[Tensor, "p l k"], mask: Bool[Tensor, "p l"]) -> Float[Tensor, "p l k"]:
    """Softmax over unmasked tokens; all zeros for a sequence without any. Scores of masked tokens have no effect."""
    return MASKED_SOFTMAX.choose(score.device.type, score).masked_softmax(score, mask)
