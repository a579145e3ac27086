"""The selective scan with exact zero-order hold, and with time spans as its step (DyG-Mamba Eq. 7-11).

`reference` defines it; fused implementations per device type compute it. Both public functions call one pair of
registered operators, so torch.compile sees an opaque forward and an opaque backward.

Legend: q sequences, l steps, d channels, n states.
"""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.scan import reference
from dygmamba.ops.scan.inputs import SCHEMA, Inputs, Upstream

__all__ = ["scan", "span_scan"]

# a kernel module has serves, IN_PLACE, checkpoint_shape, forward and backward; the last per device serves everything
SCAN = Dispatch(reference, slow=True, cpu=("cpu",), cuda=("cuda", "triton"))


def scan(
    u: Float[Tensor, "q l d"],
    delta: Float[Tensor, "q l d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "q l n"],
    C: Float[Tensor, "q l n"],
    D: Float[Tensor, "d"] | None = None,
    z: Float[Tensor, "q l d"] | None = None,
    mask: Bool[Tensor, "q l"] | None = None,
    state: Float[Tensor, "q d n"] | None = None,
    rule: str = "zoh",
    reverse: bool = False,
) -> tuple[Float[Tensor, "q l d"], Float[Tensor, "q d n"]]:
    """`reference.scan`, fused: return y and the final state, differentiable in all inputs but the mask."""
    return _scan(Inputs(u, delta, None, None, None, A, B, C, D, z, mask, state), rule, reverse)


def span_scan(
    u: Float[Tensor, "q l d"],
    span: Float[Tensor, "q l"],
    w1: Float[Tensor, "d"],
    w2: Float[Tensor, "d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "q l n"],
    C: Float[Tensor, "q l n"],
    D: Float[Tensor, "d"] | None = None,
    z: Float[Tensor, "q l d"] | None = None,
    mask: Bool[Tensor, "q l"] | None = None,
    state: Float[Tensor, "q d n"] | None = None,
    rule: str = "zoh",
    reverse: bool = False,
) -> tuple[Float[Tensor, "q l d"], Float[Tensor, "q d n"]]:
    """`reference.span_scan`, fused: delta = w1 (1 - exp(-w2 span)) is never stored as a tensor (Eq. 11)."""
    return _scan(Inputs(u, None, span, w1, w2, A, B, C, D, z, mask, state), rule, reverse)


def _scan(x: Inputs, rule: str, reverse: bool) -> tuple[Tensor, Tensor]:
    x.check(rule)
    if (
        x.u.dtype != x.state_dtype and x.u.device.type == "cpu"
    ):  # the CPU kernels have no half-precision arithmetic
        wide = x._replace(**{name: t.float() for name, t in x.present.items() if name != "mask"})
        y, state = _scan(wide, rule, reverse)
        return y.to(x.u.dtype), state
    if SCAN.pick(x.u.device.type, x) is reference:
        return _run_reference(x, rule, reverse)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in x)
    y, state, _ = scan_op(*x, rule, reverse, keep)
    return y, state


def _run_reference(x: Inputs, rule: str, reverse: bool) -> tuple[Tensor, Tensor]:
    """Run the reference; torch differentiates it."""
    definition = reference.span_scan if x.delta is None else reference.scan
    return definition(**x.present, rule=rule, reverse=reverse)


def select_kernels(x: Inputs) -> ModuleType:
    """Return the kernels for these inputs, the same for forward and backward."""
    module = SCAN.pick_kernel(x.u.device.type, x)
    assert module is not None, f"no kernel on {x.u.device.type} computes the scan"
    return module


@torch.library.custom_op(
    "dygmamba::scan",
    mutates_args=(),
    schema=f"({SCHEMA}, str rule, bool reverse, bool keep) -> (Tensor, Tensor, Tensor)",
)
def scan_op(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y, the final state, and the checkpoints that backward needs if `keep` (else of size 0)."""
    *tensors, rule, reverse, keep = args
    x = Inputs(*tensors)
    return select_kernels(x).forward(x, rule, reverse, keep)


@scan_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, keep = Inputs(*args[:12]), args[14]
    q, _, d = x.u.shape
    checkpoints = select_kernels(x).checkpoint_shape(x) if keep else (0, 0, 0, 0)
    state = x.u.new_empty((q, d, x.A.shape[1]), dtype=x.state_dtype)
    return torch.empty_like(x.u), state, x.u.new_empty(checkpoints, dtype=x.state_dtype)


@torch.library.custom_op(
    "dygmamba::scan_backward",
    mutates_args=(),
    schema=f"({SCHEMA}, str rule, bool reverse, Tensor y, Tensor checkpoints, Tensor dy, Tensor dstate, bool span_grad)"
    " -> Tensor[]",
)
def scan_backward_op(*args: Any) -> list[Tensor]:
    """Compute the inputs' gradients in order; of size 0 if there is none (dstate of size 0 means zero)."""
    *tensors, rule, reverse, y, checkpoints, dy, dstate, span_grad = args
    x = Inputs(*tensors)
    kernels = select_kernels(x)
    if kernels.IN_PLACE:  # a registered operator must not change its arguments
        checkpoints = checkpoints.clone()
    grads = kernels.backward(x, rule, reverse, Upstream(y, checkpoints, dy, dstate, span_grad))
    return [x.u.new_empty(0) if g is None else _clone_if_shared(g) for g in grads]


def _clone_if_shared(grad: Tensor) -> Tensor:
    """Return a tensor with storage of its own: an operator must not return two slices of one buffer."""
    alone = grad.untyped_storage().nbytes() == grad.numel() * grad.element_size()
    return grad if alone else grad.clone()


@scan_backward_op.register_fake
def _(*args: Any) -> list[Tensor]:
    x, span_grad = Inputs(*args[:12]), args[18]
    wanted = x._replace(mask=None, span=x.span if span_grad else None)
    return [x.u.new_empty(0) if t is None else t.new_empty(t.shape) for t in wanted]


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.rule, ctx.reverse, _ = inputs
    ctx.save_for_backward(*tensors, output[0], output[2])
    ctx.set_materialize_grads(False)
    ctx.spent = False


def _backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    *tensors, y, checkpoints = ctx.saved_tensors
    x, wanted = Inputs(*tensors), Inputs(*ctx.needs_input_grad[:12])
    dy = torch.zeros_like(x.u) if dy is None else dy
    dstate = x.u.new_empty(0, 0, 0) if dstate is None else dstate
    kind, adjoint, kernels = (ctx.rule, ctx.reverse), (dy, dstate, bool(wanted.span)), select_kernels(x)
    if kernels.IN_PLACE and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        if ctx.spent:  # a second backward pass: the first one has overwritten the checkpoints with gradients
            _, _, checkpoints = scan_op(*x, *kind, True)
        ctx.spent = True
        grads = kernels.backward(x, *kind, Upstream(y, checkpoints, *adjoint))
    else:
        grads = scan_backward_op(*x, *kind, y, checkpoints, *adjoint)
    return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None, None, None


scan_op.register_autograd(_backward, setup_context=_save_context)
