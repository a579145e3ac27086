"""Selection: how the input matrix B and the output matrix C of the state space model depend on the input.

Legend: q sequences, l tokens, d channels, n states.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.nn.encodings import TimeEncoding
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.projections import bound_matrices

Selected = tuple[Float[Tensor, "q l n"], Float[Tensor, "q l n"]]


class InputSelection(nn.Module):
    """B = W_B x and C = W_C x as in Mamba, unbounded."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        bound = channels**-0.5
        self.weight = nn.Parameter(torch.empty(2, states, channels).uniform_(-bound, bound))

    def maps(self) -> Float[Tensor, "2 n d"]:
        """Return W_B and W_C as applied."""
        return self.weight

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        B, C = (x @ self.maps().flatten(0, 1).T).chunk(2, dim=-1)  # the rows of W_B, then those of W_C
        return B, C


class BoundedSelection(InputSelection):
    """`InputSelection` with ||W_B||_2 <= 1 and ||W_C||_2 <= 1 (Eq. 13, without its biases): divided by max(1, sigma).

    W_B and W_C are one tensor, so that their bounds, and then B and C, are one batched computation each.
    """

    def maps(self) -> Float[Tensor, "2 n d"]:
        """Return W_B and W_C, scaled to spectral norm at most 1."""
        return bound_matrices(self.weight)


class TimeSelection(nn.Module):
    """B and C from the time span only: the ablation "without data-dependent"."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        self.encode = TimeEncoding(100, decades=0.9)
        self.map = nn.Linear(100, 2 * states, bias=False)

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        B, C = self.map(self.encode(tokens.share)).to(x.dtype).chunk(2, dim=-1)
        return B, C


class FixedSelection(nn.Module):
    """The same B and C for every token (S4-like): the ablation "without selective"."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(2, states))

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Selected:
        B, C = self.vectors.to(x.dtype)
        return B.expand(*x.shape[:2], -1), C.expand(*x.shape[:2], -1)


SELECTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "bounded": BoundedSelection,
    "unbounded": InputSelection,
    "time": TimeSelection,
    "fixed": FixedSelection,
}
