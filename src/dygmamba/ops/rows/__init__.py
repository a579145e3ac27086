"""Rows of a table by index, also from a table in pinned host memory with an index on a GPU.

Legend: n rows, c columns.
"""

from jaxtyping import Int, Shaped
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.dispatch import dispatched

__all__ = ["gather_rows"]


def gather_rows(table: Shaped[Tensor, "n c"], index: Int[Tensor, "*shape"]) -> Shaped[Tensor, "*shape c"]:
    """Return table[index] on the index's device; a table in pinned host memory is read row by row.

    On a CPU, the gradients of a row that is gathered several times are added in the order of the index, so that they
    have the same bits whatever the number of threads.
    """
    if table.requires_grad and table.device.type == index.device.type == "cpu":
        # the gradient of table[index] adds atomically, in the order in which threads happen to arrive
        return table.index_select(0, index.flatten()).view(*index.shape, table.shape[1])
    if table.device == index.device:
        return table[index]
    if not table.is_pinned():
        raise ConfigError(
            f"the table is on {table.device} and the index on {index.device}; pin the table's memory or move the table",
            code="table-not-pinned",
        )
    return read_rows.pick(index.device.type)(table, index)


@dispatched(cuda=("triton:read_rows",))
def read_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index] on the index's device: the index is moved to the table's device, the rows are moved back."""
    return table[index.to(table.device)].to(index.device)
