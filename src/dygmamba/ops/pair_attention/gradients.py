"""What the ways with gradients written down share."""

import torch
from torch import Tensor

FULL_PRECISION = (torch.float32, torch.float64)  # half precision comes with autocast, and goes to `half`


def pair_sides(x: Tensor) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Each half of the sequences with the one it is paired with."""
    first, second = slice(len(x) // 2), slice(len(x) // 2, None)
    return (first, second), (second, first)


def write_product(place: Tensor, first: Tensor, second: Tensor) -> None:
    """Products into a slice of channels; on a CPU torch would take them there one by one, so they are copied."""
    if place.device.type == "cpu":
        place.copy_(first @ second)
    else:
        torch.bmm(first, second, out=place)


def softmax_backward(grad: Tensor, output: Tensor, dim: int) -> Tensor:
    """The gradient of a softmax's input."""
    return torch.ops.aten._softmax_backward_data.default(grad, output, dim, output.dtype)
