"""Triton kernels of the norms behind residual connections: a program holds whole rows in registers.

Backward computes the normalised values again from the sum and its statistics. Sums over rows (gradients of weights and
biases) are left per program in `parts`, to be added in a fixed order.

Legend: r rows (tokens), d columns.
"""

import triton
import triton.language as tl

# Run-time numbers: a kernel compiled for one number of rows serves all.
NUMBERS = ["count"]


@triton.jit
def place(tile, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the rows of a tile, its columns, where they lie and which of them exist."""
    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    return row, column, at, (row < count)[:, None] & (column < WIDTH)[None, :]


@triton.jit
def load_rows(pointer, at, whole):
    """Return a tile in float32, in which everything is computed, whatever its own dtype is."""
    return tl.load(pointer + at, mask=whole, other=0.0).to(tl.float32)


@triton.jit
def load_dropout(keep, at, whole, scale):
    """Return the factors of dropout: `scale` where a value is kept, else 0."""
    return tl.where(tl.load(keep + at, mask=whole, other=0) != 0, scale, 0.0)


@triton.jit(do_not_specialize=NUMBERS)
def rms_forward_kernel(
    x, branch, weight, total, y, rstd, count, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute total = x + branch (not stored without a branch), y = total / rms(total) * weight."""
    row, column, at, whole = place(tl.program_id(0), count, WIDTH, ROWS, BLOCK)
    value = load_rows(x, at, whole)
    if branch is not None:
        value += load_rows(branch, at, whole)
        tl.store(total + at, value, mask=whole)
    r = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
    value *= r[:, None]
    if weight is not None:
        value *= tl.load(weight + column, mask=column < WIDTH, other=0.0)[None, :]
    tl.store(y + at, value, mask=whole)
    tl.store(rstd + row, r, mask=row < count)


@triton.jit(do_not_specialize=NUMBERS)
def rms_backward_kernel(
    total, weight, rstd, dtotal, dy, dx, parts, count,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx of every programs-th tile, and this program's share of dweight."""
    column = tl.arange(0, BLOCK)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        row, _column, at, whole = place(tile, count, WIDTH, ROWS, BLOCK)
        r = tl.load(rstd + row, mask=row < count, other=0.0)[:, None]
        n = load_rows(total, at, whole) * r
        g = load_rows(dy, at, whole)
        if weight is not None:
            dweight += g * n
            g *= tl.load(weight + column, mask=column < WIDTH, other=0.0)[None, :]
        d = r * (g - n * (tl.sum(g * n, 1) / WIDTH)[:, None])
        if dtotal is not None:
            d += load_rows(dtotal, at, whole)
        tl.store(dx + at, d, mask=whole)
    if weight is not None:
        tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(dweight, 0), mask=column < WIDTH)


@triton.jit(do_not_specialize=NUMBERS)
def layer_forward_kernel(
    x, branch, offset, keep, weight, bias, total, y, mean, rstd, count, eps, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute total = x + dropout(branch + offset), y = (total - mean) / deviation * weight + bias."""
    row, column, at, whole = place(tl.program_id(0), count, WIDTH, ROWS, BLOCK)
    here = column < WIDTH
    value = load_rows(branch, at, whole)
    value += tl.load(offset + column, mask=here, other=0.0)[None, :]
    if keep is not None:
        value *= load_dropout(keep, at, whole, scale)
    value += load_rows(x, at, whole)
    tl.store(total + at, value, mask=whole)
    m = tl.sum(value, 1) / WIDTH
    value = tl.where(whole, value - m[:, None], 0.0)
    r = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
    value *= r[:, None] * tl.load(weight + column, mask=here, other=0.0)[None, :]
    value += tl.load(bias + column, mask=here, other=0.0)[None, :]
    tl.store(y + at, value, mask=whole)
    tl.store(mean + row, m, mask=row < count)
    tl.store(rstd + row, r, mask=row < count)


@triton.jit(do_not_specialize=NUMBERS)
def layer_backward_kernel(
    total, keep, weight, mean, rstd, dy, dx, dbranch, parts, count, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx and dbranch of every programs-th tile (without dropout one tensor), and shares of sums over rows."""
    column = tl.arange(0, BLOCK)
    here = column < WIDTH
    w = tl.load(weight + column, mask=here, other=0.0)[None, :]
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    doffset = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        row, _column, at, whole = place(tile, count, WIDTH, ROWS, BLOCK)
        r = tl.load(rstd + row, mask=row < count, other=0.0)[:, None]
        m = tl.load(mean + row, mask=row < count, other=0.0)[:, None]
        n = tl.where(whole, (load_rows(total, at, whole) - m) * r, 0.0)
        g = load_rows(dy, at, whole)
        dweight += g * n
        dbias += g
        g *= w
        d = r * (g - (tl.sum(g, 1) / WIDTH)[:, None] - n * (tl.sum(g * n, 1) / WIDTH)[:, None])
        d = tl.where(whole, d, 0.0)
        tl.store(dx + at, d, mask=whole)
        if keep is not None:
            d *= load_dropout(keep, at, whole, scale)
            tl.store(dbranch + at, d, mask=whole)
        doffset += d
    at = parts + tl.program_id(0) * 3 * WIDTH + column
    tl.store(at, tl.sum(dweight, 0), mask=here)
    tl.store(at + WIDTH, tl.sum(dbias, 0), mask=here)
    tl.store(at + 2 * WIDTH, tl.sum(doffset, 0), mask=here)
