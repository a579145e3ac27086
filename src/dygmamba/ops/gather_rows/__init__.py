"""Rows of a table by index, also where the table stays in the host's memory and the index is on a GPU.

Legend: n rows, c columns.
"""

from jaxtyping import Float, Int
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.ops.dispatch import Dispatch
from dygmamba.ops.gather_rows import reference

__all__ = ["take_rows"]

GATHER_ROWS = Dispatch(__name__, {"cuda": ("triton",)})


def gather_rows(table: Float[Tensor, "n c"], index: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape c"]:
    """table[index], on the index's device; a table in pinned memory is read from there, row by row."""
    if table.device == index.device:
        return reference.take_rows(table, index)
    if not table.is_pinned():
        raise ConfigError(
            f"a table on {table.device} is asked for rows by an index on {index.device}; pin or move the table"
        )
    return GATHER_ROWS[index.device.type].take_rows(table, index)
