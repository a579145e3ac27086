"""The convolution's Triton kernels: forward in tiles of steps times channels, backward step by step.

With the pre-activation a_k = bias + sum_j weight_j x_s(k, j), where tap j of step k reads step
s(k, j) = k + SIGN (j - w + 1), and g_k = dy_k silu'(a_k), backward is
    dx_s = sum_j weight_j g_k  over the k with s(k, j) = s,    dweight_j = sum_k g_k x_s(k, j),    dbias = sum_k g_k.
Offsets within a tile are small; where a tile begins is a 64-bit number.

Legend: q sequences, l steps, d channels, w taps.
"""

import triton
import triton.language as tl

from dygmamba.ops.scan.triton_kernels import sigmoid

# Run-time numbers: a kernel compiled for one length serves all.
NUMBERS = ["length"]


@triton.jit
def alive(mask, q, k, length):
    """Return the mask of the steps k that exist and are not masked."""
    here = (k >= 0) & (k < length)
    return here & (tl.load(mask + q * length + k, mask=here, other=0) != 0)


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    x, weight, bias, mask, y, length, x_batch,
    X_ROW: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of the output [q l d]; weight is [w d]."""
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    tile, tiles = tl.program_id(0) // BLOCKS, tl.cdiv(length, STEPS)
    q, start = (tile // tiles).to(tl.int64), (tile % tiles) * STEPS
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, STEPS)
    inside = d < CHANNELS
    a = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(TAPS):
        shift = SIGN * (j - TAPS + 1)
        whole = alive(mask, q, start + shift + r, length)[:, None] & inside[None, :]
        first = x + q * x_batch + (start.to(tl.int64) + shift) * X_ROW
        value = tl.load(first + (r[:, None] * X_ROW + d[None, :]), mask=whole, other=0.0).to(tl.float32)
        a += value * tl.load(weight + j * CHANNELS + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    out = tl.where(alive(mask, q, start + r, length)[:, None], a * sigmoid(a), 0.0)
    at = y + (q * length + start) * CHANNELS + (r[:, None] * CHANNELS + d[None, :])
    tl.store(at, out, mask=(start + r < length)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    x, weight, bias, mask, dy, dx, parts, length, x_batch, dy_batch,
    X_ROW: tl.constexpr, DY_ROW: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx of a sequence and a block of channels, and its share of dweight and dbias in parts [q w+1 d].

    Time is a plain loop: the last inputs and the last g stay in registers, and dx of step k - w + 1 is complete when
    g_k is there. The rows of STEPS steps are in flight at the same time.
    """
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    q = (tl.program_id(0) // BLOCKS).to(tl.int64)
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    inside = d < CHANNELS
    zero = tl.zeros([BLOCK], tl.float32)
    b = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    taps, inputs, past, sums = (), (), (), (zero,)
    for j in tl.static_range(TAPS):
        taps = taps + (tl.load(weight + j * CHANNELS + d, mask=inside, other=0.0).to(tl.float32),)
        inputs, past, sums = inputs + (zero,), past + (zero,), sums + (zero,)
    start = tl.where(SIGN > 0, 0, length - 1)
    for first in range(0, length + TAPS - 1, STEPS):
        rows, grads = (), ()
        for s in tl.static_range(STEPS):
            t = start + SIGN * (first + s)
            here = inside & (
                (first + s < length) & (tl.load(mask + q * length + t, mask=first + s < length, other=0) != 0)
            )
            rows = rows + (
                tl.load(x + q * x_batch + t.to(tl.int64) * X_ROW + d, mask=here, other=0.0).to(tl.float32),
            )
            grads = grads + (
                tl.load(dy + q * dy_batch + t.to(tl.int64) * DY_ROW + d, mask=here, other=0.0).to(tl.float32),
            )
        for s in tl.static_range(STEPS):
            inputs = inputs[1:] + (rows[s],)
            a = b
            for j in tl.static_range(TAPS):
                a += taps[j] * inputs[j]
            e = sigmoid(a)
            g = grads[s] * e * (1.0 + a * (1.0 - e))  # 0 at steps that do not count, because dy is
            more = ()
            for j in tl.static_range(TAPS):
                more = more + (sums[j] + g * inputs[j],)
            sums = more + (sums[TAPS] + g,)
            past = past[1:] + (g,)
            out = zero
            for j in tl.static_range(TAPS):
                out += taps[j] * past[TAPS - 1 - j]
            k = first + s - (TAPS - 1)
            t = start + SIGN * k
            real = (k >= 0) & (k < length)
            alone = real & (tl.load(mask + q * length + t, mask=real, other=0) != 0)
            tl.store(dx + (q * length + t) * CHANNELS + d, tl.where(alone, out, 0.0), mask=inside & real)
    for j in tl.static_range(TAPS + 1):
        tl.store(parts + (q * (TAPS + 1) + j) * CHANNELS + d, sums[j], mask=inside)
