"""Triton kernel that gathers rows of a table."""

import triton
import triton.language as tl


@triton.jit
def rows_kernel(table, index, out, count, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of ROWS rows and WIDTH columns; offsets are 64-bit, as a table may be larger than 2^31."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    source = tl.load(index + row, mask=row < count, other=0).to(tl.int64)
    inside = (row < count)[:, None] & (column < columns)[None, :]
    value = tl.load(table + source[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], value, mask=inside)
