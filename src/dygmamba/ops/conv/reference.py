"""Reference of the convolution: a sum of shifted copies, differentiated by torch."""

import torch
from torch import Tensor
from torch.nn.functional import pad, silu


def conv_silu(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool = False) -> Tensor:
    """Causal (or, reversed, anti-causal) depthwise convolution, then SiLU."""
    length, taps = x.shape[1], weight.shape[1]
    present = mask[..., None]
    x = torch.where(present, x, 0)
    padded = pad(x, (0, 0, 0, taps - 1) if reverse else (0, 0, taps - 1, 0))
    order = reversed(range(taps)) if reverse else range(taps)
    total = bias + sum(padded[:, shift : shift + length] * weight[:, j] for shift, j in enumerate(order))
    return torch.where(present, silu(total), 0)
