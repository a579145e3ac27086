"""Chance without a generator: a draw is a function of run, epoch, node, time, hop and slot, in any batch.

Integers wrap around at 64 bits on every device, so a CPU and a GPU draw the same bits (decision 022).

Legend: q queries, k slots of one hop of a query.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's increment and multipliers, as signed numbers
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLIER_2 = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True, slots=True)
class Draws:
    """What a run, in training one of its epochs, draws; a captured CUDA graph reads `key`, so it changes in place."""

    key: Int64[Tensor, ""]

    @staticmethod
    def of(seed: int, epoch: int | None = None, device: torch.device | str = "cpu") -> "Draws":
        """The draws of an epoch of training, or (None) of evaluation and prediction; seeds count modulo 2**64."""
        words = torch.tensor([_to_signed(seed), 0 if epoch is None else _to_signed(epoch + 1)])
        return Draws(_splitmix64(_splitmix64(words[0]) ^ words[1]).to(device))

    def uniform(
        self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], hop: int, k: int
    ) -> Float64[Tensor, "q k"]:
        """The first k numbers in [0, 1) of these queries in this hop, multiples of 2**-53."""
        when = (time + 0.0).view(torch.int64)  # -0.0 is the instant 0.0
        query = _splitmix64(_splitmix64(_splitmix64(self.key ^ node) ^ when) ^ hop)  # [q]
        slot = torch.arange(k, device=node.device)
        return _shift_right(_splitmix64(query[:, None] + slot * _GOLDEN), 11).double() * 2.0**-53


def _splitmix64(x: Int64[Tensor, "*s"]) -> Int64[Tensor, "*s"]:
    """The next output of SplitMix64 in state x: one-to-one, and every bit depends on every bit.

    Steele, Lea and Flood 2014, with Stafford's 13th finaliser.
    """
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Int64[Tensor, "*s"], bits: int) -> Int64[Tensor, "*s"]:
    """Shifted to the right with zeros moving in."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _to_signed(number: int) -> int:
    """Any integer modulo 2**64, as a signed one."""
    return (number + 2**63) % 2**64 - 2**63
