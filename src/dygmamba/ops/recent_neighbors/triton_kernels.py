"""Triton kernel of the look-up."""

import triton
import triton.language as tl


@triton.jit
def find_first_not_less(values, target, low, high):
    """Return the first place in low..high - 1 whose value is not less than the target; `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        is_less = tl.load(values + middle) < target
        low = tl.where(is_less, middle + 1, low)
        high = tl.where(is_less, high, middle)
    return low


@triton.jit(do_not_specialize=["events", "k"])
def last_kernel(
    start, key, neighbor, event, time, event_time, node, query_time, out_node, out_event, out_time, out_length,
    events, k, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last k entries of a query's node before its time, oldest first, then zeros."""
    query = tl.program_id(0).to(tl.int64)
    v = tl.load(node + query)
    own = tl.maximum(v, 0)  # node -1 has no past
    rank = find_first_not_less(event_time, tl.load(query_time + query), query * 0, query * 0 + events)
    begin = tl.load(start + own, mask=v >= 0, other=0)
    end = tl.load(start + own + 1, mask=v >= 0, other=0)
    stop = find_first_not_less(key, own * events + own + rank, begin, end)
    length = tl.where(v < 0, 0, tl.minimum(stop - begin, k))
    tl.store(out_length + query, length)
    for first in range(0, k, BLOCK):
        j = first + tl.arange(0, BLOCK)
        valid = j < length
        source, at = stop - length + j, query * k + j
        tl.store(out_node + at, tl.load(neighbor + source, mask=valid, other=0), mask=j < k)
        tl.store(out_event + at, tl.load(event + source, mask=valid, other=0), mask=j < k)
        tl.store(out_time + at, tl.load(time + source, mask=valid, other=0.0), mask=j < k)
