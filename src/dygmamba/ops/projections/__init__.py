"""Linear maps: a projection whose output is split in two, and matrices with a bounded spectral norm.

The functions here are the definitions; `autograd` and `triton` compute the same, faster.

Legend: q sequences, l tokens, d width, e = half of f channels; k matrices, n rows, d columns.
"""

from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from dygmamba.core.process_settings import use_matmul_precision
from dygmamba.ops.dispatch import dispatched

__all__ = ["MOST_ROWS", "bound_matrices", "spectral_bound", "split_projection"]

MOST_ROWS = 256  # n^-8 = 2^-64 is squared by a norm; with many more rows it would underflow
SQUARINGS = (4, 4)  # between two normalisations: sigma^(2 * 16) >= n^-8 |G|^16 stays far above underflow


@dispatched(any=("autograd:split_projection",))
def split_projection(
    x: Float[Tensor, "q l d"], weight: Float[Tensor, "f d"]
) -> tuple[Float[Tensor, "q l e"], ...]:
    """Return the two halves of x W^T along the channels, in autocast's precision if it is enabled."""
    return linear(x, weight).chunk(2, dim=-1)


@dispatched(any=("autograd:spectral_bound",))
def spectral_bound(weight: Float[Tensor, "k n d"]) -> Float[Tensor, "k"]:
    """Return an upper bound of each matrix's largest singular value, at most n^(1/1024) times that (0.5 % for n = 256).

    Power iteration on the Gram matrix by 8 squarings: sigma^(2m) <= |G^m|_F <= sqrt(n) sigma^(2m). Unlike the usual
    vector iteration it never underestimates and keeps no state between calls. The powers converge to the projector P on
    the leading direction, which gives the gradient: d sigma^2 = tr(P dG); at zero it is zero. Weights are scaled by a
    power of two near the largest entry, which rounds nothing, so that none is too small or too large to be squared.
    """
    # full float32 precision even if training uses less: a bound must hold
    with use_matmul_precision("highest"), torch.autocast(weight.device.type, enabled=False):
        still = weight.detach()
        unit = power_of_two(still.abs().amax(dim=(1, 2), keepdim=True))  # [k 1 1]
        scaled = still / unit + (weight - still)
        gram = scaled @ scaled.mT  # [k n n]
        with torch.no_grad():
            bound, power = iterate(gram)
        leading = (power * gram).sum(dim=(1, 2), keepdim=True)
        fixed = leading.detach()
        # the last term is zero; its gradient is that of bound * sqrt(leading / fixed), none for a zero matrix
        return (unit * bound + bound * ((leading - fixed) / (2 * fixed.clamp(min=1e-30)))).flatten()


@dispatched(cuda=("triton:bound_matrices",))
def bound_matrices(weight: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
    """Return W / max(1, bound of W) for each matrix: its spectral norm is at most 1 (Eq. 13)."""
    return weight / spectral_bound(weight).clamp(min=1)[:, None, None]


def power_of_two(size: Tensor) -> Tensor:
    """Return the largest power of two that is at most each size; at least the smallest normal number."""
    size = size.clamp(min=torch.finfo(size.dtype).tiny)
    return size / (2 * torch.frexp(size).mantissa)


def iterate(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bound of each Gram matrix's root and its high power scaled to norm 1: [k n n] to [k 1 1], [k n n]."""
    power, bound = gram, torch.ones_like(gram[:, :1, :1])
    for squarings, done in zip((*SQUARINGS, 1), accumulate(SQUARINGS, initial=0), strict=True):
        norm = torch.linalg.matrix_norm(power, keepdim=True).clamp(min=1e-30)
        bound = bound * norm ** (0.5 ** (done + 1))
        power = power / norm
        for _ in range(squarings):
            power = power @ power
    return bound, power


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a linear map of x computes: autocast's if that is enabled, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
