"""Reference of the gated sum: scores, weights, sum."""

import torch
from torch import Tensor

from dygmamba.ops.masked_softmax.reference import masked_softmax


def gated_sum(x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
    """[p l d], [d] and [p l] to [p d]."""
    with torch.autocast(x.device.type, enabled=False):
        weight = masked_softmax(x @ gate[:, None], mask)  # [p l 1]
        return (weight * x).sum(dim=1)
