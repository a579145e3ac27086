"""The convolution on a CPU: tensors become arrays, blocks of sequences are distributed to threads.

The blocks do not depend on the number of threads, so neither do the bits of the result.
"""

import torch
from torch import Tensor

from dygmamba.ops.conv import cpu_kernels as kernels
from dygmamba.ops.scan.cpu import BLOCKS
from dygmamba.ops.threads import run_in_threads

DTYPES = (torch.float32, torch.float64)


def serves(dtype: torch.dtype) -> bool:
    """Return whether the kernels produce outputs of this dtype."""
    return dtype in DTYPES


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dtype: torch.dtype
) -> Tensor:
    """Compute the output in `dtype`; the kernel skips masked steps, whose rows are already zero."""
    y = torch.zeros(x.shape, dtype=dtype)
    if y.numel() > 0:
        arrays = _arrays(x, weight, bias, mask, reverse, dtype)
        run_in_threads(kernels.forward, arrays.blocks, y.numel(), arrays, y.numpy())
    return y


def backward(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, weight and bias; the last two are summed over blocks in float64, in block order."""
    dx = torch.zeros(x.shape, dtype=dy.dtype)
    parts = torch.zeros(min(x.shape[0], BLOCKS), weight.shape[1] + 1, x.shape[2], dtype=torch.float64)
    if dx.numel() > 0:
        arrays = _arrays(x, weight, bias, mask, reverse, dy.dtype)
        run_in_threads(
            kernels.backward, arrays.blocks, dx.numel(), arrays, _rows(dy), dx.numpy(), parts.numpy()
        )
    dweight = parts[:, :-1].sum(0).t().clone(memory_format=torch.contiguous_format)
    return dx.to(x.dtype), dweight, parts[:, -1].sum(0)


def _arrays(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dtype: torch.dtype
) -> kernels.Arrays:
    """Return the inputs as arrays of one dtype, with the weights tap by tap."""
    return kernels.Arrays(
        x=_rows(x.to(dtype)),
        weight=weight.detach().to(dtype).t().contiguous().numpy(),
        bias=bias.detach().to(dtype).contiguous().numpy(),
        mask=mask.contiguous().numpy(),
        blocks=min(x.shape[0], BLOCKS),
        sign=-1 if reverse else 1,
    )


def _rows(t: Tensor) -> kernels.Rows:
    """Return the rows without a copy if each is dense; rows may lie apart, as the halves of one projection do."""
    t = t.detach() if t.stride(2) == 1 else t.detach().contiguous()
    batch, row, _ = t.stride()
    q, length, d = t.shape
    size = (q - 1) * batch + (length - 1) * row + d
    return kernels.Rows(t.as_strided((size,), (1,)).numpy(), batch, row)
