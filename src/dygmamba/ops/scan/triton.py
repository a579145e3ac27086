"""The scan's GPU side: what to launch, and where partial sums go. The arithmetic is in `triton_kernels`.

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

from dygmamba.errors import ConfigError
from dygmamba.ops.scan import triton_kernels as kernels
from dygmamba.ops.scan.inputs import Inputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STATES = 64  # at most; beyond, a thread's share of the states leaves its registers


@dataclass(frozen=True, slots=True)
class Plan:
    """How the work is cut; the result depends on it in rounding only."""

    block: int = 32  # channels of a program; with 16 states and one warp, a thread owns a channel
    warps: int = 1
    forward_step: int = 4  # steps whose loads are in flight together
    step: int = 2  # steps whose states backward holds in registers
    interval: int = 32  # steps between kept states: a multiple of both
    resident: int = 8  # programs of backward on a multiprocessor: what their registers leave room for
    registers: int | None = None  # at most so many a thread in backward
    window: int = 48 << 20  # bytes of partial sums over channels


def plan_for(x: Inputs) -> Plan:
    """The plan that the measurements on one NVIDIA H200 chose (docs/log.md)."""
    block = min(32, 512 // triton.next_power_of_2(x.A.shape[1]))
    length = x.u.shape[1]
    return Plan(block=block, interval=min(32 if length <= 512 else 64, 4 * triton.cdiv(length, 4)))


def checkpoint_shape(x: Inputs, plan: Plan | None = None) -> tuple[int, ...]:
    """The states which forward keeps for backward: one every `interval` steps but the first, channel-last."""
    q, length, d = x.u.shape
    chunks = triton.cdiv(length, (plan or plan_for(x)).interval)
    return q, chunks - 1, x.A.shape[1], d


@torch.no_grad()
def forward(
    x: Inputs, rule: str, reverse: bool, keep: bool, plan: Plan | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state and the checkpoints (size 0 unless `keep`); states are float32 whatever u is."""
    _check(x)
    plan = plan or plan_for(x)
    q, length, d = x.u.shape
    n = x.A.shape[1]
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
def backward(
    x: Inputs,
    rule: str,
    reverse: bool,
    checkpoints: Tensor,
    dy: Tensor,
    dstate: Tensor,
    span_grad: bool,
    plan: Plan | None = None,
) -> Inputs:
    """The gradients, in the inputs' places; None where there is no input, or no wish for the span's."""
    plan = plan or plan_for(x)
    grads = _Gradients(x, reverse, dstate, span_grad, plan)
    dy = dy if dy.stride(2) in (0, 1) else dy.contiguous()
    if x.u.numel() > 0:
        with _on(x.u.device):
            for first, last in grads.windows:
                kernels.backward_kernel[(grads.blocks, grads.rows)](
                    **_arguments(x, rule, reverse, plan, plan.step),
                    **grads.arguments(first, last),
                    kept=checkpoints if checkpoints.numel() else None,
                    dy=dy,
                    dy_batch=dy.stride(0),
                    DY_ROW=dy.stride(1),
                    DY_COLUMN=dy.stride(2),
                    HALVINGS=plan.block.bit_length() - 2 if plan.warps == 1 else 0,
                    num_warps=plan.warps,
                    num_stages=1,
                    maxnreg=plan.registers,
                )
                grads.collect(first, last)
    return grads.result()


