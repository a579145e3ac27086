"""The scan on a CPU: tensors become arrays, tasks are distributed to threads. The arithmetic is in `cpu_kernels`.

The tasks do not depend on the number of threads, so neither do the bits of the result.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.scan import cpu_kernels as kernels
from dygmamba.ops.scan.inputs import SHAPES, Inputs, Upstream
from dygmamba.ops.threads import run_in_threads

IN_PLACE = False  # backward leaves the checkpoints as they are
BLOCKS = 64  # most blocks of sequences; fixed, as gradients are summed per block


def serves(x: Inputs) -> bool:
    """Return True: the kernels support all inputs."""
    return True


def checkpoint_shape(x: Inputs) -> tuple[int | torch.SymInt, ...]:
    """Return the shape of the states kept for backward: one every CHUNK steps, channel-last."""
    q, length, d = x.u.shape
    return q, -(-length // kernels.CHUNK), x.A.shape[1], d


def forward(x: Inputs, rule: str, reverse: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y, the final state and the checkpoints (of size 0 unless `keep`)."""
    q, _, d = x.u.shape
    y, state = _allocate(x, x.u.shape), x.u.new_empty(q, d, x.A.shape[1])
    checkpoints = _allocate(x, checkpoint_shape(x) if keep else (0, 0, 0, 0))
    to = kernels.Outputs(y.numpy(), state.numpy(), checkpoints.numpy())
    run_in_threads(kernels.forward, *_work(x), _arrays(x, rule, reverse), to)
    return y, state, checkpoints


def backward(x: Inputs, rule: str, reverse: bool, given: Upstream) -> Inputs:
    """Compute the gradients in the fields of their inputs; None without an input or if the span's is not needed."""
    sums = _allocate_gradients(x, given.span_grad)
    to = kernels.Grads(*(t.numpy() for t in sums))
    adjoints = (t.detach().contiguous().numpy() for t in (given.dy, given.dstate, given.checkpoints))
    run_in_threads(kernels.backward, *_work(x), _arrays(x, rule, reverse), *adjoints, to)
    w1, w2, D = sums.channel.sum(1).to(x.u.dtype)
    return Inputs(
        u=sums.u,
        delta=sums.delta if x.delta is not None else None,
        span=sums.span.sum(0) if given.span_grad else None,
        w1=w1 if x.w1 is not None else None,
        w2=w2 if x.w2 is not None else None,
        A=sums.A.sum(0).to(x.u.dtype),
        B=sums.B.sum(0),
        C=sums.C.sum(0),
        D=D if x.D is not None else None,
        z=sums.z if x.z is not None else None,
        mask=None,
        state=sums.state if x.state is not None else None,
    )


def _allocate(x: Inputs, shape: Sequence[int | torch.SymInt]) -> Tensor:
    """Allocate a tensor; the kernels skip masked steps, so with a mask its rows must start as zero."""
    return x.u.new_empty(shape) if x.mask is None else x.u.new_zeros(shape)


def _allocate_gradients(x: Inputs, span_grad: bool) -> kernels.Grads:
    """Allocate the gradients, before the sums over blocks and groups."""
    q, length, d = x.u.shape
    groups, blocks, n = -(-d // kernels.LANES), min(q, BLOCKS), x.A.shape[1]
    return kernels.Grads(
        u=_allocate(x, x.u.shape),
        delta=_allocate(x, x.u.shape if x.delta is not None else (0, 0, 0)),
        z=_allocate(x, x.u.shape if x.z is not None else (0, 0, 0)),
        state=x.u.new_empty((q, d, n) if x.state is not None else (0, 0, 0)),
        B=_allocate(x, (groups, q, length, n)),
        C=_allocate(x, (groups, q, length, n)),
        span=_allocate(x, (groups, q, length) if span_grad else (0, 0, 0)),
        A=x.u.new_empty((blocks, d, n), dtype=torch.float64),
        channel=x.u.new_empty((3, blocks, d), dtype=torch.float64),
    )


def _arrays(x: Inputs, rule: str, reverse: bool) -> kernels.Arrays:
    """Return the inputs as dense arrays; an absent input becomes an empty array."""
    given = {
        name: t.detach().contiguous().numpy() for name, t in zip(x._fields, x, strict=True) if t is not None
    }
    absent = {name: np.empty((0,) * len(SHAPES[name]), x.u.detach().numpy().dtype) for name in SHAPES}
    if x.D is None:
        given["D"] = np.zeros(x.u.shape[2], absent["D"].dtype)
    if x.mask is None:
        given["mask"] = np.ones(x.u.shape[:2], np.bool_)
    blocks = min(x.u.shape[0], BLOCKS)
    return kernels.Arrays(**(absent | given), blocks=blocks, euler=rule == "euler", reverse=reverse)


def _work(x: Inputs) -> tuple[int, int]:
    """Return the number of tasks and of state updates."""
    tasks = min(x.u.shape[0], BLOCKS) * -(-x.u.shape[2] // kernels.LANES)
    return tasks, x.u.numel() * x.A.shape[1]
