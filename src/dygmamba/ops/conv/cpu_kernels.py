"""The convolution on a CPU: loops over channels which LLVM turns into SIMD, compiled by Numba at the first call.

A task is one of the blocks of sequences. With the pre-activation a_k = bias + sum_j weight_j x_s(k, j), where tap j
of step k reads step s(k, j) = k + sign (j - w + 1), and g_k = dy_k silu'(a_k), backward scatters
    dx_s(k, j) += g_k weight_j,    dweight_j += g_k x_s(k, j),    dbias += g_k
from step to step, while the w rows concerned stay in the nearest cache.

Legend: q sequences, l steps, d channels, w taps.
"""

from typing import Any, NamedTuple

import numpy as np

from dygmamba.ops.numba_kernels import inlined, kernel
from dygmamba.ops.scan.cpu_kernels import EXACT, exp_expm1


class Rows(NamedTuple):
    """A [q l d] tensor in place: row k of sequence i is data[i batch + k row : ... + d]."""

    data: Any
    batch: int
    row: int


class Arrays(NamedTuple):
    """The op's inputs."""

    x: Rows
    weight: Any  # [w d]
    bias: Any  # [d]
    mask: Any  # [q l]
    blocks: int
    sign: int  # 1, or -1 against time


@inlined(**EXACT)
def _row(rows, i, k, d):
    start = i * rows.batch + k * rows.row
    return rows.data[start : start + d]


@inlined(**EXACT)
def _source(x, i, k, tap):
    """The step which a tap of step k reads, or -1 where there is none or it is masked."""
    s = k + x.sign * (tap - x.weight.shape[0] + 1)
    return s if 0 <= s < x.mask.shape[1] and x.mask[i, s] else -1


@inlined(**EXACT)
def _add_product(a, b, total):
    for c in range(total.shape[0]):
        total[c] += a[c] * b[c]


@inlined(**EXACT)
def _add(a, total):
    for c in range(total.shape[0]):
        total[c] += a[c]


@inlined(**EXACT)
def _activation(x, i, k, a):
    """Step k's pre-activation into `a`."""
    for c in range(a.shape[0]):
        a[c] = x.bias[c]
    for tap in range(x.weight.shape[0]):
        s = _source(x, i, k, tap)
        if s >= 0:
            _add_product(x.weight[tap], _row(x.x, i, s, a.shape[0]), a)


@inlined(**EXACT)
def _silu(a, y):
    one = a.dtype.type(1)
    for c in range(y.shape[0]):
        E, _ = exp_expm1(-a[c])
        y[c] = a[c] / (one + E)


@inlined(**EXACT)
def _silu_adjoint(a, dy, g):
    """The gradient at the pre-activation: silu' = s (1 + a (1 - s)) with s = 1 / (1 + e^-a)."""
    one = a.dtype.type(1)
    for c in range(g.shape[0]):
        E, _ = exp_expm1(-a[c])
        sigmoid = one / (one + E)
        g[c] = dy[c] * (sigmoid * (one + a[c] * (one - sigmoid)))


@kernel(**EXACT)
def forward(first, last, x, y):
    """Blocks first..last - 1 of the output y [q l d], which is zero where nothing is written."""
    q, length, d = y.shape
    a = np.empty(d, y.dtype)
    for i in range(first * q // x.blocks, last * q // x.blocks):
        for k in range(length):
            if x.mask[i, k]:
                _activation(x, i, k, a)
                _silu(a, y[i, k])


@kernel(**EXACT)
def backward(first, last, x, dy, dx, parts):
    """Blocks first..last - 1 of the adjoint: dx [q l d] and parts [blocks w+1 d] (weight, then bias) start as zero."""
    (q, length, d), taps = dx.shape, x.weight.shape[0]
    a, g = np.empty(d, dx.dtype), np.empty(d, dx.dtype)
    for block in range(first, last):
        for i in range(block * q // x.blocks, (block + 1) * q // x.blocks):
            for k in range(length):
                if x.mask[i, k]:
                    _activation(x, i, k, a)
                    _silu_adjoint(a, _row(dy, i, k, d), g)
                    _add(g, parts[block, taps])
                    for tap in range(taps):
                        s = _source(x, i, k, tap)
                        if s >= 0:
                            _add_product(g, _row(x.x, i, s, d), parts[block, tap])
                            _add_product(g, x.weight[tap], dx[i, s])
