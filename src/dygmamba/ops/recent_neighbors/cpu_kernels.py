"""Numba loops of `cpu`, one binary search and one copy per query; kernels that append entries and their weights.

Arrays are numpy's, and nothing here needs torch.
"""

import numpy as np

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block


@kernel()
def place_of_share(running, begin, count, share, place):
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
def _copy(column, begin, count, out):
    # indexing a slice from 0 lets LLVM drop Numba's negative-index handling and vectorise the copy
    part = column[begin : begin + count]
    for j in range(count):
        out[j] = part[j]
    out[count:] = 0


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


@inlined()
def _past_end(start, size, entries, v, time):
    """Return where the past of a query of node v begins and where it ends."""
    if 0 <= v < start.shape[0]:
        return start[v], first_not_less(entries, start[v], start[v] + size[v], time)
    return np.int64(0), np.int64(0)


@kernel()
def find_past(start, size, entries, node, time, begin, count):
    for i in range(node.shape[0]):
        begin[i], end = _past_end(start, size, entries, node[i], time[i])
        count[i] = end - begin[i]


# not parallel: if a core is busy, waiting for a second thread costs a time slice, fifty times the work
@kernel()
def last_k(start, size, neighbor, event, entries, node, time, ids, events, times, length):
    k = ids.shape[1]
    for i in range(node.shape[0]):
        begin, end = _past_end(start, size, entries, node[i], time[i])
        count = min(end - begin, k)
        length[i] = count
        _copy(neighbor, end - count, count, ids[i])
        _copy(event, end - count, count, events[i])
        _copy(entries, end - count, count, times[i])
