"""Exponentials divided by their sum: torch's softmax over a long middle dimension is slow on a GPU."""

import torch
from torch import Tensor

LONG = 128  # tokens; measured on an H200


def serves(score: Tensor) -> bool:
    """Return whether this is faster: there are many tokens and they are not contiguous in memory."""
    return score.shape[1] > LONG and score.shape[2] > 1


def masked_softmax(score: Tensor, mask: Tensor) -> Tensor:
    """Softmax over unmasked tokens; all zeros for a sequence without any."""
    score = torch.where(mask[..., None], score, torch.finfo(score.dtype).min)
    weight = torch.exp(score - score.detach().amax(dim=1, keepdim=True)) * mask[..., None]
    return weight / weight.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
