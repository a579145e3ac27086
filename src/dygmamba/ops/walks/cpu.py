"""The walk rows in Numba: each entry is computed from the previous entry of its node."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decays: Tensor) -> Tensor:
    rows = np.empty((len(ends.key), len(decays), layers, base.shape[1]), base.numpy().dtype)
    given = (ends.instant, ends.key, ends.entry, ends.partner, base.contiguous(), decays)
    _fill(*(column.numpy() for column in given), rows)
    return torch.from_numpy(rows)


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


@kernel()
def _fill(instant, key, entry, partner, base, decays, rows):
    stride = instant.shape[0] + 1
    current = -1  # the ends of an entry are adjacent
    for end in range(entry.shape[0]):
        at, other = entry[end], partner[end]
        node, now = key[at] // stride, instant[key[at] % stride]
        if at != current:
            current = at
            earlier = at > 0 and key[at - 1] >= node * stride
            age = now - instant[key[at - 1] % stride] if earlier else 0.0
            _start_entry(rows, at, at - 1, decays, age, earlier)
        # the partner's rows strictly before this instant: the entry before its own of this instant
        partner_node = key[other] // stride
        for c in range(decays.shape[0]):
            for j in range(base.shape[1]):
                rows[at, c, 0, j] += base[partner_node, j]
        if other > 0 and key[other - 1] >= partner_node * stride:
            _add_walks(rows, at, other - 1, decays, now - instant[key[other - 1] % stride])


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
    are added in the order of their numbers. A block is as in `ops/decayed_counts`; `place` is the row of each of its
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
        for other in np.sort(neighbor[low:high]):
            _add_partner(start, size, entries, place, rows, base, decays, at, other, now)
    return node.shape[0]


@kernel()
def find_rows(start, size, entries, place, node, time, row, age):
    """Write the row of each node's last entry strictly before each time and its age; row -1 if there is none."""
    for i in range(node.shape[0]):
        v = node[i]
        row[i] = -1
        age[i] = 0.0
        if 0 <= v < start.shape[0]:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            if end > start[v]:
                row[i] = place[end - 1]
                age[i] = time[i] - entries[end - 1]
