"""The look-up on a GPU: one kernel that searches and copies the past of each query."""

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from dygmamba.ops.recent_neighbors.reference import build_adjacency as build_adjacency
from dygmamba.ops.recent_neighbors.reference import find_weight_quantile as find_weight_quantile
from dygmamba.ops.recent_neighbors.triton_kernels import last_kernel

if TYPE_CHECKING:
    from dygmamba.ops.recent_neighbors import Adjacency

BLOCK = 128  # most entries copied at a time


@torch.no_grad()
def last_k_before(
    entries: "Adjacency", node: Tensor, time: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the k last entries before each query, valid ones first."""
    q, device = node.shape[0], node.device
    ids, events = (torch.empty(q, k, dtype=torch.int32, device=device) for _ in range(2))
    times = torch.empty(q, k, dtype=torch.float64, device=device)
    length = torch.empty(q, dtype=torch.int64, device=device)
    if q > 0:
        columns = {"start": entries.start, "key": entries.key, "neighbor": entries.neighbor}
        columns |= {"event": entries.event, "time": entries.time, "event_time": entries.event_time}
        columns |= {"node": node, "query_time": time}
        found = {"out_node": ids, "out_event": events, "out_time": times, "out_length": length}
        with torch.cuda.device_of(node):
            last_kernel[(q,)](
                **{name: column.contiguous() for name, column in columns.items()},
                **found,
                events=entries.event_time.shape[0],
                k=k,
                BLOCK=min(BLOCK, triton.next_power_of_2(max(k, 1))),
            )
    return ids, events, times, length
