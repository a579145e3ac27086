"""Long sequences on a GPU: `LongAttention` with kernels for its softmaxes, which torch takes ten passes for."""

import torch
import triton
from torch import Tensor

from dygmamba.ops.pair_attention import triton_kernels as kernels
from dygmamba.ops.pair_attention.long import LongAttention, Softmaxes

LONG = 128  # tokens above which this is faster, measured on an H200
DTYPES = (torch.float32, torch.bfloat16)  # softmaxes are computed in float32
MOST_COLUMNS = 1024  # with more, a row does not fit into the registers of a program
ROWS, TOKENS, COLUMNS, WARPS = 4, 32, 64, 4  # rows of a program; a tile of the keys


def serves(projected: Tensor) -> bool:
    """Return whether sequences are long, and the kernels support them."""
    count, length, channels = projected.shape
    return count > 0 and length > LONG and 0 < channels <= 3 * MOST_COLUMNS and projected.dtype in DTYPES


class TritonSoftmaxes(Softmaxes):
    """`Softmaxes` of dense tensors by kernels."""

    def forward(self, projected: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (count, length), width = mask.shape, projected.shape[2] // 3
        query, weight = torch.empty(2, count, length, width, dtype=projected.dtype, device=projected.device)
        total = torch.empty(count, width, device=projected.device)
        with torch.cuda.device_of(projected):
            kernels.query_kernel[(triton.cdiv(count * length, ROWS),)](
                projected, query, count * length, **_sizes(width), num_warps=WARPS
            )
            kernels.key_kernel[(count, triton.cdiv(width, COLUMNS))](
                projected, mask.contiguous().view(torch.uint8), weight, total, length,
                WIDTH=width, TOKENS=TOKENS, BLOCK=COLUMNS, num_warps=WARPS,
            )  # fmt: skip
        return query, weight, total

    def write_query_gradient(self, target: Tensor, grad: Tensor, query: Tensor) -> None:
        count, width = query.shape[0] * query.shape[1], query.shape[2]
        with torch.cuda.device_of(query):
            kernels.query_gradient_kernel[(triton.cdiv(count, ROWS),)](
                target, grad, query, count, **_sizes(width), num_warps=WARPS
            )

    def write_key_gradient(self, target: Tensor, weight: Tensor, slope: Tensor, mean: Tensor) -> None:
        count, width = weight.shape[0] * weight.shape[1], weight.shape[2]
        with torch.cuda.device_of(weight):
            kernels.key_gradient_kernel[(triton.cdiv(count, ROWS),)](
                target,
                weight,
                slope,
                mean.contiguous(),
                count,
                weight.shape[1],
                **_sizes(width),
                num_warps=WARPS,
            )


def _sizes(width: int) -> dict[str, int]:
    return {"WIDTH": width, "ROWS": ROWS, "BLOCK": triton.next_power_of_2(width)}


def pair_attention(projected: Tensor, mask: Tensor) -> Tensor:
    """[r l 3d] and [r l] to [r l d]."""
    return LongAttention.apply(projected.contiguous(), mask, TritonSoftmaxes())
