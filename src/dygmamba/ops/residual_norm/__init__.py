"""Residual connections together with the norm that follows them: on a GPU one pass over the tokens instead of three.

Legend: q sequences, l tokens, d width, e columns of a branch before its projection.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import layer_norm, linear, rms_norm

from dygmamba.ops.dispatch import dispatched

__all__ = ["add_layer_norm", "add_rms_norm"]


@dispatched(cuda=("triton:add_rms_norm",))
def add_rms_norm(
    x: Float[Tensor, "q l d"],
    branch: Float[Tensor, "q l d"] | None,
    weight: Float[Tensor, "d"] | None = None,
    eps: float = 1e-5,
) -> tuple[Float[Tensor, "q l d"], Float[Tensor, "q l d"]]:
    """Return x + branch and its RMS norm; without a branch, x itself and its norm."""
    total = x if branch is None else x + branch
    return total, rms_norm(total, total.shape[-1:], weight, eps)


@dispatched(cuda=("triton:add_layer_norm",))
def add_layer_norm(
    x: Float[Tensor, "q l d"],
    branch: Float[Tensor, "q l e"],
    projection: tuple[Float[Tensor, "d e"], Float[Tensor, "d"]],
    norm: tuple[Float[Tensor, "d"], Float[Tensor, "d"]],
    dropout: float,
    eps: float = 1e-5,
) -> Float[Tensor, "q l d"]:
    """Return the layer norm of x + dropout(W branch + b).

    Args:
        x: The residual stream.
        branch: What is projected and added to it.
        projection: W and b.
        norm: Weight and bias of the layer norm.
        dropout: Share of the projected values that are dropped, 0 in evaluation.
        eps: Added to the variance.
    """
    return layer_norm(x + drop(linear(branch, *projection), dropout), x.shape[-1:], *norm, eps)
