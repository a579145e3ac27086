"""What the state takes in (B) and gives out (C): chosen by the input, bounded, or not chosen at all.

Legend: q sequences, l tokens, d channels, n states.
"""

from collections.abc import Callable
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.nn.derived import derived
from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.tokens import Tokens
from dygmamba.process_wide import float32_products

Selected = tuple[Float[Tensor, "q l n"], Float[Tensor, "q l n"]]
SQUARINGS = (4, 4)  # between two normalisations: sigma^(2 * 16) >= n^-8 |G|^16 stays far above underflow
MOST_STATES = 256  # n^-8 = 2^-64, of which a norm takes the square: for many more it would underflow


def power_of_two(size: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The largest power of two that is at most each size, or the smallest normal number below that."""
    size = size.clamp(min=torch.finfo(size.dtype).tiny)
    return size / (2 * torch.frexp(size).mantissa)


def spectral_bound(weight: Float[Tensor, "k n d"]) -> Float[Tensor, "k"]:
    """An upper bound of each matrix's largest singular value, tight to a factor n^(1 / 2^(8 + 2)).

    Power iteration on the Gram matrix by 8 squarings: sigma^(2m) <= |G^m|_F <= sqrt(n) sigma^(2m).
    Unlike the usual vector iteration it never underestimates and keeps no state between calls. The powers
    converge to the projector P on the leading direction, which gives the gradient: d sigma^2 = tr(P dG); at zero
    it is zero.

    All of it in units of a power of two near the largest entry, which rounds nothing: no weight is too small or
    too large to be squared. The gradient has no unit, so it goes around the scaling.
    """
    # in float32 to the last bit, whatever training uses: a bound must hold
    with float32_products("highest"), torch.autocast(weight.device.type, enabled=False):
        still = weight.detach()
        unit = power_of_two(still.abs().amax(dim=(1, 2), keepdim=True))  # [k 1 1]
        # one for each factor, so that the weight's gradients are added up one by one, as those of W W^T are
        right, left = (still / unit + (weight - still) for _ in range(2))
        gram = left @ right.mT  # [k n n]
        with torch.no_grad():
            power, bound = gram, 1.0
            for squarings, done in zip((*SQUARINGS, 1), accumulate(SQUARINGS, initial=0), strict=True):
                norm = torch.linalg.matrix_norm(power, keepdim=True).clamp(min=1e-30)
                bound = bound * norm ** (0.5 ** (done + 1))
                power = power / norm
                for _ in range(squarings):
                    power = power @ power
        leading = (power * gram).sum(dim=(1, 2), keepdim=True)
        fixed = leading.detach()
        # the last term is zero and has the gradient of bound * sqrt(leading / fixed), of which zero has none
        return (unit * bound + bound * ((leading - fixed) / (2 * fixed.clamp(min=1e-30)))).flatten()


class InputSelection(nn.Module):
    """B = W_B x and C = W_C x, as in Mamba, without a bound."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        bound = channels**-0.5
        self.weight = nn.Parameter(torch.empty(2, states, channels).uniform_(-bound, bound))

    def maps(self) -> Float[Tensor, "2 n d"]:
        """W_B and W_C as they are applied."""
        return self.weight

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        """B and C of each token."""
        B, C = (x @ self.maps().flatten(0, 1).T).chunk(2, dim=-1)
        return B, C


class BoundedSelection(InputSelection):
    """As `InputSelection`, but ||W_B||_2 <= 1 and ||W_C||_2 <= 1: divided by max(1, sigma)."""

    @derived
    def maps(self) -> Float[Tensor, "2 n d"]:
        """W_B and W_C with spectral norm at most 1."""
        return self.weight / spectral_bound(self.weight).clamp(min=1)[:, None, None]


class TimeSelection(nn.Module):
    """B and C from the span alone: the ablation "without data-dependent"."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        self.encode = TimeEncoding(100, decades=0.9)
        self.map = nn.Linear(100, 2 * states, bias=False)

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        """B and C of each token."""
        B, C = self.map(self.encode(tokens.share)).to(x.dtype).chunk(2, dim=-1)
        return B, C


class FixedSelection(nn.Module):
    """The same B and C for every token (S4-like): the ablation "without selective"."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(2, states))

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        """B and C of each token."""
        B, C = self.vectors.to(x.dtype)
        return B.expand(*x.shape[:2], -1), C.expand(*x.shape[:2], -1)


SELECTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "bounded": BoundedSelection,
    "unbounded": InputSelection,
    "time": TimeSelection,
    "fixed": FixedSelection,
}
