"""Triton kernels of attention.

A program sums one sequence by its gate, and reads its tokens once, tile by tile. Forward is a softmax whose largest
score is found on the way; backward makes the weights again from it. The share of a sequence in the gate's gradient is
left in `parts`, to be added in a fixed order.

Of two short sequences that attend to each other, a program computes one sequence's side, y = M v s with
M = softmax(q) w^T [l l], w the softmax of the other sequence's keys over its tokens and s = 1 / sqrt(d), or 0 if the
other sequence has no tokens. Columns come in blocks; the two [l l] matrices stay in registers. The sum over columns in
the gradient of softmax(q) is sum_j dM_ij M_ij, so one pass writes all gradients. Of long ones, kernels compute the
softmaxes between products of matrices.

Legend: p sequences (r = 2 p of p pairs), l tokens, d width; a row of `projected` is query, key and value side by side.
"""

import triton
import triton.language as tl

# Run-time numbers: a kernel compiled for one length serves all that are padded alike.
NUMBERS = ["half", "length", "count"]


@triton.jit
def load_tokens(x, mask, p, first, column, length, WIDTH: tl.constexpr, TOKENS: tl.constexpr):
    """Return a tile of tokens (zero where masked), where it lies, which elements exist, and which tokens count."""
    token = first + tl.arange(0, TOKENS)
    inside = token < length
    here = inside & (tl.load(mask + p * length + token, mask=inside, other=0) != 0)
    at = (p * length + token)[:, None] * WIDTH + column[None, :]
    wide = (column < WIDTH)[None, :]
    tile = tl.load(x + at, mask=here[:, None] & wide, other=0.0).to(tl.float32)
    return tile, at, inside[:, None] & wide, here


@triton.jit(do_not_specialize=NUMBERS)
def gated_sum_kernel(
    x, gate, mask, y, most, total, length,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y, the largest score and the sum of exponentials of a sequence; zeros for one without tokens."""
    p = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    g = tl.load(gate + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    largest, weights = -3.0e38, 0.0
    values = tl.zeros([BLOCK], tl.float32)
    for first in range(0, length, TOKENS):
        tile, _at, _whole, here = load_tokens(x, mask, p, first, column, length, WIDTH, TOKENS)
        score = tl.where(here, tl.sum(tile * g[None, :], 1), -3.0e38)
        higher = tl.maximum(largest, tl.max(score, 0))
        weight = tl.where(here, tl.exp(tl.where(here, score - higher, 0.0)), 0.0)
        decay = tl.exp(largest - higher)
        weights = weights * decay + tl.sum(weight, 0)
        values = values * decay + tl.sum(weight[:, None] * tile, 0)
        largest = higher
    weights = tl.maximum(weights, 1e-30)
    tl.store(y + p * WIDTH + column, values / weights, mask=column < WIDTH)
    tl.store(most + p, largest)
    tl.store(total + p, weights)


@triton.jit(do_not_specialize=NUMBERS)
def gated_sum_backward_kernel(
    x, gate, mask, y, most, total, dy, dx, parts, length,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx of a sequence, and its share of the gate's gradient."""
    p = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    wide = column < WIDTH
    g = tl.load(gate + column, mask=wide, other=0.0).to(tl.float32)
    dv = tl.load(dy + p * WIDTH + column, mask=wide, other=0.0).to(tl.float32)
    mean = tl.sum(dv * tl.load(y + p * WIDTH + column, mask=wide, other=0.0).to(tl.float32), 0)
    largest, weights = tl.load(most + p), tl.load(total + p)
    dgate = tl.zeros([BLOCK], tl.float32)
    for first in range(0, length, TOKENS):
        tile, at, whole, here = load_tokens(x, mask, p, first, column, length, WIDTH, TOKENS)
        score = tl.sum(tile * g[None, :], 1)
        weight = tl.where(here, tl.exp(tl.where(here, score - largest, 0.0)) / weights, 0.0)
        dscore = weight * (tl.sum(tile * dv[None, :], 1) - mean)
        tl.store(dx + at, weight[:, None] * dv[None, :] + dscore[:, None] * g[None, :], mask=whole)
        dgate += tl.sum(dscore[:, None] * tile, 0)
    tl.store(parts + p * WIDTH + column, dgate, mask=wide)


@triton.jit
def load_block(pointer, row, column, stride, length, WIDTH: tl.constexpr):
    """Rows and columns of one sequence in float32, zero outside."""
    whole = (row < length)[:, None] & (column < WIDTH)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=whole, other=0.0).to(tl.float32)


