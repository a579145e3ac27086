"""Triton kernels that build tokens and count them; where a sequence begins is a 64-bit number."""

import triton
import triton.language as tl

# Run-time numbers: a kernel compiled for one length serves all.
NUMBERS = ["count", "width", "slots", "stride"]
NOWHERE = tl.constexpr(2**31 - 1)  # masked tokens match no id


@triton.jit
def load_time(time, at, slot, length, slots, tau):
    """The time in a slot, the query time where it holds no entry; and whether it holds one."""
    is_event = (slot >= 0) & (slot < length) & (slot < slots)
    return tl.where(is_event, tl.load(time + at + slot, mask=is_event, other=0.0), tau), is_event


@triton.jit(do_not_specialize=NUMBERS)
def tokens_kernel(
    out_node, out_event, out_age, out_gap, out_share, out_length, out_is_event, out_mask,
    query_node, query_time, node, event, time, length, rows, count, width, slots, stride,
    LAST: tl.constexpr, FIRST: tl.constexpr, FOLLOWING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK of the `count` tokens of all sequences; 64-bit times as in the reference, operation by operation."""
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = token < count
    row, j = token // width, token % width
    source = row if rows is None else tl.load(rows + row, mask=here, other=0)
    own_length = tl.load(length + source, mask=here, other=0)
    tau = tl.load(query_time + source, mask=here, other=0.0)
    at, slot = source * stride, j - FIRST
    filled = here & (slot >= 0) & (slot < slots)
    ids = tl.load(node + at + slot, mask=filled, other=0)
    if LAST + FIRST > 0:
        own = tl.load(query_node + source, mask=here, other=0).to(tl.int32)
        ids = tl.where(j == own_length * LAST, own, ids)
    tl.store(out_node + token, ids, mask=here)
    tl.store(out_event + token, tl.load(event + at + slot, mask=filled, other=0), mask=here)
    now, is_event = load_time(time, at, slot, own_length, slots, tau)
    if FOLLOWING:
        later, _is_event = load_time(time, at, slot + 1, own_length, slots, tau)
        gap = tl.where(j == width - 1, tau, later) - now
    else:
        earlier, _is_event = load_time(time, at, slot - 1, own_length, slots, tau)
        gap = tl.where(j == 0, 0.0, now - earlier)
    tokens = own_length + LAST + FIRST
    mask = j < tokens
    gap = tl.where(gap < 0, 0.0, gap) * mask.to(tl.float64)
    first = tl.load(time + at, mask=here & (own_length > 0) & (slots > 0), other=0.0)
    reach = tau - tl.where(own_length > 0, first, tau)
    share = gap / tl.where(reach > 0, reach, 1.0)
    tl.store(out_age + token, (tau - now).to(tl.float32), mask=here)
    tl.store(out_gap + token, gap.to(tl.float32), mask=here)
    tl.store(out_share + token, share.to(tl.float32), mask=here)
    tl.store(out_is_event + token, is_event.to(tl.uint8), mask=here)
    tl.store(out_mask + token, mask.to(tl.uint8), mask=here)
    tl.store(out_length + row, tokens, mask=here & (j == 0))


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


@triton.jit(do_not_specialize=["pairs", "length"])
def count_kernel(
    node, mask, out, pairs, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of a sequence i: their counts in the sequences i % pairs and i % pairs + pairs."""
    tiles = tl.cdiv(length, ROWS)
    sequence = (tl.program_id(0) // tiles).to(tl.int64)
    k = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    real = tl.load(mask + sequence * length + k, mask=k < length, other=0) != 0
    tokens = tl.load(node + sequence * length + k, mask=real, other=0)
    compared = length * tl.max(real.to(tl.int32), 0)  # padding is not compared with anything
    at = (sequence % pairs) * length
    in_first = count_in(tokens, node + at, mask + at, compared, ROWS, COLUMNS)
    at += pairs.to(tl.int64) * length
    in_second = count_in(tokens, node + at, mask + at, compared, ROWS, COLUMNS)
    at = out + (sequence * length + k) * 2
    tl.store(at, tl.where(real, in_first, 0), mask=k < length)
    tl.store(at + 1, tl.where(real, in_second, 0), mask=k < length)
