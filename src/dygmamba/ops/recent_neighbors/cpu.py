"""The look-up in Numba: a counting sort to build, one binary search and one copy per query."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block
from dygmamba.ops.recent_neighbors.counting_sort import count_entries, sort_entries

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import Adjacency


def build_adjacency(src: Tensor, dst: Tensor, event: Tensor, event_time: Tensor, num_nodes: int):
    """Return start, key, neighbor, event and time columns, sorted by (node, event), in linear time."""
    events = (src.numpy(), dst.numpy(), event.numpy())
    start = count_entries(lambda: iter((events,)), num_nodes)
    entries = sort_entries(lambda: iter((events,)), event_time.numpy(), start, 0, num_nodes)
    return tuple(torch.from_numpy(column) for column in (start, *entries))


def last_k_before(
    entries: "Adjacency", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    q = node.shape[0]
    # one allocation for all columns: the allocator then keeps the memory in the process instead of returning it to
    # the system and faulting it in again at every call, which would cost more than the look-up
    block = torch.empty(2 * q * k, dtype=torch.float64)
    times, (ids, events) = block[: q * k].view(q, k), block[q * k :].view(torch.int32).view(2, q, k)
    length = torch.empty(q, dtype=torch.int64)
    index = (entries.start, entries.key, entries.neighbor, entries.event, entries.time, entries.event_time)
    arguments = (*index, node.contiguous(), time.contiguous(), ids, events, times, length)
    _last_k(*(column.numpy() for column in arguments))
    return ids, events, times, length


def decayed_counts(start: Tensor, time: Tensor, scale: float) -> Tensor:
    """Return the decayed count of each entry's node up to and including the entry."""
    return torch.from_numpy(_decayed_count(start.numpy(), time.numpy(), scale))


def cumulate_weights(start: Tensor, time: Tensor, scale: float) -> Tensor:
    """Sum the weights exp(1 / c_j) of a node's entries j <= i, with the decayed count c; starts at 0 at each node."""
    return torch.from_numpy(
        _running_weight(start.numpy(), _decayed_count(start.numpy(), time.numpy(), scale))
    )


def find_weight_quantile(
    running: Tensor, halvings: int, begin: Tensor, count: Tensor, share: Tensor
) -> Tensor:
    """Return the first entry where the cumulated weight exceeds this share of the past's total; 0 without a past."""
    place = torch.empty(share.shape, dtype=torch.int64)
    arguments = (running, begin.contiguous(), count.contiguous(), share.contiguous(), place)
    _place_of_share(*(column.numpy() for column in arguments))
    return place


@kernel()
def _decayed_count(start, time, scale):
    # c_i = 1 + exp(-scale * gap) c_{i-1} neither overflows nor cancels, unlike exp(scale * time) itself
    count = np.ones(time.shape[0], np.float64)
    for v in range(start.shape[0] - 1):
        for i in range(start[v] + 1, start[v + 1]):
            count[i] = 1.0 + np.exp(-scale * (time[i] - time[i - 1])) * count[i - 1]
    return count


@kernel()
def _running_weight(start, count):
    # one entry after the other, so that later entries cannot change how earlier sums are rounded
    running = np.empty(count.shape[0], np.float64)
    for v in range(start.shape[0] - 1):
        total = 0.0
        for i in range(start[v], start[v + 1]):
            total += np.exp(1.0 / count[i])
            running[i] = total
    return running


@kernel()
def _place_of_share(running, begin, count, share, place):
    q, k = share.shape
    for i in range(q):
        if count[i] == 0:
            place[i] = 0
            continue
        whole = running[begin[i] + count[i] - 1]
        for j in range(k):
            target = share[i, j] * whole
            low, high = begin[i], begin[i] + count[i] - 1
            while low < high:
                middle = (low + high) >> 1
                if running[middle] <= target:
                    low = middle + 1
                else:
                    high = middle
            place[i, j] = low


@inlined(inline="always")
def _rank(event_time, time, hint):
    """Count the events strictly earlier than `time`; fast if the answer is slightly above `hint` (sorted queries)."""
    n = event_time.shape[0]
    if hint > 0 and not event_time[hint - 1] < time:
        return first_not_less(event_time, 0, hint, time)
    low, step = hint, 1
    while low + step <= n and event_time[low + step - 1] < time:
        low += step
        step *= 2
    return first_not_less(event_time, low, min(low + step, n), time)


