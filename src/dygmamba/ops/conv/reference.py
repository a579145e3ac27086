"""The convolution's definition: a sum of shifted copies, differentiable by torch itself."""

import torch
from torch import Tensor
from torch.nn.functional import pad, silu


def conv_silu(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool = False) -> Tensor:
    """Causal (or, reversed, anti-causal) depthwise convolution, then SiLU."""
    length, taps = x.shape[1], weight.shape[1]
    here = mask[..., None]
    x = torch.where(here, x, 0)
    padded = pad(x, (0, 0, 0, taps - 1) if reverse else (0, 0, taps - 1, 0))
    order = reversed(range(taps)) if reverse else range(taps)
    total = bias + sum(padded[:, shift : shift + length] * weight[:, j] for shift, j in enumerate(order))
    return torch.where(here, silu(total), 0)
