"""Reference: the index is moved to the table's device, the rows are moved back."""

from jaxtyping import Int, Shaped
from torch import Tensor


def gather_rows(table: Shaped[Tensor, "n c"], index: Int[Tensor, "*shape"]) -> Shaped[Tensor, "*shape c"]:
    """Return table[index] on the index's device."""
    return table[index.to(table.device)].to(index.device)
