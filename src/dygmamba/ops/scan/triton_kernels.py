"""The scan's Triton kernels: a thread owns a channel, its states stay in registers, time is a plain loop.

A tile of states is [n d], so that Triton's default layout puts 32 channels on the 32 lanes of a warp and all states of
a channel into one thread: sums over n cost no exchange, and loads along d coalesce. Strides named `row` are passed
unspecialised for the same reason: were the compiler to see a wide aligned row, it would spread a tile differently.

Exponents are in base 2: a = A log2(e), x = delta a, so that e^(delta A) = 2^x is one instruction.

Legend: q sequences, l steps, d channels, n states; k counts steps in scan order, t in time.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _expm1(x):
    """2^x - 1. The cubic is a lower bound everywhere, and is exact where 2^x - 1 has lost its digits.

    2^x - 1 carries an absolute error of about 1e-7; less a little more than that, it is below the cubic near zero
    and above it elsewhere, so the larger one is right to 7e-6 at worst and to about 1e-6 as a rule.
    """
    cubic = x * (0.6931471805599453 + x * (0.2402265069591007 + x * 0.05550410866482158))
    return tl.maximum(cubic, tl.exp2(x) - 1.00000018)


@triton.jit
def _phi_less_1(x, e, inverse):
    """(e^X - 1) / X - 1 with X = x ln 2, e = 2^x and inverse = 1 / X: to about 1e-5 of itself for every x."""
    series = x * (0.34657359027997264 + x * (0.080075502319700232 + x * 0.013876027166205395))
    return tl.where(tl.abs(x) < 0.17, series, (e - 1.0) * inverse - 1.0)


@triton.jit
def _live(mask, q, t, k, length, GUARD: tl.constexpr):
    """Whether step k counts: it is inside the sequence, and not masked."""
    alive = k < length
    if mask is not None:
        alive = alive & (tl.load(mask + q * length + t, mask=alive, other=0) != 0)
    return alive


@triton.jit
def _row(pointer, offset, column, alive, inside, GUARD: tl.constexpr):
    """One row of an input in float32; zero outside, and at steps that do not count, whatever is there."""
    if GUARD:
        value = tl.load(pointer + offset + column, mask=inside & alive, other=0.0)
    else:
        value = tl.load(pointer + offset + column, mask=inside, other=0.0)
    return value.to(tl.float32)


@triton.jit
def _scalar(pointer, offset, alive, GUARD: tl.constexpr):
    if GUARD:
        value = tl.load(pointer + offset, mask=alive, other=0.0)
    else:
        value = tl.load(pointer + offset)
    return value.to(tl.float32)


@triton.jit
def _state_row(pointer, offset, n, alive, STATES: tl.constexpr, PADDED: tl.constexpr, GUARD: tl.constexpr):
    """One token's B or C, in float32."""
    if PADDED > STATES:
        return _row(pointer, offset, n, alive, n < STATES, GUARD)
    elif GUARD:
        return tl.load(pointer + offset + n, mask=alive, other=0.0).to(tl.float32)
    else:
        return tl.load(pointer + offset + n).to(tl.float32)


@triton.jit
def _advance(h, x, b, u, ia, ZOH: tl.constexpr, delta):
    """h_k from h_(k-1)."""
    if ZOH:
        return h + _expm1(x) * (b[:, None] * (u * LOG2E)[None, :] * ia + h)
    else:
        return tl.exp2(x) * h + b[:, None] * (delta * u)[None, :]
