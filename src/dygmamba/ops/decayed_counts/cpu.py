"""Decayed counts in Numba: one recurrence to build, one binary search and one decay per look-up."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block
from dygmamba.ops.threads import run_in_threads

if TYPE_CHECKING:
    from dygmamba.ops.decayed_counts import DecayedCounts, NeighborMeetings


def build_decayed_counts(group: Tensor, time: Tensor, groups: int, scale: Tensor) -> "DecayedCounts":
    """Sort by group in linear time, then run the recurrence through each group."""
    from dygmamba.ops.decayed_counts import DecayedCounts

    given = (group.contiguous().numpy(), time.contiguous().numpy(), groups, scale.numpy())
    start, size, ordered, running = (torch.from_numpy(column) for column in _build(*given))
    return DecayedCounts(start, size, size.clone(), ordered, running, scale, len(time))


def append_events(lists: "DecayedCounts", group: Tensor, time: Tensor) -> "DecayedCounts":
    """Append each event to its group's block; a full block moves to the end."""
    from dygmamba.ops.decayed_counts import DecayedCounts

    start, size, room = lists.start.numpy(), lists.size.numpy(), lists.room.numpy()
    entries, running, scale = lists.time.numpy(), lists.running.numpy(), lists.scale.numpy()
    new, stamp = group.contiguous().numpy(), time.contiguous().numpy()
    used, done = lists.used, 0
    while done < len(new):
        used, done = append_counts(start, size, room, entries, running, scale, used, new, stamp, done)
        if done < len(new):  # no room left for a block that moves: double the capacity
            need = max(2 * len(entries), used + 2 * int(size[new[done]]) + 8)
            entries, running = _enlarge(entries, need), _enlarge(running, need)
    return DecayedCounts(
        lists.start,
        lists.size,
        lists.room,
        torch.from_numpy(entries),
        torch.from_numpy(running),
        lists.scale,
        used,
    )


def count_before(lists: "DecayedCounts", group: Tensor, time: Tensor) -> Tensor:
    out = torch.empty(len(group), len(lists.scale), dtype=torch.float64)
    given = (lists.start, lists.size, lists.time, lists.running, lists.scale)
    asked = (group.contiguous(), time.contiguous(), out)
    _look_up(*(column.numpy() for column in (*given, *asked)))
    return out


def past_size_and_age(lists: "DecayedCounts", group: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    number, age = torch.empty_like(group), torch.empty_like(time)
    given = (lists.start, lists.size, lists.time, group.contiguous(), time.contiguous(), number, age)
    _size_and_age(*(column.numpy() for column in given))
    return number, age


def sum_neighbor_meetings(pairs: "DecayedCounts", near: "NeighborMeetings", time: Tensor) -> Tensor:
    out = torch.empty(len(time), 2, len(pairs.scale), dtype=torch.float64)
    asked = (near.met, near.row, near.age, time)
    run_in_threads(
        _sum_meetings, len(time), near.met.numel() * len(pairs.scale), *_arrays(pairs, *asked, out)
    )
    return out


def mean_neighbor_activity(nodes: "DecayedCounts", own: Tensor, time: Tensor) -> Tensor:
    out = torch.empty(len(time), len(nodes.scale), dtype=torch.float64)
    run_in_threads(_mean_activity, len(time), own.numel() * len(nodes.scale), *_arrays(nodes, own, time, out))
    return out


def _arrays(lists: "DecayedCounts", *asked: Tensor) -> list[np.ndarray]:
    given = (lists.start, lists.size, lists.time, lists.running, lists.scale)
    return [column.contiguous().numpy() for column in (*given, *asked)]


def _enlarge(column: np.ndarray, length: int) -> np.ndarray:
    wide = np.zeros((length, *column.shape[1:]))
    wide[: len(column)] = column
    return wide


@inlined()
def count_after(entries, running, scale, at, first):
    """Write the count just after entry `at`; `first` is the first entry of its block."""
    for s in range(scale.shape[0]):
        running[at, s] = 1.0
        if at > first:
            running[at, s] += running[at - 1, s] * np.exp(-(entries[at] - entries[at - 1]) / scale[s])


@kernel()
def _build(group, time, groups, scale):
    size = np.zeros(groups, np.int64)
    for i in range(group.shape[0]):
        size[group[i]] += 1
    start = np.cumsum(size) - size
    fill = start.copy()
    ordered = np.empty(time.shape[0], np.float64)
    running = np.empty((time.shape[0], scale.shape[0]), np.float64)
    for i in range(group.shape[0]):
        at = fill[group[i]]
        fill[group[i]] = at + 1
        ordered[at] = time[i]
        count_after(ordered, running, scale, at, start[group[i]])
    return start, size, ordered, running


@kernel()
def append_counts(start, size, room, entries, running, scale, used, group, time, done):
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
        at = start[v] + size[v]
        entries[at] = time[i]
        count_after(entries, running, scale, at, start[v])
        size[v] += 1
    return used, group.shape[0]


@kernel()
def drop_newest(size, group):
    """Remove the newest entry of each group, as often as the group is listed."""
    for i in range(group.shape[0]):
        size[group[i]] -= 1


@kernel()
def _look_up(start, size, entries, running, scale, group, time, out):
    for i in range(group.shape[0]):
        v = group[i]
        out[i] = 0.0
        if v < 0:
            continue
        end = first_not_less(entries, start[v], start[v] + size[v], time[i])
        if end > start[v]:
            age = time[i] - entries[end - 1]
            for s in range(scale.shape[0]):
                out[i, s] = running[end - 1, s] * np.exp(-age / scale[s])


@kernel()
def _size_and_age(start, size, entries, group, time, number, age):
    for i in range(group.shape[0]):
        v = group[i]
        number[i] = 0
        age[i] = -1.0
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            number[i] = end - start[v]
            if end > start[v]:
                age[i] = time[i] - entries[end - 1]


@inlined()
def _multiply(product, logs, factor, s):
    """Multiply a running product; its logarithm is taken only before it overflows, as one logarithm is cheaper."""
    product[s] *= factor
    if product[s] > 1e200:
        logs[s] += np.log(product[s])
        product[s] = 1.0


@kernel()
def _sum_meetings(low, high, start, size, entries, running, scale, met, row, age, time, out):
    scales, rate = scale.shape[0], 1.0 / scale
    for i in range(low, high):
        total, most = out[i, 0], out[i, 1]
        out[i] = 0.0
        for j in range(met.shape[1]):
            pair = met[i, j]
            if pair < 0:
                continue
            end = first_not_less(entries, start[pair], start[pair] + size[pair], time[i])
            if end > start[pair]:
                since = time[i] - entries[end - 1]
                for s in range(scales):
                    count = running[end - 1, s] * np.exp(-since * rate[s])
                    most[s] = max(most[s], count)
                    total[s] += count * np.exp(-age[row[i], j] * rate[s])


@kernel()
def _mean_activity(low, high, start, size, entries, running, scale, own, time, out):
    scales, rate, product = scale.shape[0], 1.0 / scale, np.empty(scale.shape[0])
    for i in range(low, high):
        busy = out[i]
        busy[:] = 0.0
        product[:] = 1.0
        found = 0
        for j in range(own.shape[1]):
            v = own[i, j]
            if v < 0:
                continue
            found += 1
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            if end > start[v]:
                since = time[i] - entries[end - 1]
                for s in range(scales):
                    _multiply(product, busy, 1.0 + running[end - 1, s] * np.exp(-since * rate[s]), s)
        for s in range(scales):
            busy[s] = (busy[s] + np.log(product[s])) / max(found, 1)
