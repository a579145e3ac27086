"""Co-occurrence counts: how often each token of a pair's two sequences occurs in each of them.

The functions are the definitions: they count by sorting, O(l log l) per pair without an (l, l) comparison.

Legend: p pairs, l tokens of the first sequence, r tokens of the second; q = 2 p sequences.
"""

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from dygmamba.ops.dispatch import dispatched

__all__ = ["cooccurrence", "count_pair_tokens"]


@dispatched(cpu=("cpu:cooccurrence",), cuda=("triton:cooccurrence",))
def cooccurrence(
    left: Int32[Tensor, "p l"],
    right: Int32[Tensor, "p r"],
    left_mask: Bool[Tensor, "p l"],
    right_mask: Bool[Tensor, "p r"],
) -> tuple[Int32[Tensor, "p l 2"], Int32[Tensor, "p r 2"]]:
    """Count each token in `left` and in `right`; masked tokens are not counted and get 0."""
    nowhere = torch.iinfo(left.dtype).max  # masked tokens sort to the end and match no id
    tokens, mask = torch.cat([left, right], dim=1), torch.cat([left_mask, right_mask], dim=1)
    among = (torch.where(real, ids, nowhere) for ids, real in ((left, left_mask), (right, right_mask)))
    counts = torch.stack([_counts(tokens, ids.sort(dim=1).values) for ids in among], dim=-1)
    in_left, in_right = (counts * mask[..., None]).split([left.shape[1], right.shape[1]], dim=1)
    return in_left, in_right


@dispatched(cuda=("triton:count_pair_tokens",))
def count_pair_tokens(node: Int32[Tensor, "q l"], mask: Bool[Tensor, "q l"]) -> Int32[Tensor, "q l 2"]:
    """Count each token's node in the first and in the second sequence of its pair, sequences i and p + i of 2 p."""
    p = node.shape[0] // 2
    return torch.cat(cooccurrence(node[:p], node[p:], mask[:p], mask[p:]))


def _counts(tokens: Tensor, among: Tensor) -> Tensor:
    """Count each of `tokens` [p l] in the same row of the sorted `among` [p r]."""
    low = torch.searchsorted(among, tokens, side="left", out_int32=True)
    return torch.searchsorted(among, tokens, side="right", out_int32=True) - low
