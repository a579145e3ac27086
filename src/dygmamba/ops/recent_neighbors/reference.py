"""Reference: the look-up as vectorised torch."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import NeighborEntries


def find_past(entries: "NeighborEntries", node: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first entry and the number of entries of each query's past (decision 003)."""
    own, most = node.clamp(min=0), entries.time.shape[0]
    begin = entries.start[own]
    low, high = begin, begin + entries.size[own] * (node >= 0)
    for _ in range(most.bit_length()):  # halvings that suffice for any list
        middle = (low + high) >> 1
        is_earlier = (low < high) & (entries.time[middle.clamp(max=most - 1)] < time)
        low, high = torch.where(is_earlier, middle + 1, low), torch.where(is_earlier, high, middle)
    return begin, low - begin


def last_k_before(
    entries: "NeighborEntries", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    begin, count = find_past(entries, node, time)
    length = count.clamp(max=k)  # [q]
    offset = torch.arange(k, device=node.device)
    valid = offset < length[:, None]  # [q k]
    if entries.time.shape[0] == 0:
        empty = torch.zeros_like(valid, dtype=torch.int32)
        return empty, empty, empty.double(), length
    position = torch.where(valid, (begin + count - length)[:, None] + offset, 0)
    node, event, time = (column[position] * valid for column in entries.columns[2:])
    return node, event, time, length


def find_weight_quantile(running: Tensor, begin: Tensor, count: Tensor, share: Tensor) -> Tensor:
    """Return the first entry where the cumulated weight exceeds this share of the past's total; 0 without a past."""
    last = (begin + count - 1).clamp(min=0)
    target = share * running[last][:, None]  # [q k], below the whole weight also when rounded, as share < 1
    low, high = (end[:, None].expand_as(share) for end in (begin.minimum(last), last))
    for _ in range(running.shape[0].bit_length()):
        middle = (low + high) >> 1
        beyond = (low < high) & (running[middle] <= target)
        low, high = torch.where(beyond, middle + 1, low), torch.where(beyond, high, middle)
    return low * (count > 0)[:, None]