class _Gradients:
    """Room for the gradients, for their parts, and the sums of these."""

    def __init__(self, x: Inputs, reverse: bool, dstate: Tensor, span_grad: bool, plan: Plan) -> None:
        self.x, self.reverse, self.plan = x, reverse, plan
        self.span_grad = span_grad and x.span is not None
        self.q, self.length, self.d = x.u.shape
        self.n, self.device = x.A.shape[1], x.u.device
        self.blocks = triton.cdiv(self.d, plan.block)
        chunks = triton.cdiv(self.length, plan.interval)
        step_bytes = 2 * 4 * self.blocks * max(1, self.q) * self.n
        width = max(1, min(chunks, plan.window // (step_bytes * plan.interval)))
        self.windows = [(max(0, last - width), last) for last in range(chunks, 0, -width)]
        self.window = min(self.length, width * plan.interval)
        most = max(1, plan.resident * _multiprocessors(self.device) // self.blocks)
        self.rows = triton.cdiv(max(1, self.q), triton.cdiv(max(1, self.q), most))
        self._make_room(dstate)

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _make_room(self, dstate: Tensor) -> None:
        x, (q, length, d, n) = self.x, (self.q, self.length, self.d, self.n)
        self.du, self.ddelta, self.dz = (
            None if t is None else self._empty(q, length, d, dtype=t.dtype) for t in (x.u, x.delta, x.z)
        )
        padded = triton.next_power_of_2(n)
        slots = self.rows * self.blocks * (self.plan.interval // self.plan.step)
        self.scratch = self._empty(slots, padded, self.plan.block)
        self.dA = torch.zeros(self.rows, n, d, device=self.device)
        self.dvectors = torch.zeros(3, self.rows, d, device=self.device)
        self.parts = self._empty(2, self.blocks, q, self.window, n)
        self.span_parts = self._empty(self.blocks, q, self.window) if self.span_grad else None
        whole = self.window == length
        self.dBC = None if whole else self._empty(2, q, length, n)
        self.dspan = None if whole or not self.span_grad else self._empty(q, length)
        self.adjoint = None
        if dstate.numel() > 0:
            self.adjoint = dstate.transpose(1, 2).to(torch.float32, copy=True).contiguous()
        elif x.state is not None or len(self.windows) > 1:
            self.adjoint = torch.zeros(q, n, d, device=self.device)

    def _times(self, first: int, last: int) -> tuple[int, int]:
        start, stop = first * self.plan.interval, min(self.length, last * self.plan.interval)
        return (self.length - stop, self.length - start) if self.reverse else (start, stop)

    def arguments(self, first: int, last: int) -> dict[str, object]:
        """The kernel's for chunks first .. last - 1."""
        return {
            "adjoint": self.adjoint,
            "scratch": self.scratch,
            "du": self.du,
            "ddelta": self.ddelta,
            "dz": self.dz,
            "dBC": self.parts,
            "dspan": self.span_parts,
            "dA": self.dA,
            "dvectors": self.dvectors,
            "count": self.q,
            "first": first,
            "last": last,
            "start": self._times(first, last)[0],
            "window": self.window,
        }

    def collect(self, first: int, last: int) -> None:
        """Add the parts of a window up."""
        start, stop = self._times(first, last)
        if self.dBC is None:
            self.dBC = self.parts.sum(1)
        else:
            torch.sum(self.parts[:, :, :, : stop - start], 1, out=self.dBC[:, :, start:stop])
        if self.span_parts is None:
            return
        if self.dspan is None:
            self.dspan = self.span_parts.sum(0)
        else:
            torch.sum(self.span_parts[:, :, : stop - start], 0, out=self.dspan[:, start:stop])

    def result(self) -> Inputs:
        """All gradients in their inputs' dtypes."""
        x, (D, w1, w2) = self.x, self.dvectors.sum(1)
        dB, dC = torch.zeros(2, *x.B.shape, device=self.device) if self.dBC is None else self.dBC
        dstate = None if x.state is None else self.adjoint.transpose(1, 2).contiguous()
        dA = self.dA.sum(0).t().contiguous()
        grads = Inputs(self.du, self.ddelta, self.dspan, w1, w2, dA, dB, dC, D, self.dz, None, dstate)
        wanted = x._replace(mask=None, span=x.span if self.span_grad else None)
        return Inputs(*(None if t is None else g.to(t.dtype) for g, t in zip(grads, wanted, strict=True)))


def _arguments(x: Inputs, rule: str, reverse: bool, plan: Plan, step: int) -> dict[str, object]:
    """What forward and backward are both given."""
    u, z, B, C = _rows(x.u), _rows(x.z), x.B.contiguous(), x.C.contiguous()
    steps = x.span.contiguous() if x.delta is None else _rows(x.delta)
    state = None if x.state is None else x.state.transpose(1, 2).to(torch.float32).contiguous()
    mask = None if x.mask is None else x.mask.contiguous().view(torch.uint8)
    n, length = x.A.shape[1], x.u.shape[1]
    arguments = {"u": u, "step": steps, "w1": x.w1, "w2": x.w2, "A": x.A.t().contiguous(), "B": B, "C": C}
    arguments |= {"D": x.D, "z": z, "mask": mask, "state": state}
    arguments |= {"length": length, "interval": plan.interval, "opaque": 0}
    arguments |= {"u_batch": u.stride(0), "step_batch": steps.stride(0), "z_batch": 0 if z is None else z.stride(0)}
    arguments |= {"U_ROW": u.stride(1), "STEP_ROW": steps.stride(1), "Z_ROW": 0 if z is None else z.stride(1)}
    arguments |= {"CHANNELS": x.u.shape[2], "STATES": n, "PADDED": triton.next_power_of_2(n)}
    arguments |= {"BLOCK": plan.block, "STEP": step, "ZOH": rule == "zoh", "REVERSE": reverse}
    return arguments | {"GUARD": mask is not None or length % step != 0}


def _rows(t: Tensor | None) -> Tensor | None:
    """Rows may lie apart (halves of one projection do), but each must be dense."""
    return t if t is None or t.stride(2) == 1 else t.contiguous()


def _check(x: Inputs) -> None:
    if x.u.dtype not in DTYPES:
        raise ConfigError(f"the fused scan computes in float32 and u is {x.u.dtype}; cast u or call the reference")
    if x.A.shape[1] > STATES:
        raise ConfigError(f"the fused scan holds {STATES} states and A has {x.A.shape[1]}; call the reference")


def _on(device: torch.device) -> AbstractContextManager:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
