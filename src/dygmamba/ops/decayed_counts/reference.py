"""Reference, also used on a GPU: counts as explicit sums, look-ups as vectorised torch."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.decayed_counts import DecayedCounts, NeighborMeetings


def build_decayed_counts(group: Tensor, time: Tensor, groups: int, scale: Tensor) -> "DecayedCounts":
    """Sum over each group's entries up to and including each entry."""
    from dygmamba.ops.decayed_counts import DecayedCounts

    order = torch.argsort(group, stable=True)
    size = torch.bincount(group, minlength=groups)
    start, ordered = size.cumsum(0) - size, time[order]
    parts = [
        torch.exp(-(own[:, None] - own).clamp(min=0)[..., None] / scale).mul(_lower(len(own))).sum(dim=1)
        for own in ordered.split(size.tolist())
    ]
    running = torch.cat([time.new_zeros(0, len(scale)), *parts])
    return DecayedCounts(start, size, size.clone(), ordered, running, scale, len(time))


def _lower(count: int) -> Tensor:
    return torch.ones(count, count, dtype=torch.float64).tril()[..., None]


def append_events(lists: "DecayedCounts", group: Tensor, time: Tensor) -> "DecayedCounts":
    """Build the counts of all events again."""
    owner = torch.repeat_interleave(lists.size)
    begin = lists.size.cumsum(0) - lists.size
    place = torch.arange(len(owner)) - begin[owner] + lists.start[owner]
    known = lists.time[place]
    every = torch.cat([known, time])
    order = torch.argsort(every, stable=True)
    return build_decayed_counts(torch.cat([owner, group])[order], every[order], len(lists.size), lists.scale)


def find_past_end(lists: "DecayedCounts", group: Tensor, time: Tensor) -> Tensor:
    """Return the end of each query's past: its group's first entry that is not strictly earlier (decision 003)."""
    low = lists.start[group.clamp(min=0)]
    high = low + lists.size[group.clamp(min=0)] * (group >= 0)
    most = int(lists.size.max()) if len(lists.size) else 0
    for _ in range(most.bit_length()):
        middle = (low + high) >> 1
        earlier = (middle < high) & (lists.time[middle.clamp(max=len(lists.time) - 1)] < time)
        low, high = torch.where(earlier, middle + 1, low), torch.where(earlier | (low == high), high, middle)
    return low


def count_before(lists: "DecayedCounts", group: Tensor, time: Tensor) -> Tensor:
    """Decay the running count of the last entry before each time."""
    if not lists.used or not len(lists.size):
        return time.new_zeros(len(group), len(lists.scale))
    end = find_past_end(lists, group, time)
    some = end > lists.start[group.clamp(min=0)]
    last = (end - 1).clamp(min=0)
    age = torch.where(some, time - lists.time[last], 0)
    return torch.where(some[:, None], lists.running[last] * torch.exp(-age[:, None] / lists.scale), 0)


def past_size_and_age(lists: "DecayedCounts", group: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    if not lists.used or not len(lists.size):
        return torch.zeros_like(group), torch.full_like(time, -1)
    end = find_past_end(lists, group, time)
    number = end - lists.start[group.clamp(min=0)]
    return number, torch.where(number > 0, time - lists.time[(end - 1).clamp(min=0)], -1)


def sum_neighbor_meetings(pairs: "DecayedCounts", near: "NeighborMeetings", time: Tensor) -> Tensor:
    (q, k), scales = near.met.shape, len(pairs.scale)
    if not k:
        return time.new_zeros(q, 2, scales)
    met = count_before(pairs, near.met.flatten(), time.repeat_interleave(k)).view(q, k, scales)
    weight = torch.exp(-near.age[near.row][..., None] / pairs.scale)
    return torch.stack([(met * weight).sum(1), met.amax(1)], dim=1)


def mean_neighbor_activity(nodes: "DecayedCounts", own: Tensor, time: Tensor) -> Tensor:
    r, k = own.shape
    counts = count_before(nodes, own.flatten(), time.repeat_interleave(k)).view(r, k, len(nodes.scale))
    return torch.log1p(counts).sum(1) / (own >= 0).sum(dim=1).clamp(min=1)[:, None]
