"""Reference: count by sorting, O(l log l) per pair without an (l, l) comparison."""

import torch
from torch import Tensor


def _counts(tokens: Tensor, among: Tensor) -> Tensor:
    """Count each of `tokens` [p l] in the same row of the sorted `among` [p r]."""
    low = torch.searchsorted(among, tokens, side="left", out_int32=True)
    return torch.searchsorted(among, tokens, side="right", out_int32=True) - low


def cooccurrence(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Count each token in the left and in the right sequence."""
    nowhere = torch.iinfo(left.dtype).max  # masked tokens sort to the end and match no id
    tokens, mask = torch.cat([left, right], dim=1), torch.cat([left_mask, right_mask], dim=1)
    among = (torch.where(real, ids, nowhere) for ids, real in ((left, left_mask), (right, right_mask)))
    counts = torch.stack([_counts(tokens, ids.sort(dim=1).values) for ids in among], dim=-1)
    in_left, in_right = (counts * mask[..., None]).split([left.shape[1], right.shape[1]], dim=1)
    return in_left, in_right


def count_pair_tokens(node: Tensor, mask: Tensor) -> Tensor:
    """Count each token's node in both sequences of its pair, sequences i and p + i of 2 p."""
    p = node.shape[0] // 2
    return torch.cat(cooccurrence(node[:p], node[p:], mask[:p], mask[p:]))
