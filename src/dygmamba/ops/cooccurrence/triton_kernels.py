"""Triton kernel that counts tokens; where a sequence begins is a 64-bit number."""

import triton
import triton.language as tl

# Run-time numbers: a kernel compiled for one length serves all.
NUMBERS = ["pairs", "length", "left_length", "right_length"]
NOWHERE = tl.constexpr(2**31 - 1)  # masked tokens match no id


@triton.jit
def count_in(tokens, node, mask, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return how often each of the tokens [ROWS] occurs in a sequence; the matches are added up only at the end."""
    matches = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, length, COLUMNS):
        k = start + tl.arange(0, COLUMNS)
        real = tl.load(mask + k, mask=k < length, other=0) != 0
        other = tl.load(node + k, mask=real, other=NOWHERE)
        matches += (tokens[:, None] == other[None, :]).to(tl.int32)
    return tl.sum(matches, 1)


@triton.jit(do_not_specialize=NUMBERS)
def count_kernel(
    node, mask, left, left_mask, right, right_mask, out, pairs, length, left_length, right_length,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of a sequence i [q l]: their counts in the left and the right sequence of pair i % pairs."""
    tiles = tl.cdiv(length, ROWS)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    k = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    real = tl.load(mask + sequence * length + k, mask=k < length, other=0) != 0
    tokens = tl.load(node + sequence * length + k, mask=real, other=0)
    some = tl.max(real.to(tl.int32), 0)  # padding is not compared with anything
    at = (sequence % pairs) * left_length
    in_left = count_in(tokens, left + at, left_mask + at, left_length * some, ROWS, COLUMNS)
    at = (sequence % pairs) * right_length
    in_right = count_in(tokens, right + at, right_mask + at, right_length * some, ROWS, COLUMNS)
    at = out + (sequence * length + k) * 2
    tl.store(at, tl.where(real, in_left, 0), mask=k < length)
    tl.store(at + 1, tl.where(real, in_right, 0), mask=k < length)
