"""Triton kernels of the look-up."""

import triton
import triton.language as tl


@triton.jit
def find_past(start, size, time, node, query_time, query):
    """Return where the past of a query begins and where it ends: before the first entry that is not earlier."""
    v, target = tl.load(node + query), tl.load(query_time + query)
    begin = tl.load(start + v, mask=v >= 0, other=0)  # node -1 has no past
    low, high = begin, begin + tl.load(size + v, mask=v >= 0, other=0)
    while low < high:
        middle = (low + high) // 2
        is_earlier = tl.load(time + middle) < target
        low = tl.where(is_earlier, middle + 1, low)
        high = tl.where(is_earlier, high, middle)
    return begin, low


@triton.jit
def past_kernel(start, size, time, node, query_time, out_begin, out_count):
    """The first entry and the number of entries of a query's past."""
    query = tl.program_id(0).to(tl.int64)
    begin, end = find_past(start, size, time, node, query_time, query)
    tl.store(out_begin + query, begin)
    tl.store(out_count + query, end - begin)


@triton.jit(do_not_specialize=["k"])
def last_kernel(
    start, size, neighbor, event, time, node, query_time, out_node, out_event, out_time, out_length,
    k, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last k entries of a query's node before its time, oldest first, then zeros."""
    query = tl.program_id(0).to(tl.int64)
    begin, end = find_past(start, size, time, node, query_time, query)
    length = tl.minimum(end - begin, k)
    tl.store(out_length + query, length)
    for first in range(0, k, BLOCK):
        j = first + tl.arange(0, BLOCK)
        valid = j < length
        source, at = end - length + j, query * k + j
        tl.store(out_node + at, tl.load(neighbor + source, mask=valid, other=0), mask=j < k)
        tl.store(out_event + at, tl.load(event + source, mask=valid, other=0), mask=j < k)
        tl.store(out_time + at, tl.load(time + source, mask=valid, other=0.0), mask=j < k)
