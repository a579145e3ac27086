"""The short depthwise convolution along a sequence, with its SiLU (Mamba's local mixing, Eq. 7).

`reference` defines it; a fused implementation per device type computes it. Both directions are registered operators,
so that torch.compile sees a forward, a backward and nothing inside.

Legend: q sequences, l steps, d channels, w taps.
"""

from functools import reduce
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.conv import reference
from dygmamba.ops.dispatch import Dispatch

__all__ = ["conv_silu"]

# kernels have serves, forward and backward
CONV = Dispatch(__name__, {"cpu": ("cpu",), "cuda": ("triton",)})


def conv_silu(
    x: Float[Tensor, "q l d"],
    weight: Float[Tensor, "d w"],
    bias: Float[Tensor, "d"],
    mask: Bool[Tensor, "q l"],
    reverse: bool = False,
) -> Float[Tensor, "q l d"]:
    """silu(bias + sum_j weight_j x_{k-w+1+j}) where the mask holds, 0 elsewhere; masked inputs count as 0."""
    _check(x, weight, bias, mask)
    if CONV.choose(x.device.type, _dtype(x, weight, bias)) is reference:
        return reference.conv_silu(x, weight, bias, mask, reverse)
    return conv_silu_op(x, weight, bias, mask, reverse)


def _check(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> None:
    """Raise ConfigError unless shapes and devices agree: a kernel would read beyond its tensors."""
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[1] == 0:
        got = f"x {list(x.shape)} and weight {list(weight.shape)}"
        raise ConfigError(f"conv_silu got {got}; give [q l d] and [d w] with at least one tap")
    shapes = {"weight": (weight, (x.shape[2], weight.shape[1])), "bias": (bias, x.shape[2:])}
    shapes["mask"] = (mask, x.shape[:2])
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape or tensor.device != x.device:
            got = f"{list(tensor.shape)} on {tensor.device}"
            raise ConfigError(f"conv_silu's {name} is {got}; give {list(shape)} on {x.device}, as for x")
    if mask.dtype != torch.bool:
        raise ConfigError(f"conv_silu's mask is {mask.dtype}; give torch.bool")


def _dtype(*tensors: Tensor) -> torch.dtype:
    """The output's: as torch promotes, so that bfloat16 tokens under float32 weights give float32."""
    return reduce(torch.promote_types, (t.dtype for t in tensors))


def _select_kernels(x: Tensor, dtype: torch.dtype) -> ModuleType:
    found = CONV.kernel(x.device.type, dtype)
    assert found is not None, f"no kernel on {x.device.type} serves a convolution in {dtype}"
    return found


@torch.library.custom_op("dygmamba::conv_silu", mutates_args=())
def conv_silu_op(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    """The output, dense whatever x's strides."""
    dtype = _dtype(x, weight, bias)
    return _select_kernels(x, dtype).forward(x, weight, bias, mask, reverse, dtype)


@conv_silu_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=_dtype(x, weight, bias))


@torch.library.custom_op("dygmamba::conv_silu_backward", mutates_args=())
def conv_silu_backward_op(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; the pre-activation is computed again."""
    kernels = _select_kernels(x, _dtype(x, weight, bias))
    dx, dweight, dbias = kernels.backward(x, weight, bias, mask, reverse, dy)
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype)


@conv_silu_backward_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    grads = conv_silu_backward_op(*ctx.saved_tensors, ctx.reverse, dy)
    wanted = zip(grads, ctx.needs_input_grad[:3], strict=True)
    return *(grad if want else None for grad, want in wanted), None, None


conv_silu_op.register_autograd(_backward, setup_context=_save_context)
