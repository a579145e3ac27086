"""Reference; on a CPU also the fastest implementation."""

import torch
from torch import Tensor


def masked_softmax(score: Tensor, mask: Tensor) -> Tensor:
    """Softmax over unmasked tokens; all zeros for a sequence without any."""
    score = torch.where(mask[..., None], score, torch.finfo(score.dtype).min)
    return score.softmax(dim=1) * mask[..., None]
