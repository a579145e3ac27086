"""Sums over rows on a GPU, for the partial sums that other kernels leave: torch gives such shapes to few programs.

The order of the additions depends on the shape alone, so two runs agree in every bit.

Legend: k matrices, r rows, c columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 32, 64, 4  # a tile
PART = 128  # rows of a program, as long as there are not more than PARTS programs per block of columns
PARTS = 64


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
