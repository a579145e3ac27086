"""The definition: the index goes to the table, the rows come back."""

from jaxtyping import Float, Int
from torch import Tensor


def take_rows(table: Float[Tensor, "n c"], index: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape c"]:
    """table[index], on the index's device."""
    return table[index.to(table.device)].to(index.device)
