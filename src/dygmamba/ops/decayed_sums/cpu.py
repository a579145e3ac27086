"""Decayed sums in Numba: one recurrence to build, one binary search per look-up."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block

if TYPE_CHECKING:
    from dygmamba.ops.decayed_sums import DecayedSums


def build_decayed_sums(
    group: Tensor, time: Tensor, value: Tensor, groups: int, scale: Tensor
) -> "DecayedSums":
    """Sort by group in linear time, then run the recurrence through each group."""
    from dygmamba.ops.decayed_sums import DecayedSums

    columns = (group.contiguous().numpy(), time.contiguous().numpy(), value.contiguous().numpy())
    start, size, ordered, running, latest = map(torch.from_numpy, _build(*columns, groups, scale.numpy()))
    return DecayedSums(start, size, ordered, running, latest, scale)


def find_last_entry(sums: "DecayedSums", group: Tensor, time: Tensor) -> Tensor:
    entry = torch.empty_like(group)
    columns = (sums.start, sums.size, sums.time, group.contiguous(), time.contiguous(), entry)
    find_last(*(column.numpy() for column in columns))
    return entry


@kernel()
def _build(group, time, value, groups, scale):
    size = np.zeros(groups, np.int64)
    for i in range(group.shape[0]):
        size[group[i]] += 1
    start = np.cumsum(size) - size
    fill = start.copy()
    width = value.shape[1]
    ordered = np.empty(time.shape[0], np.float64)
    running = np.empty((time.shape[0], scale.shape[0], width), np.float64)
    latest = np.empty((time.shape[0], width), np.float64)
    tied = np.zeros(groups, np.int64)  # entries of the group at its last instant
    for i in range(group.shape[0]):
        v = group[i]
        at = fill[v]
        fill[v] = at + 1
        ordered[at] = time[i]
        is_tied = at > start[v] and ordered[at - 1] == time[i]
        tied[v] = tied[v] + 1 if is_tied else 1
        _add_values(ordered, running, latest, scale, at, start[v], tied[v], value[i])
    return start, size, ordered, running, latest


@kernel()
def append_sums(start, size, room, entries, running, latest, scale, used, group, time, value, done):
    """Append events from number `done` on while there is room.

    Returns the number of entries in use and the first event that was not appended.
    """
    for i in range(done, group.shape[0]):
        v = group[i]
        if size[v] == room[v]:
            old, used = move_block(start, room, v, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[v], size[v])
            copy_block(running, old, start[v], size[v])
            copy_block(latest, old, start[v], size[v])
        at = start[v] + size[v]
        entries[at] = time[i]
        tied = 1
        while at - tied >= start[v] and entries[at - tied] == time[i]:
            tied += 1
        _add_values(entries, running, latest, scale, at, start[v], tied, value[i])
        size[v] += 1
    return used, group.shape[0]


@inlined()
def _add_values(entries, running, latest, scale, at, first, tied, value):
    """Write the sums and latest values of entry `at`, the `tied`-th one of its instant in the block from `first` on."""
    for c in range(value.shape[0]):
        latest[at, c] = value[c]
        if tied > 1:
            latest[at, c] = latest[at - 1, c] + (value[c] - latest[at - 1, c]) / tied
    for s in range(scale.shape[0]):
        decay = 0.0
        if at > first:
            decay = np.exp(-(entries[at] - entries[at - 1]) / scale[s])
        for c in range(value.shape[0]):
            running[at, s, c] = value[c]
            if at > first:
                running[at, s, c] += running[at - 1, s, c] * decay


@kernel()
def find_last(start, size, entries, group, time, entry):
    for i in range(group.shape[0]):
        v = group[i]
        entry[i] = -1
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            if end > start[v]:
                entry[i] = end - 1