@inlined(inline="always")
def _copy(column, begin, count, out):
    # indexing a slice from 0 lets LLVM drop Numba's negative-index handling and vectorise the copy
    part = column[begin : begin + count]
    for j in range(count):
        out[j] = part[j]
    out[count:] = 0


# not parallel: if a core is busy, waiting for a second thread costs a time slice, fifty times the work
@kernel()
def _last_k(start, key, neighbor, event, entry_time, event_time, node, time, ids, events, times, length):
    q, k = ids.shape
    stride = event_time.shape[0] + 1
    rank = 0
    for i in range(q):
        v = node[i]
        count = np.int64(0)
        begin = np.int64(0)
        if v >= 0:
            rank = _rank(event_time, time[i], rank)
            stop = first_not_less(key, start[v], start[v + 1], v * stride + rank)
            count = min(stop - start[v], k)
            begin = stop - count
        length[i] = count
        _copy(neighbor, begin, count, ids[i])
        _copy(event, begin, count, events[i])
        _copy(entry_time, begin, count, times[i])


@kernel()
def append_neighbors(start, size, room, neighbor, event, entries, used, node, other, row, time, done):
    """Append entries from number `done` on while there is room.

    Returns the number of entries in use and the first entry that was not appended.
    """
    for i in range(done, node.shape[0]):
        v = node[i]
        if size[v] == room[v]:
            old, used = move_block(start, room, v, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(neighbor, old, start[v], size[v])
            copy_block(event, old, start[v], size[v])
            copy_block(entries, old, start[v], size[v])
        at = start[v] + size[v]
        neighbor[at] = other[i]
        event[at] = row[i]
        entries[at] = time[i]
        size[v] += 1
    return used, node.shape[0]


@inlined()
def _add_weight(entries, count, running, scale, at, first):
    """Write the decayed count and the cumulated weight of entry `at` of the block that begins at `first`."""
    count[at] = 1.0
    total = 0.0
    if at > first:
        count[at] = 1.0 + np.exp(-scale[0] * (entries[at] - entries[at - 1])) * count[at - 1]
        total = running[at - 1]
    running[at] = total + np.exp(1.0 / count[at])


@kernel()
def weigh_blocks(start, size, entries, count, running, scale):
    """Write the sampling weights of all blocks."""
    for v in range(start.shape[0]):
        for at in range(start[v], start[v] + size[v]):
            _add_weight(entries, count, running, scale, at, start[v])


@kernel()
def append_weights(start, size, room, entries, count, running, scale, used, node, time, done):
    """Append sampling weights from number `done` on while there is room; the blocks are those of `append_neighbors`.

    Returns the number of entries in use and the first entry that was not appended.
    """
    for i in range(done, node.shape[0]):
        v = node[i]
        if size[v] == room[v]:
            old, used = move_block(start, room, v, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[v], size[v])
            copy_block(count, old, start[v], size[v])
            copy_block(running, old, start[v], size[v])
        at = start[v] + size[v]
        entries[at] = time[i]
        _add_weight(entries, count, running, scale, at, start[v])
        size[v] += 1
    return used, node.shape[0]


@kernel()
def find_past(start, size, entries, node, time, begin, count):
    """Write the first entry of each query's block and the number of its entries strictly before the query."""
    for i in range(node.shape[0]):
        v = node[i]
        begin[i] = 0
        count[i] = 0
        if 0 <= v < start.shape[0]:
            begin[i] = start[v]
            count[i] = first_not_less(entries, start[v], start[v] + size[v], time[i]) - start[v]


@kernel()
def last_k_in_blocks(start, size, neighbor, event, entry_time, node, time, ids, events, times, length):
    """Write the k last entries before each query, valid ones first."""
    k = ids.shape[1]
    for i in range(node.shape[0]):
        v = node[i]
        count = np.int64(0)
        begin = np.int64(0)
        if 0 <= v < start.shape[0]:
            stop = first_not_less(entry_time, start[v], start[v] + size[v], time[i])
            count = min(stop - start[v], k)
            begin = stop - count
        length[i] = count
        _copy(neighbor, begin, count, ids[i])
        _copy(event, begin, count, events[i])
        _copy(entry_time, begin, count, times[i])
