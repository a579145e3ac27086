"""Short depthwise convolution along a sequence, followed by SiLU (Mamba's local mixing, Eq. 7).

`reference` defines it; one fused implementation per device type computes it. Forward and backward are registered
operators, so torch.compile sees two opaque operators.

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

# a kernel module has the functions serves, forward and backward
CONV = Dispatch(reference, cpu=("cpu",), cuda=("triton",))


def conv_silu(
    x: Float[Tensor, "q l d"],
    weight: Float[Tensor, "d w"],
    bias: Float[Tensor, "d"],
    mask: Bool[Tensor, "q l"],
    reverse: bool = False,
) -> Float[Tensor, "q l d"]:
    """silu(bias + sum_j weight_j x_{k-w+1+j}) at steps in the mask, 0 elsewhere; masked inputs count as 0."""
    _check(x, weight, bias, mask)
    if CONV.pick(x.device.type, _dtype(x, weight, bias)) is reference:
        return reference.conv_silu(x, weight, bias, mask, reverse)
    return conv_silu_op(x, weight, bias, mask, reverse)


def _check(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> None:
    """Raise ConfigError unless shapes and devices agree; a kernel would read beyond its tensors otherwise."""
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[1] == 0:
        got = f"x {list(x.shape)} and weight {list(weight.shape)}"
        raise ConfigError(
            f"conv_silu got {got}; give [q l d] and [d w] with at least one tap", code="bad-op-shape"
        )
    shapes = {"weight": (weight, (x.shape[2], weight.shape[1])), "bias": (bias, x.shape[2:])}
    shapes["mask"] = (mask, x.shape[:2])
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape or tensor.device != x.device:
            got = f"{list(tensor.shape)} on {tensor.device}"
            raise ConfigError(
                f"conv_silu's {name} is {got}; give {list(shape)} on {x.device}, as for x",
                code="bad-op-shape",
            )
    if mask.dtype != torch.bool:
        raise ConfigError(f"conv_silu's mask is {mask.dtype}; give torch.bool", code="bad-op-dtype")


def _dtype(*tensors: Tensor) -> torch.dtype:
    """Return the output dtype by torch's promotion rules: bfloat16 tokens and float32 weights give float32."""
    return reduce(torch.promote_types, (t.dtype for t in tensors))


def _select_kernels(x: Tensor, dtype: torch.dtype) -> ModuleType:
    module = CONV.pick_kernel(x.device.type, dtype)
    assert module is not None, f"no kernel on {x.device.type} computes a convolution in {dtype}"
    return module


@torch.library.custom_op("dygmamba::conv_silu", mutates_args=())
def conv_silu_op(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    """Compute the output, dense for any strides of x."""
    dtype = _dtype(x, weight, bias)
    return _select_kernels(x, dtype).forward(x, weight, bias, mask, reverse, dtype)


@conv_silu_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=_dtype(x, weight, bias))


@torch.library.custom_op("dygmamba::conv_silu_backward", mutates_args=())
def conv_silu_backward_op(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, reverse: bool, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, weight and bias; the pre-activation is recomputed."""
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
