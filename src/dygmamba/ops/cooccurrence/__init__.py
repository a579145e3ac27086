"""Co-occurrence counts: how often each token of a pair's two sequences occurs in each of them.

Legend: p pairs, l tokens of the first sequence, r tokens of the second; q = 2 p sequences.
"""

from jaxtyping import Bool, Int32
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

COOCCURRENCE = Dispatch(__name__, {"cpu": ("cpu",), "cuda": ("triton",)})


def cooccurrence(
    left: Int32[Tensor, "p l"],
    right: Int32[Tensor, "p r"],
    left_mask: Bool[Tensor, "p l"],
    right_mask: Bool[Tensor, "p r"],
) -> tuple[Int32[Tensor, "p l 2"], Int32[Tensor, "p r 2"]]:
    """Count each token in `left` and in `right`; masked tokens are not counted and get 0."""
    count = COOCCURRENCE[left.device.type].cooccurrence
    return count(left, right, left_mask, right_mask)


def count_pair_tokens(node: Int32[Tensor, "q l"], mask: Bool[Tensor, "q l"]) -> Int32[Tensor, "q l 2"]:
    """Count each token's node in the first and in the second sequence of its pair: first all first sequences."""
    return COOCCURRENCE[node.device.type].count_pair_tokens(node, mask)
