"""Reference of the norms behind residual connections; on a CPU also what runs."""

from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import layer_norm, linear, rms_norm


def add_rms_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + branch and its norm."""
    total = x if branch is None else x + branch
    return total, rms_norm(total, total.shape[-1:], weight, eps)


def add_layer_norm(
    x: Tensor,
    branch: Tensor,
    projection: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    dropout: float,
    eps: float,
) -> Tensor:
    """Return the layer norm of x + dropout(W branch + b)."""
    return layer_norm(x + drop(linear(branch, *projection), dropout), x.shape[-1:], *norm, eps)
