"""The scan on a GPU: kernel launches and buffers for partial sums. The arithmetic is in `triton_kernels`.

Sums over channels (for B, C, span) are written per block of channels and added afterwards, in a fixed order: there
are no atomics, so two runs agree in every bit. To keep these partial sums small, backward is launched once per window
of time, the last one first, and the adjoint of the state is handed from launch to launch.

Legend: q sequences, l steps, d channels, n states.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.scan import triton_kernels as kernels
from dygmamba.ops.scan.inputs import Inputs, Upstream

IN_PLACE = False  # backward leaves the checkpoints as they are
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_STATES = 64  # with more, a thread's share of the states does not fit into its registers


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Sizes of blocks and windows; they change results in rounding only."""

    block: int = 32  # channels of a program; with 16 states and one warp, a thread owns a channel
    warps: int = 1
    forward_step: int = 4  # steps whose loads are in flight at the same time
    step: int = 2  # steps whose states backward holds in registers
    interval: int = 32  # steps between kept states: a multiple of forward_step and step
    resident: int = 8  # programs of backward that fit on a multiprocessor by their registers
    registers: int | None = None  # most registers per thread in backward
    window: int = 48 << 20  # bytes of partial sums over channels


def plan_for(x: Inputs) -> LaunchPlan:
    """Return the plan for these shapes, the fastest of those that were measured on an H200."""
    block = min(32, 512 // triton.next_power_of_2(x.A.shape[1]))
    length = x.u.shape[1]
    return LaunchPlan(block=block, interval=min(32 if length <= 512 else 64, 4 * triton.cdiv(length, 4)))


def serves(x: Inputs) -> bool:
    """Return True: the kernels raise an error for what they do not support."""
    return True


def checkpoint_shape(x: Inputs, plan: LaunchPlan | None = None) -> tuple[int, ...]:
    """Return the shape of the states kept for backward: one every `interval` steps but the first, channel-last."""
    q, length, d = x.u.shape
    chunks = triton.cdiv(length, (plan or plan_for(x)).interval)
    return q, chunks - 1, x.A.shape[1], d


@torch.no_grad()
def forward(
    x: Inputs, rule: str, reverse: bool, keep: bool, plan: LaunchPlan | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y, the final state and the checkpoints (of size 0 unless `keep`); states are always float32."""
    _check(x)
    plan = plan or plan_for(x)
    (q, _, d), n = x.u.shape, x.A.shape[1]
    y = torch.empty(x.u.shape, dtype=x.u.dtype, device=x.u.device)
    final = torch.empty(q, d, n, dtype=torch.float32, device=x.u.device)
    shape = checkpoint_shape(x, plan) if keep else (0, 0, 0, 0)
    kept = torch.empty(shape, dtype=torch.float32, device=x.u.device)
    if x.u.numel() == 0:
        return y, final if x.state is None else final.copy_(x.state), kept
    with _on(x.u.device):
        kernels.forward_kernel[(q * triton.cdiv(d, plan.block),)](
            **_arguments(x, rule, reverse, plan, plan.forward_step),
            y=y,
            final=final,
            kept=kept if kept.numel() else None,
            num_warps=plan.warps,
            num_stages=1,
        )
    return y, final, kept


@torch.no_grad()
def backward(x: Inputs, rule: str, reverse: bool, given: Upstream, plan: LaunchPlan | None = None) -> Inputs:
    """Compute the gradients in the fields of their inputs; None without an input or if the span's is not needed."""
    plan = plan or plan_for(x)
    cut = BackwardGrid.from_inputs(x, plan)
    room = _allocate_outputs(x, given.dstate, given.span_grad and x.span is not None, plan, cut)
    shared = _arguments(x, rule, reverse, plan, plan.step) | _adjoints(given.dy, given.checkpoints)
    shared |= {"HALVINGS": min(plan.block, 32).bit_length() - 2, "count": x.u.shape[0], "window": cut.window}
    options = {"num_warps": plan.warps, "num_stages": 1, "maxnreg": plan.registers}
    blank = torch.empty if x.u.numel() else torch.zeros
    dBC = blank(2, *x.B.shape, device=x.u.device)
    dspan = None if room["dspan"] is None else blank(x.u.shape[:2], device=x.u.device)
    with _on(x.u.device):
        for first, last in cut.windows if x.u.numel() else ():
            start, stop = first * plan.interval, min(x.u.shape[1], last * plan.interval)
            if reverse:
                start, stop = x.u.shape[1] - stop, x.u.shape[1] - start
            chunks = {"first": first, "last": last, "start": start}
            kernels.backward_kernel[(cut.blocks, cut.rows)](**shared, **room, **chunks, **options)
            torch.sum(room["dBC"][:, :, :, : stop - start], 1, out=dBC[:, :, start:stop])
            if dspan is not None:
                torch.sum(room["dspan"][:, :, : stop - start], 0, out=dspan[:, start:stop])
    return _gradients(x, room, dBC, dspan)


@dataclass(frozen=True, slots=True)
class BackwardGrid:
    """Grid of backward: a program per block of channels and row of sequences, a launch per window of time."""

    blocks: int
    rows: int  # a program processes every rows-th sequence
    window: int  # steps
    windows: tuple[tuple[int, int], ...]  # chunks first .. last - 1, the last window first

    @classmethod
    def from_inputs(cls, x: Inputs, plan: LaunchPlan) -> "BackwardGrid":
        """Use just enough programs to fill the device, and windows as wide as their partial sums may be."""
        (q, length, d), n = x.u.shape, x.A.shape[1]
        blocks, chunks = triton.cdiv(max(d, 1), plan.block), triton.cdiv(length, plan.interval)
        most = max(1, plan.resident * _multiprocessors(x.u.device) // blocks)
        rounds = triton.cdiv(max(q, 1), most)
        chunk_bytes = 2 * 4 * blocks * max(q, 1) * n * plan.interval
        width = max(1, min(chunks, plan.window // chunk_bytes))
        windows = tuple((max(0, last - width), last) for last in range(chunks, 0, -width))
        return cls(blocks, triton.cdiv(max(q, 1), rounds), min(length, width * plan.interval), windows)


def _allocate_outputs(
    x: Inputs, dstate: Tensor, span_grad: bool, plan: LaunchPlan, cut: BackwardGrid
) -> dict[str, Tensor | None]:
    """Allocate what the kernel writes: gradients, partial sums, the adjoint of the state and scratch memory."""
    (q, _, d), n, device = x.u.shape, x.A.shape[1], x.u.device
    adjoint = None
    if dstate.numel() > 0:
        adjoint = dstate.transpose(1, 2).to(torch.float32, copy=True).contiguous()
    elif x.state is not None or len(cut.windows) > 1:
        adjoint = torch.zeros(q, n, d, device=device)
    places = cut.rows * cut.blocks * (plan.interval // plan.step)
    dense = {name: None if t is None else torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in
             {"du": x.u, "ddelta": x.delta, "dz": x.z}.items()}  # fmt: skip
    return dense | {
        "adjoint": adjoint,
        "scratch": torch.empty(places, triton.next_power_of_2(n), plan.block, device=device),
        "dBC": torch.empty(2, cut.blocks, q, cut.window, n, device=device),
        "dspan": torch.empty(cut.blocks, q, cut.window, device=device) if span_grad else None,
        "dA": torch.zeros(cut.rows, n, d, device=device),
        "dvectors": torch.zeros(3, cut.rows, d, device=device),
    }


def _gradients(x: Inputs, room: dict[str, Tensor | None], dBC: Tensor, dspan: Tensor | None) -> Inputs:
    """Return every gradient in the field and dtype of its input."""
    dD, dw1, dw2 = room["dvectors"].sum(1)
    dstate = None if x.state is None else room["adjoint"].transpose(1, 2).contiguous()
    dA = room["dA"].sum(0).t().contiguous()
    grads = Inputs(
        room["du"], room["ddelta"], dspan, dw1, dw2, dA, dBC[0], dBC[1], dD, room["dz"], None, dstate
    )
    wanted = x._replace(mask=None, span=None if dspan is None else x.span)
    return Inputs(*(None if t is None else g.to(t.dtype) for g, t in zip(grads, wanted, strict=True)))


def _adjoints(dy: Tensor, checkpoints: Tensor) -> dict[str, object]:
    """Return the gradient of y, which may be expanded from one number as that of a sum is, and the kept states."""
    dy = dy if dy.stride(2) in (0, 1) else dy.contiguous()
    strides = {"dy_batch": dy.stride(0), "DY_ROW": dy.stride(1), "DY_COLUMN": dy.stride(2)}
    return strides | {"dy": dy, "kept": checkpoints if checkpoints.numel() else None}


def _arguments(x: Inputs, rule: str, reverse: bool, plan: LaunchPlan, step: int) -> dict[str, object]:
    """Return the arguments that forward and backward share."""
    u, z, B, C = _rows(x.u), _rows(x.z), x.B.contiguous(), x.C.contiguous()
    steps = x.span.contiguous() if x.delta is None else _rows(x.delta)
    state = None if x.state is None else x.state.transpose(1, 2).to(torch.float32).contiguous()
    mask = None if x.mask is None else x.mask.contiguous().view(torch.uint8)
    n, length = x.A.shape[1], x.u.shape[1]
    arguments = {"u": u, "step": steps, "w1": x.w1, "w2": x.w2, "A": x.A.t().contiguous(), "B": B, "C": C}
    arguments |= {"D": x.D, "z": z, "mask": mask, "state": state}
    arguments |= {"length": length, "interval": plan.interval, "opaque": 0}
    arguments |= {
        "u_batch": u.stride(0),
        "step_batch": steps.stride(0),
        "z_batch": 0 if z is None else z.stride(0),
    }
    arguments |= {"U_ROW": u.stride(1), "STEP_ROW": steps.stride(1), "Z_ROW": 0 if z is None else z.stride(1)}
    arguments |= {"CHANNELS": x.u.shape[2], "STATES": n, "PADDED": triton.next_power_of_2(n)}
    arguments |= {"BLOCK": plan.block, "STEP": step, "ZOH": rule == "zoh", "REVERSE": reverse}
    return arguments | {"GUARD": mask is not None or length % step != 0}


def _rows(t: Tensor | None) -> Tensor | None:
    """Return the tensor with dense rows; rows may lie apart, as the halves of a projection do."""
    return t if t is None or t.stride(2) == 1 else t.contiguous()


def _check(x: Inputs) -> None:
    if x.u.dtype not in DTYPES:
        raise ConfigError(
            f"the fused scan computes in float32 and u is {x.u.dtype}; cast u or call the reference",
            code="bad-op-dtype",
        )
    if x.A.shape[1] > MOST_STATES:
        raise ConfigError(
            f"the fused scan supports at most {MOST_STATES} states and A has {x.A.shape[1]}; call the reference",
            code="too-many-states",
        )


def _on(device: torch.device) -> AbstractContextManager:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
