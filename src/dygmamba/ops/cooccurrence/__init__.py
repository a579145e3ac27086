"""How often each token of a pair's two sequences occurs in the one and in the other.

Legend: p pairs, l tokens of the first sequence, r tokens of the second.
"""

from jaxtyping import Bool, Int32
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

COOCCURRENCE = Dispatch(__name__, {"cpu": ("cpu",)})


def cooccurrence(
    left: Int32[Tensor, "p l"],
    right: Int32[Tensor, "p r"],
    left_mask: Bool[Tensor, "p l"],
    right_mask: Bool[Tensor, "p r"],
) -> tuple[Int32[Tensor, "p l 2"], Int32[Tensor, "p r 2"]]:
    """For each token its count in `left` and in `right`; masked tokens count nowhere and get 0."""
    count = COOCCURRENCE[left.device.type].cooccurrence
    return count(left, right, left_mask, right_mask)