@triton.jit
def sum_queries(query, row, length, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr):
    """Return each query's largest column and the sum of its exponentials."""
    most = tl.full([PADDED], -float("inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        q = load_block(query, row, column, 3 * WIDTH, length, WIDTH)
        q = tl.where((column < WIDTH)[None, :], q, -float("inf"))
        largest = tl.maximum(most, tl.max(q, 1))
        total = total * tl.exp(most - largest) + tl.sum(tl.exp(q - largest[:, None]), 1)
        most = largest
    return most, total


@triton.jit
def load_query(query, row, column, most, total, length, WIDTH: tl.constexpr):
    """Return a block of softmax(q), zero outside."""
    q = load_block(query, row, column, 3 * WIDTH, length, WIDTH)
    whole = (row < length)[:, None] & (column < WIDTH)[None, :]
    return tl.where(whole, tl.exp(q - most[:, None]) / total[:, None], 0.0)


@triton.jit
def load_weight(key, row, column, here, length, WIDTH: tl.constexpr):
    """Return a block of w: the softmax of each column over the tokens that are `here`, zero elsewhere."""
    k = load_block(key, row, column, 3 * WIDTH, length, WIDTH)
    k = tl.where(here[:, None], k, -3.0e38)
    e = tl.where(here[:, None] & (column < WIDTH)[None, :], tl.exp(k - tl.max(k, 0)[None, :]), 0.0)
    return e / tl.maximum(tl.sum(e, 0), 1e-30)[None, :]


@triton.jit
def place(projected, mask, half, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Return the own sequence, the other one, where they begin, the tokens, and which of the other's are there."""
    own = tl.program_id(0).to(tl.int64)
    other = tl.where(own < half, own + half, own - half)
    row = tl.arange(0, PADDED)
    here = (row < length) & (tl.load(mask + other * length + row, mask=row < length, other=0) != 0)
    size = length * 3 * WIDTH
    return own, other, projected + own * size, projected + other * size, row, here


@triton.jit(do_not_specialize=NUMBERS)
def short_kernel(
    projected, mask, y, half, length, share,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute y of one sequence."""
    own, _other, query, key, row, here = place(projected, mask, half, length, WIDTH, PADDED)
    most, total = sum_queries(query, row, length, WIDTH, PADDED, BLOCK)
    mixed = tl.zeros([PADDED, PADDED], tl.float32)
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        q = load_query(query, row, column, most, total, length, WIDTH)
        w = load_weight(key + WIDTH, row, column, here, length, WIDTH)
        mixed = tl.dot(q, tl.trans(w), mixed, input_precision=PRECISION)
    mixed *= tl.where(tl.max(here.to(tl.int32), 0) > 0, share, 0.0)
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        v = load_block(key + 2 * WIDTH, row, column, 3 * WIDTH, length, WIDTH)
        out = tl.dot(mixed, v, input_precision=PRECISION)
        at = y + own * length * WIDTH + row[:, None] * WIDTH + column[None, :]
        tl.store(at, out, mask=(row < length)[:, None] & (column < WIDTH)[None, :])


@triton.jit(do_not_specialize=NUMBERS)
def short_backward_kernel(
    projected, mask, dy, dprojected, half, length, share,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the own sequence's queries, and of the other's keys and values."""
    own, other, query, key, row, here = place(projected, mask, half, length, WIDTH, PADDED)
    dy += own * length * WIDTH
    most, total = sum_queries(query, row, length, WIDTH, PADDED, BLOCK)
    mixed = tl.zeros([PADDED, PADDED], tl.float32)
    dmixed = tl.zeros([PADDED, PADDED], tl.float32)
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        q = load_query(query, row, column, most, total, length, WIDTH)
        w = load_weight(key + WIDTH, row, column, here, length, WIDTH)
        mixed = tl.dot(q, tl.trans(w), mixed, input_precision=PRECISION)
        g = load_block(dy, row, column, WIDTH, length, WIDTH)
        v = load_block(key + 2 * WIDTH, row, column, 3 * WIDTH, length, WIDTH)
        dmixed = tl.dot(g, tl.trans(v), dmixed, input_precision=PRECISION)
    s = tl.where(tl.max(here.to(tl.int32), 0) > 0, share, 0.0)
    dmixed *= s
    mean = tl.sum(mixed * dmixed, 1)
    mixed *= s
    size = length * 3 * WIDTH
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        whole = (row < length)[:, None] & (column < WIDTH)[None, :]
        at = row[:, None] * (3 * WIDTH) + column[None, :]
        q = load_query(query, row, column, most, total, length, WIDTH)
        w = load_weight(key + WIDTH, row, column, here, length, WIDTH)
        g = load_block(dy, row, column, WIDTH, length, WIDTH)
        dq = q * (tl.dot(dmixed, w, input_precision=PRECISION) - mean[:, None])
        tl.store(dprojected + own * size + at, dq, mask=whole)
        dw = tl.dot(tl.trans(dmixed), q, input_precision=PRECISION)
        dk = w * (dw - tl.sum(w * dw, 0)[None, :])
        tl.store(dprojected + other * size + WIDTH + at, dk, mask=whole)
        dv = tl.dot(tl.trans(mixed), g, input_precision=PRECISION)
        tl.store(dprojected + other * size + 2 * WIDTH + at, dv, mask=whole)


@triton.jit
def place_rows(count, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Return the rows of a program, its columns, and which of both exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    return row, column, (row < count)[:, None] & (column < WIDTH)[None, :]


@triton.jit(do_not_specialize=NUMBERS)
def query_kernel(
    projected, query, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute softmax(q) of some tokens of long sequences."""
    row, column, whole = place_rows(count, ROWS, BLOCK, WIDTH)
    at = row[:, None] * (3 * WIDTH) + column[None, :]
    q = tl.load(projected + at, mask=whole, other=-float("inf")).to(tl.float32)
    e = tl.where(whole, tl.exp(q - tl.max(tl.where(whole, q, -3.0e38), 1)[:, None]), 0.0)
    out = e / tl.maximum(tl.sum(e, 1), 1e-30)[:, None]
    tl.store(query + row[:, None] * WIDTH + column[None, :], out, mask=whole)


@triton.jit(do_not_specialize=NUMBERS)
def key_kernel(
    projected, mask, weight, total, length, WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the exponentials of a long sequence's keys in a block of columns, zero where masked, and their sums."""
    sequence = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    key = projected + sequence * length * (3 * WIDTH) + WIDTH
    most = tl.full([BLOCK], -3.0e38, tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, length, TOKENS):
        row = first + tl.arange(0, TOKENS)
        here = (row < length) & (tl.load(mask + sequence * length + row, mask=row < length, other=0) != 0)
        k = tl.where(here[:, None], load_block(key, row, column, 3 * WIDTH, length, WIDTH), -3.0e38)
        larger = tl.maximum(most, tl.max(k, 0))
        e = tl.where(here[:, None], tl.exp(k - larger[None, :]), 0.0)
        sums = sums * tl.exp(most - larger) + tl.sum(e, 0)
        most = larger
    for first in range(0, length, TOKENS):
        row = first + tl.arange(0, TOKENS)
        here = (row < length) & (tl.load(mask + sequence * length + row, mask=row < length, other=0) != 0)
        k = load_block(key, row, column, 3 * WIDTH, length, WIDTH)
        e = tl.where(here[:, None], tl.exp(tl.where(here[:, None], k - most[None, :], 0.0)), 0.0)
        at = weight + (sequence * length + row)[:, None] * WIDTH + column[None, :]
        tl.store(at, e, mask=(row < length)[:, None] & inside[None, :])
    sums = tl.where(sums > 0, sums, float("inf"))
    tl.store(total + sequence * WIDTH + column, sums, mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def query_gradient_kernel(
    target, grad, query, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the gradient of some tokens' queries; `target` has rows of query, key and value side by side."""
    row, column, whole = place_rows(count, ROWS, BLOCK, WIDTH)
    at = row[:, None] * WIDTH + column[None, :]
    q = tl.load(query + at, mask=whole, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=whole, other=0.0).to(tl.float32)
    out = q * (g - tl.sum(q * g, 1)[:, None])
    tl.store(target + row[:, None] * (3 * WIDTH) + column[None, :], out, mask=whole)


@triton.jit(do_not_specialize=NUMBERS)
def key_gradient_kernel(
    target, weight, slope, mean, length, count,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of some tokens' keys, weight (slope - mean of the sequence)."""
    row, column, whole = place_rows(count, ROWS, BLOCK, WIDTH)
    at = row[:, None] * WIDTH + column[None, :]
    w = tl.load(weight + at, mask=whole, other=0.0).to(tl.float32)
    s = tl.load(slope + at, mask=whole, other=0.0).to(tl.float32)
    m = tl.load(mean + (row // length)[:, None] * WIDTH + column[None, :], mask=whole, other=0.0).to(
        tl.float32
    )
    tl.store(target + row[:, None] * (3 * WIDTH) + column[None, :], w * (s - m), mask=whole)
