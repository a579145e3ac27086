"""Counter-based random numbers: each draw is a function of (seed, epoch, node, time, hop, slot) and of nothing else.

There is no generator state, so a query draws the same numbers in any batch and in any order. Integers wrap around at
64 bits on every device, so a CPU and a GPU draw the same bits (decision 022).

Legend: q queries, k slots of one hop of a query, n training events.
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
    """The random numbers of one run, or of one of its training epochs.

    Captured CUDA graphs read `key`, so a new epoch must copy its key into the tensor in place.
    """

    key: Int64[Tensor, ""]

    @staticmethod
    def from_seed(seed: int, epoch: int | None = None, device: torch.device | str = "cpu") -> "Draws":
        """Return the draws of a training epoch, or of evaluation and prediction if `epoch` is None.

        Seeds are taken modulo 2**64.
        """
        # epoch + 1: evaluation (word 0) must not share its draws with epoch 0
        words = torch.tensor([_to_signed(seed), 0 if epoch is None else _to_signed(epoch + 1)])
        return Draws(_splitmix64(_splitmix64(words[0]) ^ words[1]).to(device))

    def uniform(
        self, node: Int64[Tensor, "q"], time: Float64[Tensor, "q"], hop: int, k: int
    ) -> Float64[Tensor, "q k"]:
        """Return the first `k` numbers in [0, 1) of each query in this hop, as multiples of 2**-53."""
        when = (time + 0.0).view(torch.int64)  # adding 0.0 turns -0.0 into 0.0: both are the same instant
        query = _splitmix64(_splitmix64(_splitmix64(self.key ^ node) ^ when) ^ hop)  # [q]
        slot = torch.arange(k, device=node.device)
        return _shift_right(_splitmix64(query[:, None] + slot * _GOLDEN), 11).double() * 2.0**-53


def draw_batch_order(seed: int, epoch: int, count: int, size: int) -> Int64[Tensor, "n"]:
    """Return `count` training events with their full batches of `size` in random order, a short last one at the end.

    It is a function of seed and epoch.
    """
    events, full = torch.arange(count), count // size
    key = Draws.from_seed(seed, epoch).key
    order = torch.argsort(_splitmix64(_splitmix64(key) + torch.arange(full) * _GOLDEN), stable=True)
    return torch.cat([events[: full * size].view(full, size)[order].flatten(), events[full * size :]])


def _splitmix64(x: Int64[Tensor, "*s"]) -> Int64[Tensor, "*s"]:
    """Return the next output of SplitMix64 in state `x`, a bijection in which every bit depends on every bit.

    Steele, Lea and Flood 2014, with Stafford's 13th finaliser.
    """
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Int64[Tensor, "*s"], bits: int) -> Int64[Tensor, "*s"]:
    """Shift right with zeros moving in; `>>` alone would copy the sign bit."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _to_signed(number: int) -> int:
    """Return an integer modulo 2**64 as a signed 64-bit one."""
    return (number + 2**63) % 2**64 - 2**63
