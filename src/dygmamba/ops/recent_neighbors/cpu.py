"""The look-up on a CPU; the loops are in `cpu_kernels`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dygmamba.ops.recent_neighbors import cpu_kernels as kernels

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import NeighborEntries


def find_past(entries: "NeighborEntries", node: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first entry and the number of entries of each query's past."""
    begin, count = torch.empty_like(node), torch.empty_like(node)
    lists = (entries.start, entries.size, entries.time, node.contiguous(), time.contiguous(), begin, count)
    kernels.find_past(*(column.numpy() for column in lists))
    return begin, count


def last_k_before(
    entries: "NeighborEntries", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    q = node.shape[0]
    # one allocation for all columns: the allocator then keeps the memory in the process instead of returning it to
    # the system and faulting it in again at every call, which would cost more than the look-up
    block = torch.empty(2 * q * k, dtype=torch.float64)
    times, (ids, events) = block[: q * k].view(q, k), block[q * k :].view(torch.int32).view(2, q, k)
    length = torch.empty(q, dtype=torch.int64)
    arguments = (*entries.columns, node.contiguous(), time.contiguous(), ids, events, times, length)
    kernels.last_k(*(column.numpy() for column in arguments))
    return ids, events, times, length


def cumulate_weights(entries: "NeighborEntries", scale: float) -> Tensor:
    """Return the weights exp(r_i), r_i = e_i / (e_1 + ... + e_i), e = exp(scale * time), cumulated per node.

    This is DyGLib's softmax over these ratios. An entry's ratio is 1 / c_i with the decayed count c_i of its node's
    entries up to itself. The sums always run on the CPU, one entry after the other: a GPU would round differently, and
    a later entry cannot change how earlier sums are rounded.
    """
    start, size, time = (column.cpu() for column in (entries.start, entries.size, entries.time))
    count, running = torch.zeros_like(time), torch.zeros_like(time)
    rate = torch.tensor([scale], dtype=torch.float64)
    kernels.weigh_blocks(*(column.numpy() for column in (start, size, time, count, running, rate)))
    return running.to(entries.time.device)


def find_weight_quantile(running: Tensor, begin: Tensor, count: Tensor, share: Tensor) -> Tensor:
    """Return the first entry where the cumulated weight exceeds this share of the past's total; 0 without a past."""
    place = torch.empty(share.shape, dtype=torch.int64)
    arguments = (running, begin.contiguous(), count.contiguous(), share.contiguous(), place)
    kernels.place_of_share(*(column.numpy() for column in arguments))
    return place
