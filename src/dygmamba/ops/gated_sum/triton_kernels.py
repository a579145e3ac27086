"""Triton kernels of the gated sum: a program reads the tokens of a sequence once, tile by tile.

Forward is a softmax whose largest score is found on the way; backward makes the weights again from it. The share of a
sequence in the gate's gradient is left in `parts`, to be added in a fixed order.

Legend: p sequences, l tokens, d width.
"""

import triton
import triton.language as tl

# Run-time numbers: a kernel compiled for one length serves all.
NUMBERS = ["length"]


@triton.jit
def load_tile(x, mask, p, first, column, length, WIDTH: tl.constexpr, TOKENS: tl.constexpr):
    """Return a tile of tokens (zero where masked), where it lies, which elements exist, and which tokens count."""
    token = first + tl.arange(0, TOKENS)
    inside = token < length
    here = inside & (tl.load(mask + p * length + token, mask=inside, other=0) != 0)
    at = (p * length + token)[:, None] * WIDTH + column[None, :]
    wide = (column < WIDTH)[None, :]
    tile = tl.load(x + at, mask=here[:, None] & wide, other=0.0).to(tl.float32)
    return tile, at, inside[:, None] & wide, here


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
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
        tile, _at, _whole, here = load_tile(x, mask, p, first, column, length, WIDTH, TOKENS)
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
def backward_kernel(
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
        tile, at, whole, here = load_tile(x, mask, p, first, column, length, WIDTH, TOKENS)
        score = tl.sum(tile * g[None, :], 1)
        weight = tl.where(here, tl.exp(tl.where(here, score - largest, 0.0)) / weights, 0.0)
        dscore = weight * (tl.sum(tile * dv[None, :], 1) - mean)
        tl.store(dx + at, weight[:, None] * dv[None, :] + dscore[:, None] * g[None, :], mask=whole)
        dgate += tl.sum(dscore[:, None] * tile, 0)
    tl.store(parts + p * WIDTH + column, dgate, mask=wide)
