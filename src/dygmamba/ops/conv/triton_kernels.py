"""The convolution's Triton kernels: tiles of steps times channels, read once per tap and so mostly from the cache.

With the pre-activation a_k = bias + sum_j weight_j x_s(k, j), where tap j of step k reads step
s(k, j) = k + SIGN (j - w + 1), and g_k = dy_k silu'(a_k), backward is
    dx_s = sum_j weight_j g_k  over the k with s(k, j) = s,    dweight_j = sum_k g_k x_s(k, j),    dbias = sum_k g_k.
The first kernel leaves g in memory, the second gathers dx from it. Offsets within a tile are small; where a tile
begins is a 64-bit number.

Legend: q sequences, l steps, d channels, w taps.
"""

import triton
import triton.language as tl

from dygmamba.ops.scan.triton_kernels import sigmoid

# Run-time numbers: a kernel compiled for one length serves all.
NUMBERS = ["count", "length"]


@triton.jit
def place(tile, length, STEPS: tl.constexpr):
    """A tile's sequence and first step."""
    tiles = tl.cdiv(length, STEPS)
    return (tile // tiles).to(tl.int64), (tile % tiles) * STEPS


@triton.jit
def alive(mask, q, k, length):
    """Return the mask of the steps k that exist and are not masked."""
    here = (k >= 0) & (k < length)
    return here & (tl.load(mask + q * length + k, mask=here, other=0) != 0)


@triton.jit
def load_tile(pointer, first, r, d, whole, ROW: tl.constexpr):
    """Rows first + r in float32, zero outside `whole`, whatever lies there."""
    at = pointer + first * ROW + (r[:, None] * ROW + d[None, :])
    return tl.load(at, mask=whole, other=0.0).to(tl.float32)


@triton.jit
def load_taps(
    x, weight, bias, mask, q, start, r, d, inside, length, x_batch,
    ROW: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    """The pre-activation of a tile, what each tap read for it, and which of its steps count."""
    a = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    here = alive(mask, q, start + r, length)
    values = ()
    for j in tl.static_range(TAPS):
        shift = SIGN * (j - TAPS + 1)
        whole = alive(mask, q, start + shift + r, length)[:, None] & inside[None, :]
        value = load_tile(x + q * x_batch, start.to(tl.int64) + shift, r, d, whole, ROW)
        a += value * tl.load(weight + j * CHANNELS + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        values = values + (value,)
    return a, values, here


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    x, weight, bias, mask, y, length, x_batch,
    X_ROW: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of the output [q l d]; weight is [w d]."""
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    q, start = place(tl.program_id(0) // BLOCKS, length, STEPS)
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, STEPS)
    inside = d < CHANNELS
    a, _values, here = load_taps(
        x, weight, bias, mask, q, start, r, d, inside, length, x_batch, X_ROW, CHANNELS, TAPS, SIGN
    )
    out = tl.where(here[:, None], a * sigmoid(a), 0.0)
    at = y + (q * length + start) * CHANNELS + (r[:, None] * CHANNELS + d[None, :])
    tl.store(at, out, mask=(start + r < length)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=NUMBERS)
def activation_kernel(
    x, weight, bias, mask, dy, g, parts, count, length, x_batch, dy_batch,
    X_ROW: tl.constexpr, DY_ROW: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every rows-th tile of `count` of g [q l d]; this program's share of dweight and dbias into parts [rows w+1 d]."""
    row = tl.program_id(1)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, STEPS)
    inside = d < CHANNELS
    sums = ()
    for _ in tl.static_range(TAPS + 1):
        sums = sums + (tl.zeros([STEPS, BLOCK], tl.float32),)
    for tile in range(row, count, tl.num_programs(1)):
        q, start = place(tile, length, STEPS)
        a, values, here = load_taps(
            x, weight, bias, mask, q, start, r, d, inside, length, x_batch, X_ROW, CHANNELS, TAPS, SIGN
        )
        whole = here[:, None] & inside[None, :]
        s = sigmoid(a)
        slope = tl.where(whole, s * (1.0 + a * (1.0 - s)), 0.0)
        vg = slope * load_tile(dy + q * dy_batch, start.to(tl.int64), r, d, whole, DY_ROW)
        at = g + (q * length + start) * CHANNELS + (r[:, None] * CHANNELS + d[None, :])
        tl.store(at, vg, mask=(start + r < length)[:, None] & inside[None, :])
        more = ()
        for j in tl.static_range(TAPS):
            more = more + (sums[j] + vg * values[j],)
        sums = more + (sums[TAPS] + vg,)
    for j in tl.static_range(TAPS + 1):
        tl.store(parts + (row * (TAPS + 1) + j) * CHANNELS + d, tl.sum(sums[j], 0), mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def input_kernel(
    g, weight, mask, dx, length,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, SIGN: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of dx [q l d] from g, which is 0 at masked steps."""
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    q, start = place(tl.program_id(0) // BLOCKS, length, STEPS)
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, STEPS)
    inside = d < CHANNELS
    total = tl.zeros([STEPS, BLOCK], tl.float32)
    for j in tl.static_range(TAPS):
        shift = SIGN * (TAPS - 1 - j)
        k = start + shift + r
        whole = ((k >= 0) & (k < length))[:, None] & inside[None, :]
        value = load_tile(g, q * length + start + shift, r, d, whole, CHANNELS)
        total += value * tl.load(weight + j * CHANNELS + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    out = tl.where(alive(mask, q, start + r, length)[:, None], total, 0.0)
    at = dx + (q * length + start) * CHANNELS + (r[:, None] * CHANNELS + d[None, :])
    tl.store(at, out, mask=(start + r < length)[:, None] & inside[None, :])
