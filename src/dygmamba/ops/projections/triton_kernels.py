"""Triton kernels of the bounded matrices W / max(1, sigma(W)): a program computes all of a matrix.

The Gram matrix, its powers and their norms stay in registers; see `iterate` for the iteration. All products are in
full float32 precision: a bound must hold.

Legend: k matrices, n rows, d columns.
"""

import triton
import triton.language as tl

UNIT = tl.constexpr(0)
BOUND = tl.constexpr(1)
LEADING = tl.constexpr(2)
SCALE = tl.constexpr(3)  # max(1, sigma)
FACTS = 4


@triton.jit
def load_tile(
    pointer, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """Columns first .. first + BLOCK of a matrix, zero outside; also where they lie and which exist."""
    row, column = tl.arange(0, PADDED), first + tl.arange(0, BLOCK)
    at = row[:, None] * COLUMNS + column[None, :]
    whole = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    return tl.load(pointer + at, mask=whole, other=0.0), at, whole


@triton.jit
def multiply(a, b):
    """Product in full float32 precision."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def normalize(power, bound, HALVINGS: tl.constexpr):
    """Return the matrix scaled to norm 1, and the bound times the norm^(1 / 2^HALVINGS)."""
    norm = tl.maximum(tl.sqrt(tl.sum(tl.sum(power * power, 1), 0)), 1e-30)
    root = norm
    for _ in tl.static_range(HALVINGS):
        root = tl.sqrt(root)
    return power / norm, bound * root


@triton.jit
def forward_kernel(
    weight, y, power, facts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Compute y = W / max(1, sigma(W)); the power of the Gram matrix and what else backward needs."""
    k = tl.program_id(0)
    weight += k * ROWS * COLUMNS
    most = tl.zeros([PADDED, BLOCK], tl.float32)
    for first in range(0, COLUMNS, BLOCK):
        tile, _at, _whole = load_tile(weight, first, ROWS, COLUMNS, PADDED, BLOCK)
        most = tl.maximum(most, tl.abs(tile))
    largest = tl.maximum(tl.max(tl.max(most, 1), 0), 1.1754943508222875e-38)
    # a float without its mantissa is the largest power of two that is not above it
    unit = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    gram = tl.zeros([PADDED, PADDED], tl.float32)
    for first in range(0, COLUMNS, BLOCK):
        tile, _at, _whole = load_tile(weight, first, ROWS, COLUMNS, PADDED, BLOCK)
        tile /= unit
        gram += multiply(tile, tl.trans(tile))
    p, bound = normalize(gram, 1.0, 1)
    for _ in tl.static_range(FIRST):
        p = multiply(p, p)
    p, bound = normalize(p, bound, 1 + FIRST)
    for _ in tl.static_range(SECOND):
        p = multiply(p, p)
    p, bound = normalize(p, bound, 1 + FIRST + SECOND)
    p = multiply(p, p)
    scale = tl.maximum(unit * bound, 1.0)
    row = tl.arange(0, PADDED)
    tl.store(power + k * PADDED * PADDED + row[:, None] * PADDED + row[None, :], p)
    facts += k * 4
    tl.store(facts + UNIT, unit)
    tl.store(facts + BOUND, bound)
    tl.store(facts + LEADING, tl.sum(tl.sum(p * gram, 1), 0))
    tl.store(facts + SCALE, scale)
    y += k * ROWS * COLUMNS
    for first in range(0, COLUMNS, BLOCK):
        tile, at, whole = load_tile(weight, first, ROWS, COLUMNS, PADDED, BLOCK)
        tl.store(y + at, tile / scale, mask=whole)


@triton.jit
def backward_kernel(
    weight, power, facts, dy, dweight,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dW = dy / s + ds P W / (...) with s = max(1, sigma): the second term only where sigma >= 1."""
    k = tl.program_id(0)
    weight += k * ROWS * COLUMNS
    dy += k * ROWS * COLUMNS
    dweight += k * ROWS * COLUMNS
    facts += k * 4
    unit, bound, scale = tl.load(facts + UNIT), tl.load(facts + BOUND), tl.load(facts + SCALE)
    total = tl.zeros([PADDED, BLOCK], tl.float32)
    for first in range(0, COLUMNS, BLOCK):
        tile, _at, _whole = load_tile(weight, first, ROWS, COLUMNS, PADDED, BLOCK)
        g, _at, _whole = load_tile(dy, first, ROWS, COLUMNS, PADDED, BLOCK)
        total += g * (tile / scale)
    dscale = tl.where(unit * bound >= 1.0, -tl.sum(tl.sum(total, 1), 0) / scale, 0.0)
    slope = dscale * bound / tl.maximum(tl.load(facts + LEADING), 1e-30)
    row = tl.arange(0, PADDED)
    p = tl.load(power + k * PADDED * PADDED + row[:, None] * PADDED + row[None, :])
    p = (p + tl.trans(p)) * (slope / 2)
    for first in range(0, COLUMNS, BLOCK):
        tile, at, whole = load_tile(weight, first, ROWS, COLUMNS, PADDED, BLOCK)
        g, _at, _whole = load_tile(dy, first, ROWS, COLUMNS, PADDED, BLOCK)
        tl.store(dweight + at, g / scale + multiply(p, tile / unit), mask=whole)
