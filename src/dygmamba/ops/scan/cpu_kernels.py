"""The scan on a CPU: loops over channels which LLVM turns into SIMD, compiled by Numba at the first call.

Legend: q sequences, l steps, d channels, n states; a task is one of b blocks of sequences times one of g
groups of up to LANES channels. Within a task every array is channel-last ([lanes] or [n lanes]), so that the
innermost loop runs over neighbours in memory and needs no sum across SIMD lanes to advance the state. Arrays
which are written lie apart from those which are read: LLVM vectorises only what it can see not to overlap.

Backward. With x = delta A, E = e^x and G = phi(x) delta, a step is h = E h' + G B u, where
    dG/d delta = E,  dG/dA = delta^2 phi'(x)  (zoh);    dG/d delta = 1,  dG/dA = 0  (euler).
The adjoint dh of h, gathered from this step's output and all later steps, gives
    du = dh G B,    d delta = dh (A E h' + dG/d delta B u),
    dB = dh G u,    dA = dh (delta E h' + dG/dA B u),        dh' = dh E.
States are kept every CHUNK steps only; a chunk is replayed just before its adjoint is computed.
"""

import math
from typing import Any, NamedTuple, no_type_check

import numpy as np
from numba import types
from numba.extending import overload

from dygmamba.ops.numba_kernels import inlined, kernel

CHUNK = 32  # steps between stored states: n / CHUNK of the input's size, and the trace stays in the L2 cache
LANES = 64  # channels of a task: four AVX-512 vectors amortise the sums which dB and dC need
VECTOR = 16  # inner loops run over a multiple of this, so that no scalar remainder is left over

# how LLVM may change the arithmetic: exp's range reduction must keep its order, fused multiply-add is welcome
EXACT: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
# dB and dC are sums over lanes, whose order the compiler may fix; a kernel is one piece of code, so it does so once
SUMS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}


class Arrays(NamedTuple):
    """The op's inputs as arrays; an absent one has size 0, except D (zeros) and mask (ones)."""

    u: Any  # [q l d]
    delta: Any  # [q l d], or absent: from span
    span: Any  # [q l]
    w1: Any  # [d]
    w2: Any  # [d]
    A: Any  # [d n]
    B: Any  # [q l n]
    C: Any  # [q l n]
    D: Any  # [d]
    z: Any  # [q l d]
    mask: Any  # [q l]
    state: Any  # [q d n]
    blocks: int
    euler: bool
    reverse: bool


class Outputs(NamedTuple):
    """Outputs that forward writes."""

    y: Any  # [q l d]
    state: Any  # [q d n]
    checkpoints: Any  # [q l/CHUNK n d], or size 0: not wanted


class Grads(NamedTuple):
    """Gradients that backward writes; sums over sequences stay apart per block, sums over channels per group."""

    u: Any  # [q l d]
    delta: Any  # [q l d]
    z: Any  # [q l d]
    state: Any  # [q d n]
    B: Any  # [g q l n]
    C: Any  # [g q l n]
    span: Any  # [g q l], or size 0: not wanted
    A: Any  # [b d n] float64
    channel: Any  # [3 b d] float64: w1, w2, D


class Place(NamedTuple):
    """Sequences (start..stop) and channels (base..end) of a task; `padded` lanes are computed."""

    start: int
    stop: int
    group: int
    base: int
    end: int
    padded: int


class Scratch(NamedTuple):
    """A task's working memory; lanes beyond its channels stay zero."""

    rate: Any  # [n lanes] A
    inverse: Any  # [n lanes] 1 / A
    h: Any  # [n lanes]
    out: Any  # [lanes] C h
    delta: Any  # [slots lanes]
    u: Any  # [slots lanes]
    order: Any  # [l] the unmasked steps in the order they are taken


class Adjoint(NamedTuple):
    """Backward's further memory: what a chunk's replay leaves, slot by slot, and the running sums."""

    before: Any  # [slots n lanes] h', the state before the step
    E: Any  # [slots n lanes]
    G: Any  # [slots n lanes]
    dy: Any  # [slots lanes] adjoint of C h
    du: Any  # [slots lanes]
    d_delta: Any  # [lanes]
    dh: Any  # [n lanes]
    dA: Any  # [n lanes] of this chunk
    channel: Any  # [3 lanes] w1, w2 and D of this chunk


