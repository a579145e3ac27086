"""The gated sum on a GPU: one kernel forward and one backward. The arithmetic is in `triton_kernels`."""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.gated_sum import triton_kernels as kernels
from dygmamba.ops.row_sums import sum_rows

MOST_COLUMNS = 1024  # with more, a tile does not fit into the registers of a program
TILE, WARPS = 4096, 4  # elements of a tile
DTYPES = (torch.float32, torch.bfloat16)  # of tokens and gate; sums are in float32


def serves(x: Tensor) -> bool:
    """Return whether the kernels support these inputs."""
    return x.dtype in DTYPES and x.shape[2] <= MOST_COLUMNS and x.numel() > 0


class GatedSum(torch.autograd.Function):
    """The sum of tokens weighted by the softmax of their products with a gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
        """[p l d], [d] and [p l] to [p d]."""
        x, gate, mask = x.contiguous(), gate.contiguous(), mask.contiguous().view(torch.uint8)
        y = torch.empty(len(x), x.shape[2], dtype=x.dtype, device=x.device)
        most, total = torch.empty(2, len(x), device=x.device)
        with torch.cuda.device_of(x):
            kernels.forward_kernel[(len(x),)](
                x, gate, mask, y, most, total, x.shape[1], **_sizes(x), num_warps=WARPS
            )
        ctx.save_for_backward(x, gate, mask, y, most, total)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of tokens and gate."""
        x, gate, *_ = saved = ctx.saved_tensors
        dx, parts = torch.empty_like(x), torch.empty(1, len(x), x.shape[2], device=x.device)
        with torch.cuda.device_of(x):
            kernels.backward_kernel[(len(x),)](
                *saved, grads[0].contiguous(), dx, parts, x.shape[1], **_sizes(x), num_warps=WARPS
            )
            return dx, sum_rows(parts)[0].to(gate.dtype), None


def _sizes(x: Tensor) -> dict[str, int]:
    block = triton.next_power_of_2(x.shape[2])
    return {"WIDTH": x.shape[2], "TOKENS": max(2, TILE // block), "BLOCK": block}


def gated_sum(x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
    """[p l d], [d] and [p l] to [p d]."""
    return GatedSum.apply(x, gate, mask)
