"""Exponentials divided by their sum: torch's softmax over a middle dimension is slow on a GPU when that is long."""

import torch
from torch import Tensor

LONG = 128  # tokens, on an H200 (docs/log.md)


def serves(score: Tensor) -> bool:
    """Whether this way is quicker: the tokens are many and do not lie side by side in memory."""
    return score.shape[1] > LONG and score.shape[2] > 1


def masked_softmax(score: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the tokens that exist; all zeros where none does."""
    score = torch.where(mask[..., None], score, torch.finfo(score.dtype).min)
    weight = torch.exp(score - score.detach().amax(dim=1, keepdim=True)) * mask[..., None]
    return weight / weight.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
