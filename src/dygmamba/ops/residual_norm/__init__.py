"""Residual connections together with the norm that follows them: one pass over the tokens instead of three.

Legend: q sequences, l tokens, d width, e columns of a branch before its projection.
"""

from jaxtyping import Float
from torch import Tensor

from dygmamba.ops.dispatch import Dispatch

RESIDUAL_NORM = Dispatch(__name__, {"cuda": ("triton",)})


def add_rms_norm(
    x: Float[Tensor, "q l d"],
    branch: Float[Tensor, "q l d"] | None,
    weight: Float[Tensor, "d"] | None = None,
    eps: float = 1e-5,
) -> tuple[Float[Tensor, "q l d"], Float[Tensor, "q l d"]]:
    """Return x + branch and its RMS norm; without a branch, x itself and its norm."""
    return RESIDUAL_NORM.choose(x.device.type, x, branch).add_rms_norm(x, branch, weight, eps)


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
    return RESIDUAL_NORM.choose(x.device.type, x, branch).add_layer_norm(
        x, branch, projection, norm, dropout, eps
    )