# --- exponentials: float32 is plain arithmetic which vectorises, float64 calls the C library ---

f32 = np.float32
LOG2E, LN2_HIGH, LN2_LOW = f32(1.44269504), f32(0.693359375), f32(-2.12194440e-4)
ROUND = f32(1.5 * 2**23)  # adding it rounds to an integer, which then sits in the low mantissa bits
LOWEST, HIGHEST = f32(-127 * math.log(2)), f32(127 * math.log(2))  # e^x is 0 below, 2^127 above
ONE = f32(1)
# Chebyshev fits of phi and phi' on |r| <= ln 2 / 2; relative error 1.2e-8 and 2e-8
P0, P1, P2, P3, P4, P5 = (
    f32(c) for c in (1.0, 0.5000000014, 0.1666650396, 0.0416664634, 0.0083692922, 0.0013933820)
)
S0, S1, S2, S3, S4, S5 = (
    f32(c) for c in (0.5, 0.3333333345, 0.1249985763, 0.0333331526, 0.0069759101, 0.0011944702)
)
SERIES = tuple((i + 1) / math.factorial(i + 2) for i in reversed(range(15)))  # phi' in float64
SMALL = 0.34  # below ln 2 / 2, where x = r and phi' would cancel as (E - phi) / x


@inlined(**EXACT)
def _reduce(x):
    """For x = k ln 2 + r: k, phi(r), r phi(r) and 2^k; NaN stays NaN."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    shifted = x * LOG2E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = ((((P5 * r + P4) * r + P3) * r + P2) * r + P1) * r + P0
    bits = f32(shifted).view(np.int32)
    return k, p, r * p, np.int32((bits + np.int32(127)) << np.int32(23)).view(f32)


def exp_expm1(x):
    """(e^x, e^x - 1)."""
    raise NotImplementedError("compiled only")


@no_type_check
@overload(exp_expm1, jit_options={**EXACT, "forceinline": True})
def _exp_expm1(x):
    def single(x):
        _, _, m, scale = _reduce(x)
        return scale * m + scale, scale * m + (scale - ONE)

    def double(x):
        return math.exp(x), math.expm1(x)

    return single if x == types.float32 else double


def hold(x, delta, inverse):
    """(e^x, phi(x) delta) with x = delta A and inverse = 1 / A; no division, and exact at x = 0."""
    raise NotImplementedError("compiled only")


@no_type_check
@overload(hold, jit_options={**EXACT, "forceinline": True})
def _hold(x, delta, inverse):
    def single(x, delta, inverse):
        k, p, m, scale = _reduce(x)
        return scale * m + scale, p * delta if k == f32(0) else (scale * m + (scale - ONE)) * inverse

    def double(x, delta, inverse):
        return math.exp(x), delta if x == 0 else math.expm1(x) / x * delta

    return single if x == types.float32 else double


def hold_slope(x, delta, E, G, inverse):
    """d(phi(x) delta) / dA = delta^2 phi'(x)."""
    raise NotImplementedError("compiled only")


@no_type_check
@overload(hold_slope, jit_options={**EXACT, "forceinline": True})
def _hold_slope(x, delta, E, G, inverse):
    def single(x, delta, E, G, inverse):
        near = ((((S5 * x + S4) * x + S3) * x + S2) * x + S1) * x + S0
        return delta * delta * near if abs(x) < f32(SMALL) else (delta * E - G) * inverse

    def double(x, delta, E, G, inverse):
        if abs(x) >= SMALL:
            return (delta * E - G) * inverse
        near = 0.0
        for c in SERIES:
            near = near * x + c
        return delta * delta * near

    return single if x == types.float32 else double


# --- what both directions share ---


