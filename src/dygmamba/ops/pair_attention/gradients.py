"""Helpers of the implementations with hand-written gradients."""

import torch
from torch import Tensor

FULL_PRECISION = (
    torch.float32,
    torch.float64,
)  # half precision occurs under autocast and is handled by `half`


def pair_sides(x: Tensor) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return each half of the sequences with the half it is paired with."""
    first, second = slice(len(x) // 2), slice(len(x) // 2, None)
    return (first, second), (second, first)


def write_product(target: Tensor, first: Tensor, second: Tensor) -> None:
    """Write a batched product into a slice of channels; on a CPU via a copy, as torch would write single elements."""
    if target.device.type == "cpu":
        target.copy_(first @ second)
    else:
        torch.bmm(first, second, out=target)


def softmax_backward(grad: Tensor, output: Tensor, dim: int) -> Tensor:
    """Return the gradient of a softmax's input."""
    return torch.ops.aten._softmax_backward_data.default(grad, output, dim, output.dtype)
