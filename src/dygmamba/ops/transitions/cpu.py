"""Histories of sources in Numba: an event is inserted among the last destinations, a look-up is a binary search."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import copy_block, first_not_less, inlined, kernel, move_block

if TYPE_CHECKING:
    from dygmamba.ops.transitions import SourceHistories


def extend_histories(
    histories: "SourceHistories", src: Tensor, dst: Tensor, time: Tensor
) -> tuple["SourceHistories", Tensor]:
    """Append each event to its source's block; a full block moves to the end and gets twice the room."""
    from dygmamba.ops.transitions import SourceHistories

    start, size, room = histories.start.numpy(), histories.size.numpy(), histories.room.numpy()
    entries, recent = histories.time.numpy(), histories.recent.numpy()
    new = [column.contiguous().numpy() for column in (src, dst, time)]
    previous = np.full((len(src), recent.shape[1]), -1)
    used, done = histories.used, 0
    while done < len(src):
        used, done = append_destinations(start, size, room, entries, recent, used, *new, previous, done)
        if done < len(src):  # no room left for a block that moves: double the capacity
            more = max(len(entries), used + 2 * int(size[new[0][done]]) + 8 - len(entries))
            entries = np.concatenate([entries, np.zeros(more)])
            recent = np.concatenate([recent, np.full((more, recent.shape[1]), -1)])
    lists = (torch.from_numpy(entries), torch.from_numpy(recent))
    rows = (histories.start, histories.size, histories.room)
    return SourceHistories(*rows, *lists, used), torch.from_numpy(previous)


def last_destinations(histories: "SourceHistories", source: Tensor, time: Tensor) -> Tensor:
    found = torch.empty(len(source), histories.recent.shape[1], dtype=torch.int64)
    _find_recent(*_arrays(histories, histories.recent, source, time, found))
    return found


def last_ages(histories: "SourceHistories", source: Tensor, time: Tensor, count: int) -> Tensor:
    found = torch.empty(len(source), count, dtype=torch.float64)
    _find_ages(*_arrays(histories, source, time, found))
    return found


def count_between(histories: "SourceHistories", source: Tensor, since: Tensor, time: Tensor) -> Tensor:
    found = torch.empty_like(source)
    _count(*_arrays(histories, source, since, time, found))
    return found


def _arrays(histories: "SourceHistories", *asked: Tensor) -> list[np.ndarray]:
    given = (histories.start, histories.size, histories.time, *asked)
    return [column.contiguous().numpy() for column in given]


@inlined()
def _insert(recent, at, first, same, node):
    """Write the last destinations up to entry `at`: those of the entry before it and `node`.

    The first ones are the `same` earlier ones of the same instant, the largest first; `node` is inserted among them.
    """
    lags = recent.shape[1]
    place = 0
    while place < min(same, lags) and recent[at - 1, place] > node:
        place += 1
    for j in range(lags):
        if j == place:
            recent[at, j] = node
        else:
            other = j if j < place else j - 1
            recent[at, j] = recent[at - 1, other] if at > first else -1


@kernel()
def append_destinations(start, size, room, entries, recent, used, src, dst, time, previous, done):
    """Append events from number `done` on while there is room.

    Returns the number of entries in use and the first event that was not appended.
    """
    for i in range(done, src.shape[0]):
        u = src[i]
        if size[u] == room[u]:
            old, used = move_block(start, room, u, used, entries.shape[0])
            if old < 0:
                return used, i
            copy_block(entries, old, start[u], size[u])
            copy_block(recent, old, start[u], size[u])
        first, at = start[u], start[u] + size[u]
        begin = first_not_less(entries, first, at, time[i])  # the first entry of this instant
        if begin > first:
            previous[i] = recent[begin - 1]
        _insert(recent, at, first, at - begin, dst[i])
        entries[at] = time[i]
        size[u] += 1
    return used, src.shape[0]


@kernel()
def _find_recent(start, size, entries, recent, source, time, found):
    for i in range(source.shape[0]):
        u = source[i]
        found[i] = -1
        if u >= 0:
            end = first_not_less(entries, start[u], start[u] + size[u], time[i])
            if end > start[u]:
                found[i] = recent[end - 1]


@kernel()
def _find_ages(start, size, entries, source, time, found):
    for i in range(source.shape[0]):
        u = source[i]
        found[i] = -1.0
        if u >= 0:
            end = first_not_less(entries, start[u], start[u] + size[u], time[i])
            for j in range(min(found.shape[1], end - start[u])):
                found[i, j] = time[i] - entries[end - 1 - j]


@kernel()
def _count(start, size, entries, source, since, time, found):
    for i in range(source.shape[0]):
        u = source[i]
        found[i] = 0
        if u >= 0:
            end = first_not_less(entries, start[u], start[u] + size[u], time[i])
            found[i] = end - first_not_less(entries, start[u], end, np.nextafter(since[i], np.inf))