@inlined(**EXACT)
def _place(task, x):
    q, _, d = x.u.shape
    groups = (d + LANES - 1) // LANES
    block, group = task // groups, task % groups
    base = group * LANES
    end = min(base + LANES, d)
    padded = (end - base + VECTOR - 1) // VECTOR * VECTOR
    return Place(block * q // x.blocks, (block + 1) * q // x.blocks, group, base, end, padded)


@inlined(**EXACT)
def _scratch(x, slots):
    n, dtype = x.A.shape[1], x.u.dtype
    planes, rows = np.zeros((3, n, LANES), dtype), np.zeros((2, slots, LANES), dtype)
    order = np.zeros(x.u.shape[1], np.int64)
    return Scratch(planes[0], planes[1], planes[2], np.zeros(LANES, dtype), rows[0], rows[1], order)


@inlined(**EXACT)
def _enter(x, at, work):
    """Load the task's A, and wipe the lanes which a wider task may have left beyond its channels."""
    work.rate.fill(0)
    work.delta.fill(0)
    work.u.fill(0)
    for j in range(at.end - at.base):
        for s in range(x.A.shape[1]):
            a = x.A[at.base + j, s]
            work.rate[s, j] = a
            work.inverse[s, j] = 1 / a if a != 0 else 0  # never used where A is 0


@inlined(**EXACT)
def _valid(mask, reverse, order):
    """Fills `order`; returns the number of unmasked steps."""
    count, length = 0, order.shape[0]
    for t in range(length):
        k = length - 1 - t if reverse else t
        if mask[k]:
            order[count] = k
            count += 1
    return count


# Loops, not slices: an assignment of slices costs Numba half a second of compilation each.


@inlined(**EXACT)
def _copy(source, target):
    for j in range(min(source.shape[0], target.shape[0])):
        target[j] = source[j]


@inlined(**EXACT)
def _save(h, at, checkpoint):
    for s in range(h.shape[0]):
        for j in range(at.end - at.base):
            checkpoint[s, at.base + j] = h[s, j]


@inlined(**EXACT)
def _restore(checkpoint, at, h):
    h.fill(0)  # the lanes beyond `end` too: a NaN there would reach dC
    for s in range(h.shape[0]):
        for j in range(at.end - at.base):
            h[s, j] = checkpoint[s, at.base + j]


@inlined(**EXACT)
def _transpose(source, target):
    """[lanes n] -> [n lanes] or back, as wide as the narrower of the two."""
    for i in range(min(source.shape[0], target.shape[1])):
        for j in range(min(source.shape[1], target.shape[0])):
            target[j, i] = source[i, j]


@inlined(**EXACT)
def _span_step(span, w1, w2, delta):
    """Eq. 11: delta = w1 (1 - exp(-w2 span))."""
    for j in range(w1.shape[0]):
        _, minus = exp_expm1(-w2[j] * span)
        delta[j] = -w1[j] * minus


@inlined(**EXACT)
def _load(x, at, i, k, work, slot):
    """Step k's delta and u into a slot."""
    _copy(x.u[i, k, at.base : at.end], work.u[slot])
    if x.w1.size > 0:
        _span_step(x.span[i, k], x.w1[at.base : at.end], x.w2[at.base : at.end], work.delta[slot])
    else:
        _copy(x.delta[i, k, at.base : at.end], work.delta[slot])


# --- forward ---


@inlined(**SUMS)
def _advance(work, B, C, padded, euler):
    """For every state and lane: h <- E h + G B u, and out <- C h."""
    rate, inverse, h, out = work.rate, work.inverse, work.h, work.out
    delta, u = work.delta[0], work.u[0]
    for j in range(padded):
        out[j] = 0
    for s in range(h.shape[0]):
        b, c = B[s], C[s]
        for j in range(padded):
            E, G = hold(delta[j] * rate[s, j], delta[j], inverse[s, j])
            G = delta[j] if euler else G
            new = E * h[s, j] + G * (b * u[j])
            h[s, j] = new
            out[j] += c * new


@inlined(**SUMS)
def _emit(out, u, D, y):
    """The output: y <- C h + D u."""
    for j in range(y.shape[0]):
        y[j] = out[j] + D[j] * u[j]


@inlined(**SUMS)
def _gate(z, y):
    """The gate: y <- y silu(z)."""
    for j in range(y.shape[0]):
        E, _ = exp_expm1(-z[j])
        y[j] *= z[j] / (1 + E)


@kernel(**SUMS)
def forward(first, last, x, to):
    """Tasks first..last - 1 of the scan: inputs `x`, outputs `to`."""
    work = _scratch(x, 1)
    for task in range(first, last):
        at = _place(task, x)
        _enter(x, at, work)
        for i in range(at.start, at.stop):
            work.h.fill(0)
            if x.state.size > 0:
                _transpose(x.state[i, at.base : at.end], work.h)
            for t in range(_valid(x.mask[i], x.reverse, work.order)):
                k = work.order[t]
                if t % CHUNK == 0 and to.checkpoints.size > 0:
                    _save(work.h, at, to.checkpoints[i, t // CHUNK])
                _load(x, at, i, k, work, 0)
                _advance(work, x.B[i, k], x.C[i, k], at.padded, x.euler)
                y = to.y[i, k, at.base : at.end]
                _emit(work.out, work.u[0], x.D[at.base : at.end], y)
                if x.z.size > 0:
                    _gate(x.z[i, k, at.base : at.end], y)
            _transpose(work.h, to.state[i, at.base : at.end])


# --- backward ---


@inlined(**SUMS)
def _replay(work, back, slot, B, C, padded, euler):
    """`_advance` again, leaving h', E and G in the slot."""
    before, Es, Gs = back.before[slot], back.E[slot], back.G[slot]
    rate, inverse, h, out = work.rate, work.inverse, work.h, work.out
    delta, u = work.delta[slot], work.u[slot]
    for j in range(padded):
        out[j] = 0
    for s in range(h.shape[0]):
        b, c = B[s], C[s]
        for j in range(padded):
            E, G = hold(delta[j] * rate[s, j], delta[j], inverse[s, j])
            G = delta[j] if euler else G
            before[s, j] = h[s, j]
            Es[s, j] = E
            Gs[s, j] = G
            new = E * h[s, j] + G * (b * u[j])
            h[s, j] = new
            out[j] += c * new


@inlined(**SUMS)
def _ungate(z, dy, out, u, D, dz, inner):
    """Adjoint of y = v silu(z), v = C h + D u: dz, and dv into `inner`."""
    for j in range(dz.shape[0]):
        E, _ = exp_expm1(-z[j])
        sigmoid = 1 / (1 + E)
        dz[j] = dy[j] * (out[j] + D[j] * u[j]) * sigmoid * (1 + z[j] * (1 - sigmoid))
        inner[j] = dy[j] * z[j] * sigmoid


@inlined(**SUMS)
def _unskip(inner, u, D, du, dD):
    """Adjoint of D u."""
    for j in range(D.shape[0]):
        du[j] = inner[j] * D[j]
        dD[j] += inner[j] * u[j]


@inlined(**SUMS)
def _retreat(work, back, slot, B, C, dB, dC, padded, euler):
    """One step back: the module docstring's sums over lanes (dB, dC), states (du, d delta) and steps (dA)."""
    before, Es, Gs = back.before[slot], back.E[slot], back.G[slot]
    rate, inverse, delta, u = work.rate, work.inverse, work.delta[slot], work.u[slot]
    dy, du, d_delta, dh, dA = back.dy[slot], back.du[slot], back.d_delta, back.dh, back.dA
    zero = dh.dtype.type(0)
    for j in range(padded):
        d_delta[j] = 0
    for s in range(dh.shape[0]):
        b, c, db, dc = B[s], C[s], zero, zero
        for j in range(padded):
            E, G, a, bu = Es[s, j], Gs[s, j], rate[s, j], b * u[j]
            g = dh[s, j] + c * dy[j]  # adjoint of h, this step's own output included
            decayed = g * E
            slope = hold_slope(delta[j] * a, delta[j], E, G, inverse[s, j])
            dc += dy[j] * (E * before[s, j] + G * bu)
            db += g * G * u[j]
            du[j] += g * G * b
            d_delta[j] += decayed * (a * before[s, j]) + (g if euler else decayed) * bu
            dA[s, j] += decayed * (delta[j] * before[s, j]) + g * bu * (zero if euler else slope)
            dh[s, j] = decayed
        dB[s] = db
        dC[s] = dc


@inlined(**SUMS)
def _span_adjoint(span, w1, w2, d_delta, d_w1, d_w2):
    """Adjoint of Eq. 11: adds to w1's and w2's, returns span's (a sum over lanes)."""
    total = span * 0
    for j in range(w1.shape[0]):
        E, minus = exp_expm1(-w2[j] * span)
        slope = d_delta[j] * w1[j] * E
        d_w1[j] -= d_delta[j] * minus
        d_w2[j] += slope * span
        total += slope * w2[j]
    return total


@inlined(**EXACT)
def _flush(part, total):
    """Move a chunk's sums into float64 ones: no float32 sum is longer than a chunk."""
    for s in range(part.shape[0]):
        for j in range(part.shape[1]):
            total[s, j] += part[s, j]
            part[s, j] = 0


@inlined(**EXACT)
def _adjoint(n, dtype):
    planes, rows = np.zeros((3, CHUNK, n, LANES), dtype), np.zeros((2, CHUNK, LANES), dtype)
    sums = np.zeros((2, n, LANES), dtype)
    d_delta, channel = np.zeros(LANES, dtype), np.zeros((3, LANES), dtype)
    return Adjoint(planes[0], planes[1], planes[2], rows[0], rows[1], d_delta, sums[0], sums[1], channel)


@inlined(**EXACT)
def _replay_step(x, at, i, k, dy, to, work, back, slot):
    """Step k forward again, and its output's adjoint back through gate and skip."""
    _load(x, at, i, k, work, slot)
    _replay(work, back, slot, x.B[i, k], x.C[i, k], at.padded, x.euler)
    D, inner, u = x.D[at.base : at.end], back.dy[slot], work.u[slot]
    if x.z.size > 0:
        z, dz = x.z[i, k, at.base : at.end], to.z[i, k, at.base : at.end]
        _ungate(z, dy[i, k, at.base : at.end], work.out, u, D, dz, inner)
    else:
        _copy(dy[i, k, at.base : at.end], inner)
    _unskip(inner, u, D, back.du[slot], back.channel[2])


@inlined(**EXACT)
def _retreat_step(x, at, i, k, to, work, back, slot):
    """Step k's adjoint, written out."""
    dB, dC = to.B[at.group, i, k], to.C[at.group, i, k]
    _retreat(work, back, slot, x.B[i, k], x.C[i, k], dB, dC, at.padded, x.euler)
    _copy(back.du[slot], to.u[i, k, at.base : at.end])
    if x.w1.size == 0:
        _copy(back.d_delta, to.delta[i, k, at.base : at.end])
        return
    w1, w2 = x.w1[at.base : at.end], x.w2[at.base : at.end]
    total = _span_adjoint(x.span[i, k], w1, w2, back.d_delta, back.channel[0], back.channel[1])
    if to.span.size > 0:
        to.span[at.group, i, k] = total


@kernel(**EXACT)
def backward(first, last, x, dy, dstate, checkpoints, to):
    """Tasks first..last - 1 of the adjoint: dy [q l d], dstate [q d n] (or size 0), gradients into `to`."""
    n = x.A.shape[1]
    dA, channel = np.zeros((n, LANES)), np.zeros((3, LANES))
    work, back = _scratch(x, CHUNK), _adjoint(n, x.u.dtype)
    for task in range(first, last):
        at = _place(task, x)
        _enter(x, at, work)
        back.dy.fill(0)
        dA.fill(0)
        channel.fill(0)
        for i in range(at.start, at.stop):
            count = _valid(x.mask[i], x.reverse, work.order)
            back.dh.fill(0)
            if dstate.size > 0:
                _transpose(dstate[i, at.base : at.end], back.dh)
            for chunk in range((count - 1) // CHUNK, -1, -1):
                begin, stop = chunk * CHUNK, min(count, chunk * CHUNK + CHUNK)
                _restore(checkpoints[i, chunk], at, work.h)
                for t in range(begin, stop):
                    _replay_step(x, at, i, work.order[t], dy, to, work, back, t - begin)
                for t in range(stop - 1, begin - 1, -1):
                    _retreat_step(x, at, i, work.order[t], to, work, back, t - begin)
                _flush(back.dA, dA)
                _flush(back.channel, channel)
            if to.state.size > 0:
                _transpose(back.dh, to.state[i, at.base : at.end])
        block = task // to.B.shape[0]
        _transpose(dA, to.A[block, at.base : at.end])
        for row in range(3):
            _copy(channel[row], to.channel[row, block, at.base : at.end])
