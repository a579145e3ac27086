"""Rows on a GPU: read by index, and summed, which other kernels need for the partial sums that they leave.

torch gives sums of such shapes to few programs. The order of the additions depends on the shape alone, so two runs
agree in every bit.

Legend: k matrices, r rows, c columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

READ_ROWS, READ_COLUMNS = 8, 128  # a tile of rows that are read
ROWS, COLUMNS, WARPS = 32, 64, 4  # a tile of a sum
PART = 128  # rows of a program, as long as there are not more than PARTS programs per block of columns
PARTS = 64


@triton.jit
def rows_kernel(table, index, out, count, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of ROWS rows and WIDTH columns; offsets are 64-bit, as a table may be larger than 2^31."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    source = tl.load(index + row, mask=row < count, other=0).to(tl.int64)
    inside = (row < count)[:, None] & (column < columns)[None, :]
    value = tl.load(table + source[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], value, mask=inside)


@torch.no_grad()
def read_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index] on the index's device; a kernel reads a table in pinned host memory over the bus.

    The host plans no copy, so nothing waits for the index to reach the host, and a CUDA graph can capture the call.
    """
    table, flat = table.contiguous(), index.contiguous()
    out = torch.empty(*index.shape, table.shape[1], dtype=table.dtype, device=index.device)
    if out.numel() > 0:
        width = min(READ_COLUMNS, triton.next_power_of_2(table.shape[1]))
        grid = (triton.cdiv(index.numel(), READ_ROWS), triton.cdiv(table.shape[1], width))
        with torch.cuda.device_of(out):
            rows_kernel[grid](table, flat, out, index.numel(), table.shape[1], ROWS=READ_ROWS, WIDTH=width)
    return out


@triton.jit(do_not_specialize=["rows", "part"])
def sum_kernel(
    x, y, rows, part, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Sum `part` rows of a matrix; y is [k parts c]."""
    k, block, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < WIDTH)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    end = tl.minimum((number + 1) * part, rows)
    for first in range(number * part, end, ROWS):
        row = first + tl.arange(0, ROWS)
        at = (k.to(tl.int64) * rows + row)[:, None] * WIDTH + column[None, :]
        total += tl.load(x + at, mask=(row < end)[:, None] & inside, other=0.0)
    at = (k.to(tl.int64) * tl.num_programs(2) + number) * WIDTH + column
    tl.store(y + at, tl.sum(total, 0), mask=column < WIDTH)


def sum_rows(x: Tensor) -> Tensor:
    """Sum dense float32 matrices over their rows: [k r c] to [k c]."""
    k, rows, columns = x.shape
    parts = min(PARTS, triton.cdiv(rows, PART))
    if parts == 0 or x.numel() == 0:
        return x.new_zeros(k, columns)
    y = torch.empty(k, parts, columns, dtype=x.dtype, device=x.device)
    grid = (k, triton.cdiv(columns, COLUMNS), parts)
    with torch.cuda.device_of(x):
        sum_kernel[grid](
            x, y, rows, triton.cdiv(rows, parts), WIDTH=columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS
        )
    return y[:, 0] if parts == 1 else sum_rows(y)
