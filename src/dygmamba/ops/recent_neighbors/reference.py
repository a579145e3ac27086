"""Reference: the look-up as vectorised torch."""

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import Adjacency


def build_adjacency(src: Tensor, dst: Tensor, event: Tensor, event_time: Tensor, num_nodes: int):
    """Return start, key, neighbor, event and time columns, sorted by (node, event)."""
    node = torch.stack([src, dst], dim=1).flatten()  # [2s], an event's two entries side by side
    order = torch.argsort(node, stable=True)
    neighbor = torch.stack([dst, src], dim=1).flatten()[order]
    both = event.repeat_interleave(2)[order]
    rank = torch.searchsorted(event_time, event_time[both])
    key = node[order] * (event_time.shape[0] + 1) + rank
    start = torch.searchsorted(node[order], torch.arange(num_nodes + 1, device=node.device))
    return start, key, neighbor.int(), both.int(), event_time[both]


def find_past_end(key: Tensor, event_time: Tensor, node: Tensor, time: Tensor) -> Tensor:
    """Return the end of each query's past: its first entry that is not strictly earlier (decision 003)."""
    rank = torch.searchsorted(event_time, time.contiguous())  # events strictly earlier than the query
    return torch.searchsorted(key, node * (event_time.shape[0] + 1) + rank)


def last_k_before(
    entries: "Adjacency", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    stop = find_past_end(entries.key, entries.event_time, node, time)
    length = (stop - entries.start[node.clamp(min=0)]).clamp(max=k) * (node >= 0)  # [q]
    offset = torch.arange(k, device=node.device)
    valid = offset < length[:, None]  # [q k]
    if entries.key.shape[0] == 0:
        empty = torch.zeros_like(valid, dtype=torch.int32)
        return empty, empty, empty.double(), length
    position = torch.where(valid, (stop - length)[:, None] + offset, 0)
    return (
        entries.neighbor[position] * valid,
        entries.event[position] * valid,
        entries.time[position] * valid,
        length,
    )


def decayed_counts(start: Tensor, time: Tensor, scale: float) -> Tensor:
    """Return the decayed count of each entry's node up to and including the entry."""
    parts = [
        torch.exp(-scale * (own[:, None] - own)).tril().sum(dim=1)
        for own in (time[low:high] for low, high in pairwise(start))
    ]
    return torch.cat([time.new_zeros(0), *parts])


def cumulate_weights(start: Tensor, time: Tensor, scale: float) -> Tensor:
    """Sum the weights exp(1 / c_j) of a node's entries j <= i, with the decayed count c; starts at 0 at each node."""
    weight = torch.exp(1 / decayed_counts(start, time, scale))
    parts = [weight[low:high].cumsum(0) for low, high in pairwise(start)]
    return torch.cat([time.new_zeros(0), *parts])


def find_weight_quantile(
    running: Tensor, halvings: int, begin: Tensor, count: Tensor, share: Tensor
) -> Tensor:
    """Return the first entry where the cumulated weight exceeds this share of the past's total; 0 without a past."""
    last = (begin + count - 1).clamp(min=0)
    target = share * running[last][:, None]  # [q k], below the whole weight also when rounded, as share < 1
    low, high = (end[:, None].expand_as(share) for end in (begin.minimum(last), last))
    for _ in range(halvings):
        middle = (low + high) >> 1
        beyond = running[middle] <= target
        low, high = torch.where(beyond, middle + 1, low), torch.where(beyond, high, middle)
    return low * (count > 0)[:, None]
