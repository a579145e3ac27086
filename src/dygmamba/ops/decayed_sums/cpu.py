"""Decayed sums in Numba: one recurrence to build, one binary search per look-up."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import first_not_less, kernel

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
    _find_last(*(column.numpy() for column in columns))
    return entry


@kernel()
def _build(group, time, value, groups, scale):
    size = np.zeros(groups, np.int64)
    for i in range(group.shape[0]):
        size[group[i]] += 1
    start = np.cumsum(size) - size
    fill = start.copy()
    tied = np.zeros(groups, np.int64)  # entries of the group at its last instant
    width = value.shape[1]
    ordered = np.empty(time.shape[0], np.float64)
    running = np.empty((time.shape[0], scale.shape[0], width), np.float64)
    latest = np.empty((time.shape[0], width), np.float64)
    for i in range(group.shape[0]):
        v = group[i]
        at = fill[v]
        fill[v] = at + 1
        ordered[at] = time[i]
        is_tied = at > start[v] and ordered[at - 1] == time[i]
        tied[v] = tied[v] + 1 if is_tied else 1
        for c in range(width):
            latest[at, c] = value[i, c]
            if is_tied:
                latest[at, c] = latest[at - 1, c] + (value[i, c] - latest[at - 1, c]) / tied[v]
        for s in range(scale.shape[0]):
            decay = 0.0
            if at > start[v]:
                decay = np.exp(-(time[i] - ordered[at - 1]) / scale[s])
            for c in range(width):
                running[at, s, c] = value[i, c]
                if at > start[v]:
                    running[at, s, c] += running[at - 1, s, c] * decay
    return start, size, ordered, running, latest


@kernel()
def _find_last(start, size, entries, group, time, entry):
    for i in range(group.shape[0]):
        v = group[i]
        entry[i] = -1
        if v >= 0:
            end = first_not_less(entries, start[v], start[v] + size[v], time[i])
            if end > start[v]:
                entry[i] = end - 1
