"""The norms behind residual connections on a GPU: launches and gradients. The arithmetic is in `triton_kernels`."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dygmamba.ops.dispatch import serving
from dygmamba.ops.residual_norm import triton_kernels as kernels
from dygmamba.ops.rows.triton import sum_rows

MOST_COLUMNS = 1024  # with more, a row does not fit into the registers of a program
TILE, WARPS = 512, 1  # elements of a tile; the sums of a single warp need no barrier
DTYPES = (torch.float32, torch.bfloat16)  # of tokens; weights and statistics are in float32
PROGRAMS = 2112  # of backward: sixteen on each of an H200's multiprocessors; the same number on every device


def _are_served(x: Tensor, branch: Tensor | None, *rest: object) -> bool:
    """Return whether the kernels support these inputs: of one of `DTYPES`, both the same, and not too wide."""
    same = branch is None or branch.dtype == x.dtype
    return x.dtype in DTYPES and same and 0 < x.shape[-1] <= MOST_COLUMNS and x.numel() > 0


@serving(_are_served)
def add_rms_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return x + branch and its norm."""
    return AddRmsNorm.apply(x, branch, weight, eps)


class AddRmsNorm(torch.autograd.Function):
    """x + branch and its RMS norm, [q l d] each."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, branch = x.contiguous(), None if branch is None else branch.contiguous()
        total, y = x if branch is None else torch.empty_like(x), torch.empty_like(x)
        rstd = torch.empty(x.shape[:-1], device=x.device)
        sizes = _sizes(x)
        with torch.cuda.device_of(x):
            kernels.rms_forward_kernel[(triton.cdiv(rstd.numel(), sizes["ROWS"]),)](
                x, branch, weight, total, y, rstd, rstd.numel(), eps, **sizes, num_warps=WARPS
            )
        ctx.save_for_backward(total, weight, rstd)
        ctx.has_branch = branch is not None
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return one gradient for both terms of the sum, and that of the weight."""
        (total, weight, rstd), (dtotal, dy) = ctx.saved_tensors, grads
        if dy is None:
            return dtotal, dtotal if ctx.has_branch else None, None, None
        dx, sizes, count = torch.empty_like(total), _sizes(total), rstd.numel()
        programs = min(PROGRAMS, triton.cdiv(count, sizes["ROWS"]))
        parts = None if weight is None else torch.empty(programs, len(weight), device=total.device)
        dtotal = None if dtotal is None else dtotal.contiguous()
        with torch.cuda.device_of(total):
            kernels.rms_backward_kernel[(programs,)](
                total, weight, rstd, dtotal, dy.contiguous(), dx, parts, count, **sizes, num_warps=WARPS
            )
            dweight = None if parts is None else sum_rows(parts[None])[0]
        return dx, dx if ctx.has_branch else None, dweight, None


@serving(_are_served)
def add_layer_norm(
    x: Tensor,
    branch: Tensor,
    projection: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    dropout: float,
    eps: float = 1e-5,
) -> Tensor:
    """Return the layer norm of x + dropout(W branch + b); b is added, and its gradient summed, with the norm."""
    projected, keep = linear(branch, projection[0]), None
    if dropout > 0:
        keep = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - dropout)
    return AddLayerNorm.apply(x, projected, projection[1], *norm, keep, dropout, eps)


class AddLayerNorm(torch.autograd.Function):
    """The layer norm of x + dropout(branch + offset), [q l d]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        offset: Tensor,
        weight: Tensor,
        bias: Tensor,
        keep: Tensor | None,
        dropout: float,
        eps: float,
    ) -> Tensor:
        """`keep` says which values dropout keeps; None without dropout."""
        total, y = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
        mean, rstd = torch.empty(2, *x.shape[:-1], device=x.device)
        keep = None if keep is None else keep.view(torch.uint8)
        ctx.scale = 0.0 if dropout == 1 else 1 / (1 - dropout)
        sizes = _sizes(x)
        with torch.cuda.device_of(x):
            kernels.layer_forward_kernel[(triton.cdiv(rstd.numel(), sizes["ROWS"]),)](
                x.contiguous(), branch, offset, keep, weight, bias, total, y, mean, rstd, rstd.numel(), eps,
                ctx.scale, **sizes, num_warps=WARPS,
            )  # fmt: skip
        ctx.save_for_backward(total, keep, weight, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of both terms of the sum, and of offset, weight and bias."""
        total, keep, weight, mean, rstd = ctx.saved_tensors
        dx, sizes, count = torch.empty_like(total), _sizes(total), rstd.numel()
        dbranch = dx if keep is None else torch.empty_like(total)
        programs = min(PROGRAMS, triton.cdiv(count, sizes["ROWS"]))
        parts = torch.empty(programs, 3 * len(weight), device=total.device)
        with torch.cuda.device_of(total):
            kernels.layer_backward_kernel[(programs,)](
                total, keep, weight, mean, rstd, grads[0].contiguous(), dx, dbranch, parts, count, ctx.scale,
                **sizes, num_warps=WARPS,
            )  # fmt: skip
            dweight, dbias, doffset = sum_rows(parts[None]).view(3, -1)
        return dx, dbranch, doffset, dweight, dbias, None, None, None


def _sizes(x: Tensor) -> dict[str, int]:
    """Return the numbers that a kernel is compiled for."""
    block = triton.next_power_of_2(x.shape[-1])
    return {"WIDTH": x.shape[-1], "ROWS": max(1, TILE // block), "BLOCK": block}
