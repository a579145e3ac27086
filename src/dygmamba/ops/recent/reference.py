"""The look-up as vectorised torch: the definition, and the path a GPU takes."""

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.recent import Adjacency


def adjacency(src: Tensor, dst: Tensor, event: Tensor, event_time: Tensor, num_nodes: int):
    """Start, key, neighbour, event and time columns, sorted by (node, event)."""
    node = torch.stack([src, dst], dim=1).flatten()  # [2s], an event's two entries side by side
    order = torch.argsort(node, stable=True)
    neighbor = torch.stack([dst, src], dim=1).flatten()[order]
    both = event.repeat_interleave(2)[order]
    rank = torch.searchsorted(event_time, event_time[both])
    key = node[order] * (event_time.shape[0] + 1) + rank
    start = torch.searchsorted(node[order], torch.arange(num_nodes + 1, device=node.device))
    return start, key, neighbor.int(), both.int(), event_time[both]


def before(key: Tensor, event_time: Tensor, node: Tensor, time: Tensor) -> Tensor:
    """End of each query's past: its first entry that is not strictly earlier (decision 003)."""
    rank = torch.searchsorted(event_time, time.contiguous())  # events strictly earlier than the query
    return torch.searchsorted(key, node * (event_time.shape[0] + 1) + rank)


def last_k_before(
    entries: "Adjacency", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k last entries before each query, valid ones first."""
    stop = before(entries.key, entries.event_time, node, time)
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


def decayed_count(start: Tensor, time: Tensor, scale: float) -> Tensor:
    """Each entry's exponentially decayed count of its node's entries so far, itself included."""
    parts = [
        torch.exp(-scale * (own[:, None] - own)).tril().sum(dim=1)
        for own in (time[low:high] for low, high in pairwise(start))
    ]
    return torch.cat([time.new_zeros(0), *parts])
