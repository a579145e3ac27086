"""Counting by sorting: O(l log l) per pair, no (l, l) comparison; the definition, and a GPU's path."""

import torch
from torch import Tensor


def _counts(tokens: Tensor, among: Tensor) -> Tensor:
    """How often each of `tokens` [p l] occurs in the same row of the sorted `among` [p r]."""
    low = torch.searchsorted(among, tokens, side="left")
    return (torch.searchsorted(among, tokens, side="right") - low).int()


def cooccurrence(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of each token in the left and in the right sequence."""
    nowhere = torch.iinfo(left.dtype).max  # masked tokens sort to the end and match no id
    sorted_left = left.masked_fill(~left_mask, nowhere).sort(dim=1).values
    sorted_right = right.masked_fill(~right_mask, nowhere).sort(dim=1).values
    in_both = [
        torch.stack([_counts(tokens, sorted_left), _counts(tokens, sorted_right)], dim=-1) * mask[..., None]
        for tokens, mask in ((left.contiguous(), left_mask), (right.contiguous(), right_mask))
    ]
    return in_both[0], in_both[1]
