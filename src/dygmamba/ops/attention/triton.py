"""Attention on a GPU: launches and gradients. The arithmetic is in `triton_kernels`.

Short sequences of a pair take one kernel forward and one backward, which computes the softmaxes again; long ones are
`LongAttention` with kernels for its softmaxes, which torch takes ten passes for.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dygmamba.ops.attention import triton_kernels as kernels
from dygmamba.ops.attention.autograd import LongAttention, Softmaxes
from dygmamba.ops.dispatch import serving
from dygmamba.ops.rows.triton import sum_rows

DTYPES = (torch.float32, torch.bfloat16)  # sums and softmaxes are in float32
MOST_COLUMNS = 1024  # with more, a row does not fit into the registers of a program
WARPS = 4
TILE = 4096  # elements of a tile of the gated sum
SHORT = 64  # most tokens whose matrices between tokens fit into the registers of a program
SHORT_COLUMNS = 32  # of a block
LONG = 128  # tokens above which the kernels for long sequences are faster, measured on an H200
ROWS, TOKENS, COLUMNS = 4, 32, 64  # of long sequences: rows of a program; a tile of the keys


class GatedSum(torch.autograd.Function):
    """The sum of tokens weighted by the softmax of their products with a gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
        """[p l d], [d] and [p l] to [p d]."""
        x, gate, mask = x.contiguous(), gate.contiguous(), mask.contiguous().view(torch.uint8)
        y = torch.empty(len(x), x.shape[2], dtype=x.dtype, device=x.device)
        most, total = torch.empty(2, len(x), device=x.device)
        with torch.cuda.device_of(x):
            kernels.gated_sum_kernel[(len(x),)](
                x, gate, mask, y, most, total, x.shape[1], **gated_sum_sizes(x), num_warps=WARPS
            )
        ctx.save_for_backward(x, gate, mask, y, most, total)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of tokens and gate."""
        x, gate, *_ = saved = ctx.saved_tensors
        dx, parts = torch.empty_like(x), torch.empty(1, len(x), x.shape[2], device=x.device)
        with torch.cuda.device_of(x):
            kernels.gated_sum_backward_kernel[(len(x),)](
                *saved, grads[0].contiguous(), dx, parts, x.shape[1], **gated_sum_sizes(x), num_warps=WARPS
            )
            return dx, sum_rows(parts)[0].to(gate.dtype), None


def gated_sum_sizes(x: Tensor) -> dict[str, int]:
    """Return the numbers that the kernels of the gated sum are compiled for."""
    block = triton.next_power_of_2(x.shape[2])
    return {"WIDTH": x.shape[2], "TOKENS": max(2, TILE // block), "BLOCK": block}


@serving(lambda x, gate, mask: x.dtype in DTYPES and x.shape[2] <= MOST_COLUMNS and x.numel() > 0)
def gated_sum(x: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
    """[p l d], [d] and [p l] to [p d]."""
    return GatedSum.apply(x, gate, mask)


class ShortAttention(torch.autograd.Function):
    """Queries, keys and values side by side [r l 3d] and the mask [r l] to y [r l d]."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, mask: Tensor) -> Tensor:
        """Use the precision that products of matrices have now, also in backward."""
        projected, mask = projected.contiguous(), mask.contiguous().view(torch.uint8)
        ctx.options = short_options(projected)
        y = torch.empty(*mask.shape, projected.shape[2] // 3, dtype=projected.dtype, device=projected.device)
        with torch.cuda.device_of(projected):
            kernels.short_kernel[(len(projected),)](projected, mask, y, **ctx.options)
        ctx.save_for_backward(projected, mask)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of queries, keys and values side by side."""
        projected, mask = ctx.saved_tensors
        dprojected = torch.empty_like(projected)
        with torch.cuda.device_of(projected):
            kernels.short_backward_kernel[(len(projected),)](
                projected, mask, grads[0].contiguous(), dprojected, **ctx.options
            )
        return dprojected, None


def short_options(projected: Tensor) -> dict[str, Any]:
    """Return the numbers and options of the kernels for short sequences."""
    count, length, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
    padded = max(16, triton.next_power_of_2(length))
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    numbers = {"half": count // 2, "length": length, "share": width**-0.5}
    sizes = {"WIDTH": width, "PADDED": padded, "BLOCK": SHORT_COLUMNS, "PRECISION": precision}
    # more stages: blocks in flight would take the shared memory of other programs
    return numbers | sizes | {"num_warps": 4 if padded <= 32 else 8, "num_stages": 1}


def _is_short(projected: Tensor, mask: Tensor) -> bool:
    return projected.dtype in DTYPES and min(projected.shape) > 0 and projected.shape[1] <= SHORT


@serving(_is_short)
def short_pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return ShortAttention.apply(projected, mask)


class TritonSoftmaxes(Softmaxes):
    """`Softmaxes` of dense tensors by kernels."""

    def forward(self, projected: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (count, length), width = mask.shape, projected.shape[2] // 3
        query, weight = torch.empty(2, count, length, width, dtype=projected.dtype, device=projected.device)
        total = torch.empty(count, width, device=projected.device)
        self._launch(kernels.query_kernel, projected, query, count * length, width=width)
        with torch.cuda.device_of(projected):
            kernels.key_kernel[(count, triton.cdiv(width, COLUMNS))](
                projected, mask.contiguous().view(torch.uint8), weight, total, length,
                WIDTH=width, TOKENS=TOKENS, BLOCK=COLUMNS, num_warps=WARPS,
            )  # fmt: skip
        return query, weight, total

    def write_query_gradient(self, target: Tensor, grad: Tensor, query: Tensor) -> None:
        count, width = query.shape[0] * query.shape[1], query.shape[2]
        self._launch(kernels.query_gradient_kernel, target, grad, query, count, width=width)

    def write_key_gradient(self, target: Tensor, weight: Tensor, slope: Tensor, mean: Tensor) -> None:
        (sequences, length, width), mean = weight.shape, mean.contiguous()
        given = (target, weight, slope, mean, length, sequences * length)
        self._launch(kernels.key_gradient_kernel, *given, width=width)

    def _launch(self, kernel: Any, *arguments: Any, width: int) -> None:
        """Launch a kernel that takes ROWS rows per program; their number is its last argument."""
        sizes = {"WIDTH": width, "ROWS": ROWS, "BLOCK": triton.next_power_of_2(width)}
        with torch.cuda.device_of(arguments[0]):
            kernel[(triton.cdiv(arguments[-1], ROWS),)](*arguments, **sizes, num_warps=WARPS)


def _is_long(projected: Tensor, mask: Tensor) -> bool:
    count, length, channels = projected.shape
    return count > 0 and length > LONG and 0 < channels <= 3 * MOST_COLUMNS and projected.dtype in DTYPES


@serving(_is_long)
def long_pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return LongAttention.apply(projected.contiguous(), mask, TritonSoftmaxes())
