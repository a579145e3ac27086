"""The short depthwise convolution along a sequence, with its SiLU (Mamba's local mixing, Eq. 7).

Legend: q sequences, l steps, d channels, w taps.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.conv import reference


def conv_silu(
    x: Float[Tensor, "q l d"],
    weight: Float[Tensor, "d w"],
    bias: Float[Tensor, "d"],
    mask: Bool[Tensor, "q l"],
    reverse: bool = False,
) -> Float[Tensor, "q l d"]:
    """silu(bias + sum_j weight_j x_{k-w+1+j}) where the mask holds, 0 elsewhere; masked inputs count as 0."""
    return reference.conv_silu(x, weight, bias, mask, reverse)
