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
    (q, length, d), y = x.shape, torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() > 0:
        with torch.cuda.device_of(x):
            kernels.forward_kernel[(q * triton.cdiv(length, STEPS) * triton.cdiv(d, BLOCK),)](
                **_arguments(x, weight, bias, mask, reverse), y=y, STEPS=STEPS, num_warps=WARPS
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
            **_arguments(x, weight, bias, mask, reverse), **_rows("dy", dy),
            dx=dx, parts=parts, STEPS=FLIGHT, num_warps=BACKWARD_WARPS,
        )  # fmt: skip
        sums = sum_rows(parts.view(1, q, -1)).view(taps + 1, d)
    return dx, sums[:-1].t().contiguous(), sums[-1].clone()


def _arguments(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool) -> dict[str, object]:
    """Return the arguments that both kernels share; the weights tap by tap."""
    sizes = {"length": x.shape[1], "CHANNELS": x.shape[2], "TAPS": weight.shape[1], "BLOCK": BLOCK}
    tensors = {"weight": weight.t().contiguous(), "bias": bias.contiguous()}
    tensors |= {"mask": mask.contiguous().view(torch.uint8)} | _rows("x", x)
    return sizes | tensors | {"SIGN": -1 if reverse else 1}


def _rows(name: str, t: Tensor) -> dict[str, object]:
    """Return a tensor and its strides as arguments; rows may lie apart, as the halves of one projection do."""
    t = t if t.stride(2) == 1 else t.contiguous()
    return {name: t, f"{name}_batch": t.stride(0), f"{name.upper()}_ROW": t.stride(1)}
