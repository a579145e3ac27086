"""Upper bound of the largest singular value of small matrices.

For n rows it is at most n^(1/1024) times the true value (0.5 % too large for n = 256).

Power iteration on the Gram matrix by 8 squarings: sigma^(2m) <= |G^m|_F <= sqrt(n) sigma^(2m). Unlike the usual vector
iteration it never underestimates and keeps no state between calls. The powers converge to the projector P on the
leading direction, which gives the gradient: d sigma^2 = tr(P dG); at zero it is zero. Weights are scaled by a power of
two near the largest entry, which rounds nothing, so that no weight is too small or too large to be squared.

Legend: k matrices, n rows, d columns.
"""

from jaxtyping import Float
from torch import Tensor

from dygmamba.ops.dispatch import ANY, Dispatch

SPECTRAL_BOUND = Dispatch(__name__, {"cuda": ("triton", "autograd"), ANY: ("autograd",)})
MOST_ROWS = 256  # n^-8 = 2^-64 is squared by a norm; with many more rows it would underflow


def spectral_bound(weight: Float[Tensor, "k n d"]) -> Float[Tensor, "k"]:
    """Return the bound of each matrix, always in full float32 precision: a bound must hold."""
    return SPECTRAL_BOUND.choose(weight.device.type, weight).spectral_bound(weight)


def bound_matrices(weight: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
    """Return W / max(1, bound of W) for each matrix: its spectral norm is at most 1 (Eq. 13)."""
    return SPECTRAL_BOUND.choose(weight.device.type, weight).bound_matrices(weight)
