"""Reference of the spectral bound: power iteration by squaring, differentiated by torch.

Legend: k matrices, n rows, d columns.
"""

from itertools import accumulate

import torch
from torch import Tensor

from dygmamba.core.process_settings import use_matmul_precision

SQUARINGS = (4, 4)  # between two normalisations: sigma^(2 * 16) >= n^-8 |G|^16 stays far above underflow


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


def spectral_bound(weight: Tensor) -> Tensor:
    """[k n d] to [k]; scaled by a power of two near the largest entry, which does not affect the gradient."""
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


def bound_matrices(weight: Tensor) -> Tensor:
    """[k n d] to [k n d]."""
    return weight / spectral_bound(weight).clamp(min=1)[:, None, None]
