"""Short sequences on a GPU: one kernel forward and one backward, which computes the softmaxes again."""

# once_differentiable passes the first argument of `backward` by position, which pyright reports as incompatible
# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.pair_attention import triton_kernels as kernels

MOST_TOKENS = 64  # with more, the matrices between tokens do not fit into the registers of a program
BLOCK = 32  # columns
DTYPES = (torch.float32, torch.bfloat16)  # sums and softmaxes are in float32


def serves(projected: Tensor) -> bool:
    """Return whether the kernels support these inputs."""
    return projected.dtype in DTYPES and min(projected.shape) > 0 and projected.shape[1] <= MOST_TOKENS


class PairAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y [r l d]."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, mask: Tensor) -> Tensor:
        """Use the precision that products of matrices have now, also in backward."""
        projected, mask = projected.contiguous(), mask.contiguous().view(torch.uint8)
        ctx.options = _options(projected)
        y = torch.empty(*mask.shape, projected.shape[2] // 3, dtype=projected.dtype, device=projected.device)
        with torch.cuda.device_of(projected):
            kernels.forward_kernel[(len(projected),)](projected, mask, y, **ctx.options)
        ctx.save_for_backward(projected, mask)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of queries, keys and values side by side."""
        projected, mask = ctx.saved_tensors
        dprojected = torch.empty_like(projected)
        with torch.cuda.device_of(projected):
            kernels.backward_kernel[(len(projected),)](
                projected, mask, grads[0].contiguous(), dprojected, **ctx.options
            )
        return dprojected, None


def _options(projected: Tensor) -> dict[str, Any]:
    count, length, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
    padded = max(16, triton.next_power_of_2(length))
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {
        "half": count // 2,
        "length": length,
        "share": width**-0.5,
        "WIDTH": width,
        "PADDED": padded,
        "BLOCK": BLOCK,
        "PRECISION": precision,
        "num_warps": 4 if padded <= 32 else 8,
        "num_stages": 1,  # blocks in flight would take the shared memory of other programs
    }


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return PairAttention.apply(projected, mask)
