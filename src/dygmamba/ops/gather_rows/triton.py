"""Rows of a table in pinned host memory, read over the bus by a kernel.

The host plans no copy, so nothing waits for the index to reach the host, and a CUDA graph can capture the call.
"""

import torch
import triton
from torch import Tensor

from dygmamba.ops.gather_rows.triton_kernels import rows_kernel

ROWS, COLUMNS = 8, 128  # size of a tile


@torch.no_grad()
def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index] on the index's device; the table's rows must be dense."""
    table, flat = table.contiguous(), index.contiguous()
    out = torch.empty(*index.shape, table.shape[1], dtype=table.dtype, device=index.device)
    if out.numel() > 0:
        width = min(COLUMNS, triton.next_power_of_2(table.shape[1]))
        grid = (triton.cdiv(index.numel(), ROWS), triton.cdiv(table.shape[1], width))
        with torch.cuda.device_of(out):
            rows_kernel[grid](table, flat, out, index.numel(), table.shape[1], ROWS=ROWS, WIDTH=width)
    return out
