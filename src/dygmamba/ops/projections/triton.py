"""The bounded matrices on a GPU: one kernel forward and one backward, where torch takes a hundred small ones."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.dispatch import serving
from dygmamba.ops.projections import SQUARINGS
from dygmamba.ops.projections import triton_kernels as kernels

MOST_ROWS = 32  # with more, the Gram matrix does not stay in registers
BLOCK, WARPS = 128, 4


class BoundedMatrices(torch.autograd.Function):
    """W / max(1, sigma(W)), [k n d]."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        weight = weight.contiguous()
        sizes = _sizes(weight)
        y = torch.empty_like(weight)
        power = torch.empty(len(weight), sizes["PADDED"], sizes["PADDED"], device=weight.device)
        facts = torch.empty(len(weight), kernels.FACTS, device=weight.device)
        first, second = SQUARINGS
        with torch.cuda.device_of(weight):
            kernels.forward_kernel[(len(weight),)](
                weight, y, power, facts, **sizes, FIRST=first, SECOND=second, num_warps=WARPS
            )
        ctx.save_for_backward(weight, power, facts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        weight, power, facts = ctx.saved_tensors
        dweight = torch.empty_like(weight)
        with torch.cuda.device_of(weight):
            kernels.backward_kernel[(len(weight),)](
                weight, power, facts, grads[0].contiguous(), dweight, **_sizes(weight), num_warps=WARPS
            )
        return dweight


def _sizes(weight: Tensor) -> dict[str, int]:
    _, rows, columns = weight.shape
    return {"ROWS": rows, "COLUMNS": columns, "PADDED": max(16, triton.next_power_of_2(rows)), "BLOCK": BLOCK}


@serving(lambda weight: weight.dtype == torch.float32 and weight.shape[1] <= MOST_ROWS and weight.numel() > 0)
def bound_matrices(weight: Tensor) -> Tensor:
    """[k n d] to [k n d]."""
    return BoundedMatrices.apply(weight)
