"""Kernels of temporal walks (`history/walks.py`): the rows of each node just after each of its instants."""

import numpy as np

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block


@inlined()
def _start_entry(rows, at, before, decays, age, earlier):
    """Set an entry to the rows of the entry `before` it, decayed by `age`; to 0 if its node has no earlier entry."""
    bank, layers, width = rows.shape[1:]
    for c in range(bank):
        for i in range(layers):
            fade = np.exp(-decays[c] * (i + 1) * age) if earlier else 0.0
            for j in range(width):
                rows[at, c, i, j] = rows[before, c, i, j] * fade if earlier else 0.0


@inlined()
def _add_walks(rows, at, partner, decays, age):
    """Add the rows of the partner's entry, decayed by `age`, each to the next layer."""
    bank, layers, width = rows.shape[1:]
    for c in range(bank):
        for i in range(1, layers):
            fade = np.exp(-decays[c] * i * age)
            for j in range(width):
                rows[at, c, i, j] += rows[partner, c, i - 1, j] * fade


@inlined()
def _take_entry(start, size, room, entries, place, counters, v, now):
    """Append an entry with the next row to a node's block; return whether there was room."""
    if size[v] == room[v]:
        old, counters[0] = move_block(start, room, v, counters[0], entries.shape[0])
        if old < 0:
            return False
        copy_block(entries, old, start[v], size[v])
        copy_block(place, old, start[v], size[v])
    entries[start[v] + size[v]] = now
    place[start[v] + size[v]] = counters[1]
    counters[1] += 1
    size[v] += 1
    return True


@inlined()
def _add_partner(start, size, entries, place, rows, base, decays, at, other, now):
    """Add the partner's rows from strictly before `now`."""
    for c in range(decays.shape[0]):
        for j in range(base.shape[1]):
            rows[at, c, 0, j] += base[other, j]
    past = start[other] + size[other] - 1
    while past >= start[other] and entries[past] >= now:
        past -= 1
    if past >= start[other]:
        _add_walks(rows, at, place[past], decays, now - entries[past])


@kernel()
def append_walks(start, size, room, entries, place, rows, counters, base, decays, near, node, time, done):
    """Write the rows of nodes at instants, sorted by instant, from number `done` on while there is room.

    The rows of a node at an instant at which it has rows already are written again, because its partners at an instant
    are added in the order of their numbers. A block is as in `ops/blocks.py`; `place` is the row of each of its
    entries, `counters` the entries and rows in use, and `near` the starts, sizes, neighbors and times of the nodes'
    events, these included. Returns the first one that was not written.
    """
    near_start, near_size, neighbor, near_time = near
    for i in range(done, node.shape[0]):
        v, now = node[i], time[i]
        if size[v] == 0 or entries[start[v] + size[v] - 1] < now:
            if counters[1] == rows.shape[0]:
                return i
            if not _take_entry(start, size, room, entries, place, counters, v, now):
                return i
        last = start[v] + size[v] - 1
        at, earlier = place[last], last > start[v]
        before = place[last - 1] if earlier else at
        age = now - entries[last - 1] if earlier else 0.0
        _start_entry(rows, at, before, decays, age, earlier)
        low = first_not_less(near_time, near_start[v], near_start[v] + near_size[v], now)
        high = low
        while high < near_start[v] + near_size[v] and near_time[high] == now:
            high += 1
        partners = neighbor[low:high] if high == low + 1 else np.sort(neighbor[low:high])
        for other in partners:
            _add_partner(start, size, entries, place, rows, base, decays, at, other, now)
    return node.shape[0]
