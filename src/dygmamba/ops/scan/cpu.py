"""The scan's CPU side: tensors to arrays, tasks to threads. The arithmetic is in `cpu_kernels`.

Threads are our own, around kernels which release the GIL: unlike Numba's pools they may be used from several
Python threads and after a fork, and bring no second OpenMP beside torch's. How the work is cut never depends
on their number, so no bit of the result does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.scan import cpu_kernels as kernels
from dygmamba.ops.scan.inputs import SHAPES, Inputs, Upstream

IN_PLACE = False  # backward leaves the checkpoints as they are
BLOCKS = 64  # sequences are dealt out in at most so many blocks
PIECES = 8  # calls per thread: sequences are ragged, so a thread that is done early fetches more
SERIAL = 1 << 19  # below so many state updates, starting a thread costs more than it saves


def serves(x: Inputs) -> bool:
    """Whether the kernels take these inputs: everything."""
    return True


def checkpoint_shape(x: Inputs) -> tuple[int | torch.SymInt, ...]:
    """The states which forward keeps for backward: one every CHUNK steps, channel-last."""
    q, length, d = x.u.shape
    return q, -(-length // kernels.CHUNK), x.A.shape[1], d


def forward(x: Inputs, rule: str, reverse: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state and the checkpoints (size 0 unless `keep`)."""
    q, _, d = x.u.shape
    y, state = _rows(x, x.u.shape), x.u.new_empty(q, d, x.A.shape[1])
    checkpoints = _rows(x, checkpoint_shape(x) if keep else (0, 0, 0, 0))
    to = kernels.Outputs(y.numpy(), state.numpy(), checkpoints.numpy())
    run_in_threads(kernels.forward, *_work(x), _arrays(x, rule, reverse), to)
    return y, state, checkpoints


def backward(x: Inputs, rule: str, reverse: bool, given: Upstream) -> Inputs:
    """The gradients, in the inputs' places; None where there is no input, or no wish for the span's."""
    sums = _sums(x, given.span_grad)
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


def _rows(x: Inputs, shape: Sequence[int | torch.SymInt]) -> Tensor:
    """A fresh tensor; the kernels skip masked steps, whose rows must then be zero already."""
    return x.u.new_empty(shape) if x.mask is None else x.u.new_zeros(shape)


def _sums(x: Inputs, span_grad: bool) -> kernels.Grads:
    """Room for the gradients, before the sums over blocks and groups."""
    q, length, d = x.u.shape
    groups, blocks, n = -(-d // kernels.LANES), min(q, BLOCKS), x.A.shape[1]
    return kernels.Grads(
        u=_rows(x, x.u.shape),
        delta=_rows(x, x.u.shape if x.delta is not None else (0, 0, 0)),
        z=_rows(x, x.u.shape if x.z is not None else (0, 0, 0)),
        state=x.u.new_empty((q, d, n) if x.state is not None else (0, 0, 0)),
        B=_rows(x, (groups, q, length, n)),
        C=_rows(x, (groups, q, length, n)),
        span=_rows(x, (groups, q, length) if span_grad else (0, 0, 0)),
        A=x.u.new_empty((blocks, d, n), dtype=torch.float64),
        channel=x.u.new_empty((3, blocks, d), dtype=torch.float64),
    )


def _arrays(x: Inputs, rule: str, reverse: bool) -> kernels.Arrays:
    """The inputs as the kernels want them: dense, and never None."""
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
    """How many tasks and state updates there are."""
    tasks = min(x.u.shape[0], BLOCKS) * -(-x.u.shape[2] // kernels.LANES)
    return tasks, x.u.numel() * x.A.shape[1]


def run_in_threads(kernel: Callable[..., None], tasks: int, size: int, *arguments: Any) -> None:
    """Run every task of a kernel, `size` updates in all, on as many threads as torch may use."""
    threads = min(torch.get_num_threads(), tasks) if size > SERIAL else 1
    if threads <= 1:
        kernel(0, tasks, *arguments)
        return
    pieces = min(PIECES * threads, tasks)
    cuts = [tasks * piece // pieces for piece in range(pieces + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(kernel, a, b, *arguments) for a, b in pairwise(cuts)]:
            done.result()
