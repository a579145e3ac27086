"""The look-up on a GPU: one kernel that searches the past of each query, and one that also copies its end."""

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from dygmamba.ops.recent_neighbors.triton_kernels import last_kernel, past_kernel

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import NeighborEntries

BLOCK = 128  # most entries copied at a time


@torch.no_grad()
def find_past(entries: "NeighborEntries", node: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first entry and the number of entries of each query's past."""
    begin, count = torch.empty_like(node), torch.empty_like(node)
    if len(node):
        columns = {"start": entries.start, "size": entries.size, "time": entries.time}
        columns |= {"node": node, "query_time": time, "out_begin": begin, "out_count": count}
        with torch.cuda.device_of(node):
            past_kernel[(len(node),)](**{name: column.contiguous() for name, column in columns.items()})
    return begin, count


@torch.no_grad()
def last_k_before(
    entries: "NeighborEntries", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    q, device = node.shape[0], node.device
    ids, events = (torch.empty(q, k, dtype=torch.int32, device=device) for _ in range(2))
    times = torch.empty(q, k, dtype=torch.float64, device=device)
    length = torch.empty(q, dtype=torch.int64, device=device)
    if q > 0:
        columns = {"start": entries.start, "size": entries.size, "neighbor": entries.neighbor}
        columns |= {"event": entries.event, "time": entries.time, "node": node, "query_time": time}
        found = {"out_node": ids, "out_event": events, "out_time": times, "out_length": length}
        with torch.cuda.device_of(node):
            last_kernel[(q,)](
                **{name: column.contiguous() for name, column in columns.items()},
                **found,
                k=k,
                BLOCK=min(BLOCK, triton.next_power_of_2(max(k, 1))),
            )
    return ids, events, times, length
