"""The counts in Numba: one recurrence to build, one binary search and one decay to ask."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import first_not_less, inlined, kernel
from dygmamba.ops.scan.cpu import run_in_threads

if TYPE_CHECKING:
    from dygmamba.ops.decayed_counts import DecayedCounts, NeighborMeetings


def fading(group: Tensor, time: Tensor, groups: int, scale: Tensor) -> "DecayedCounts":
    """A counting sort by group, then each list once from its beginning."""
    from dygmamba.ops.decayed_counts import DecayedCounts

    given = (group.contiguous().numpy(), time.contiguous().numpy(), groups, scale.numpy())
    start, size, ordered, running = (torch.from_numpy(column) for column in _build(*given))
    return DecayedCounts(start, size, size.clone(), ordered, running, scale, len(time))


def appended(lists: "DecayedCounts", group: Tensor, time: Tensor) -> "DecayedCounts":
    """Each event behind its group's last one; blocks move where they have no room."""
    from dygmamba.ops.decayed_counts import DecayedCounts

    start, size, room = lists.start.numpy(), lists.size.numpy(), lists.room.numpy()
    entries, running, scale = lists.time.numpy(), lists.running.numpy(), lists.scale.numpy()
    new, stamp = group.contiguous().numpy(), time.contiguous().numpy()
    used, done = lists.used, 0
    while done < len(new):
        used, done = _append(start, size, room, entries, running, scale, used, new, stamp, done)
        if done < len(new):  # the last block found no place: twice as much for all of them
            need = max(2 * len(entries), used + 2 * int(size[new[done]]) + 8)
            entries, running = _grown(entries, need), _grown(running, need)
    return DecayedCounts(
        lists.start,
        lists.size,
        lists.room,
        torch.from_numpy(entries),
        torch.from_numpy(running),
        lists.scale,
        used,
    )


def fading_counts(lists: "DecayedCounts", group: Tensor, time: Tensor) -> Tensor:
    """The running count of the last entry before each time, decayed since."""
    out = torch.empty(len(group), len(lists.scale), dtype=torch.float64)
    given = (lists.start, lists.size, lists.time, lists.running, lists.scale)
    asked = (group.contiguous(), time.contiguous(), out)
    _ask(*(column.numpy() for column in (*given, *asked)))
    return out


def past_of(lists: "DecayedCounts", group: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Entries before each time, and the age of the last."""
    number, age = torch.empty_like(group), torch.empty_like(time)
    given = (lists.start, lists.size, lists.time, group.contiguous(), time.contiguous(), number, age)
    _past(*(column.numpy() for column in given))
    return number, age


def meetings_nearby(pairs: "DecayedCounts", near: "NeighborMeetings", time: Tensor) -> Tensor:
    """Sum and maximum over the neighbours, pair by pair."""
    out = torch.empty(len(time), 2, len(pairs.scale), dtype=torch.float64)
    asked = (near.met, near.row, near.age, time)
    run_in_threads(_meetings, len(time), near.met.numel() * len(pairs.scale), *_arrays(pairs, *asked, out))
    return out


def busy_nearby(nodes: "DecayedCounts", own: Tensor, time: Tensor) -> Tensor:
    """Mean over the neighbours, end by end."""
    out = torch.empty(len(time), len(nodes.scale), dtype=torch.float64)
    run_in_threads(_busy, len(time), own.numel() * len(nodes.scale), *_arrays(nodes, own, time, out))
    return out


def _arrays(lists: "DecayedCounts", *asked: Tensor) -> list[np.ndarray]:
    given = (lists.start, lists.size, lists.time, lists.running, lists.scale)
    return [column.contiguous().numpy() for column in (*given, *asked)]


def _grown(column: np.ndarray, length: int) -> np.ndarray:
    wide = np.zeros((length, *column.shape[1:]))
    wide[: len(column)] = column
    return wide


@inlined()
def count_after(entries, running, scale, at, first):
    """Write the count just after entry `at`, the first of its block or not."""
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
def _append(start, size, room, entries, running, scale, used, group, time, done):
    """From event `done` on, as far as there is place: the entries used, and the first event without one."""
    for i in range(done, group.shape[0]):
        v = group[i]
        if size[v] == room[v]:
            wanted = max(4, 2 * room[v])
            if used + wanted > entries.shape[0]:
                return used, i
            for k in range(size[v]):
                entries[used + k] = entries[start[v] + k]
                running[used + k] = running[start[v] + k]
            start[v] = used
            room[v] = wanted
            used += wanted
        at = start[v] + size[v]
        entries[at] = time[i]
        count_after(entries, running, scale, at, start[v])
        size[v] += 1
    return used, group.shape[0]


@kernel()
def _ask(start, size, entries, running, scale, group, time, out):
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
def _past(start, size, entries, group, time, number, age):
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
    """One more factor; the logarithm of a product is one logarithm, while it fits."""
    product[s] *= factor
    if product[s] > 1e200:
        logs[s] += np.log(product[s])
        product[s] = 1.0


@kernel()
def _meetings(low, high, start, size, entries, running, scale, met, row, age, time, out):
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
def _busy(low, high, start, size, entries, running, scale, own, time, out):
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
