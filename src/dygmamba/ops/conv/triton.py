"""The convolution on a GPU: kernel launches and buffers for partial sums. The arithmetic is in `triton_kernels`.

Sums over sequences and steps are written per program and added afterwards, in a fixed order: there are no atomics,
so two runs agree in every bit.

Legend: q sequences, l steps, d channels, w taps.
"""

import torch
import triton
from torch import Tensor

from dygmamba.ops.conv import triton_kernels as kernels
from dygmamba.ops.rows.triton import sum_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS, BLOCK, WARPS = 16, 64, 4  # a tile of forward: a thread has four neighbours of two rows
FLIGHT, BACKWARD_WARPS = 4, 1  # steps of backward whose rows are in flight at the same time


def serves(dtype: torch.dtype) -> bool:
    """Return whether the kernels produce outputs of this dtype."""
    return dtype in DTYPES


@torch.no_grad()
def forward(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dtype: torch.dtype
) -> Tensor:
    """Compute the output in `dtype`; sums are in float32 for any dtype of x."""
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() > 0:
        with torch.cuda.device_of(x):
            kernels.forward_kernel[(_tiles(x, STEPS) * triton.cdiv(x.shape[2], BLOCK),)](
                **_arguments(x, weight, mask, reverse), **_input(x, bias), y=y, STEPS=STEPS, num_warps=WARPS
            )
    return y


@torch.no_grad()
def backward(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, weight and bias, the last two in float32."""
    (q, _, d), taps = x.shape, weight.shape[1]
    if x.numel() == 0:
        return x.new_zeros(x.shape), weight.new_zeros(weight.shape), bias.new_zeros(bias.shape)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = torch.empty(q, taps + 1, d, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        kernels.backward_kernel[(q * triton.cdiv(d, BLOCK),)](
            **_arguments(x, weight, mask, reverse), **_input(x, bias), **_adjoint(dy),
            dx=dx, parts=parts, STEPS=FLIGHT, num_warps=BACKWARD_WARPS,
        )  # fmt: skip
        sums = sum_rows(parts.view(1, q, -1)).view(taps + 1, d)
    return dx, sums[:-1].t().contiguous(), sums[-1].clone()


def _tiles(x: Tensor, steps: int) -> int:
    return x.shape[0] * triton.cdiv(x.shape[1], steps)


def _arguments(x: Tensor, weight: Tensor, mask: Tensor, reverse: bool) -> dict[str, object]:
    """Return the arguments that all kernels share."""
    taps = weight.t().contiguous()
    shape = {"length": x.shape[1], "CHANNELS": x.shape[2], "TAPS": weight.shape[1]}
    cut = {"SIGN": -1 if reverse else 1, "BLOCK": BLOCK}
    return shape | cut | {"weight": taps, "mask": mask.contiguous().view(torch.uint8)}


def _input(x: Tensor, bias: Tensor) -> dict[str, object]:
    """Return the arguments of kernels that read x; its rows may lie apart, as the halves of one projection do."""
    x = x if x.stride(2) == 1 else x.contiguous()
    return {"x": x, "x_batch": x.stride(0), "X_ROW": x.stride(1), "bias": bias.contiguous()}


def _adjoint(dy: Tensor) -> dict[str, object]:
    dy = dy if dy.stride(2) == 1 else dy.contiguous()
    return {"dy": dy, "dy_batch": dy.stride(0), "DY_ROW": dy.stride(1)}
