"""The state space model: residual blocks of gated selective scans (DyG-Mamba section 4.2, Alg. 1).

Legend: q sequences, l tokens, d model width, e inner channels, n states.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dygmamba.nn.selection import SELECTIONS
from dygmamba.nn.steps import STEPS, StepConfig, System
from dygmamba.nn.tokens import Tokens
from dygmamba.ops.conv import conv_silu
from dygmamba.ops.projections import split_projection
from dygmamba.ops.residual_norm import add_rms_norm

EPS = 1e-5  # of the norms
DIRECTIONS: dict[str, tuple[bool, ...]] = {"forward": (False,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class SSMConfig:
    """Parts and sizes of a stack of blocks."""

    width: int
    blocks: int
    expand: int
    states: int
    taps: int
    step: str
    selection: str
    direction: str
    skip: str
    rule: str
    floor: float
    gap_scale: float


class Skip(nn.Module):
    """D, the learned skip connection around the state, one weight per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.D = nn.Parameter(torch.ones(channels))

    def forward(self) -> Tensor | None:
        return self.D


class NoSkip(nn.Module):
    """No skip connection (D = 0), as in the paper's equations."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self) -> Tensor | None:
        return None


SKIPS: dict[str, type[nn.Module]] = {"learned": Skip, "none": NoSkip}


class Direction(nn.Module):
    """Convolution, selection, step and scan in one direction of time."""

    def __init__(self, config: SSMConfig, reverse: bool) -> None:
        super().__init__()
        inner = config.expand * config.width
        bound = config.taps**-0.5
        self.reverse = reverse
        self.taps = nn.Parameter(torch.empty(inner, config.taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(inner))
        self.select = SELECTIONS[config.selection](inner, config.states)
        self.step = STEPS[config.step](
            StepConfig(inner, config.width, config.floor, config.gap_scale, config.rule)
        )
        # diagonal A with negative real eigenvalues -1..-n (Theorem 1); the logarithm is trained, so they stay negative
        self.log_A = nn.Parameter(torch.arange(1.0, config.states + 1).log().repeat(inner, 1))
        self.skip = SKIPS[config.skip](inner)

    def A(self) -> Float[Tensor, "e n"]:
        return -self.log_A.exp()

    def system(self, x: Tensor, z: Tensor, tokens: Tokens) -> tuple[Float[Tensor, "q l e"], System]:
        """Return the input of the scan and its system matrices."""
        # under autocast the tokens are in half precision
        taps, bias = self.taps.to(x.dtype), self.bias.to(x.dtype)
        m = conv_silu(x, taps, bias, tokens.mask, self.reverse)  # Eq. 7
        B, C = (part.to(m.dtype) for part in self.select(m, tokens))
        return m, System(self.A(), B, C, self.skip(), z.to(m.dtype))

    def forward(self, x: Tensor, z: Tensor, tokens: Tokens) -> Float[Tensor, "q l e"]:
        m, system = self.system(x, z, tokens)
        return self.step(tokens, m, system, self.reverse)


class Block(nn.Module):
    """W_out sum over directions of gated scans of the normalised x (Eq. 7-10, Alg. 1); the stack adds it to x."""

    def __init__(self, config: SSMConfig) -> None:
        super().__init__()
        inner = config.expand * config.width
        self.norm = nn.RMSNorm(config.width, eps=EPS)
        self.into = nn.Linear(config.width, 2 * inner, bias=False)
        self.paths = nn.ModuleList(Direction(config, reverse) for reverse in DIRECTIONS[config.direction])
        self.out = nn.Linear(inner, config.width, bias=False)
        with torch.no_grad():  # as in Mamba: the sum of all residual blocks starts at the scale of one
            self.out.weight /= config.blocks**0.5

    def projection(self) -> Float[Tensor, "_ d"]:
        """Return the projection with the norm's scale folded in: saves a product, and a sum over tokens in backward.

        W (x / rms * g) = (W diag(g)) (x / rms), so the stack normalises without a scale.
        """
        return self.into.weight * self.norm.weight

    def forward(self, scaled: Float[Tensor, "q l d"], tokens: Tokens) -> Float[Tensor, "q l d"]:
        # the two linear maps of Eq. 7 and Eq. 10 in one product
        m, z = split_projection(scaled, self.projection())
        # each direction returns its gated scan (Eq. 8-10); one W_out of their sum, as in Alg. 1
        return self.out(reduce(torch.add, [path(m, z, tokens) for path in self.paths]))


class Stack(nn.Module):
    """A sequence of residual blocks, each behind a norm, and a last norm."""

    def __init__(self, config: SSMConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(config.width, eps=EPS)

    def forward(self, x: Float[Tensor, "q l d"], tokens: Tokens) -> Float[Tensor, "q l d"]:
        branch = None
        for block in self.blocks:
            x, scaled = add_rms_norm(x, branch, eps=EPS)
            branch = block(scaled, tokens)
        return add_rms_norm(x, branch, self.norm.weight, EPS)[1]
