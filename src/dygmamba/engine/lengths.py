"""How long a look-up must be, and how many pairs are read in one pass.

Legend: p pairs, r of them read together.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.sampling.view import Request

# tokens of one pass without gradients: they bound the memory and change no score; a CPU gains nothing from more
TOKENS_PER_PASS = {"cpu": 16_000, "cuda": 64_000}


def rounded(length: int, most: int) -> int:
    """The next of four steps per octave, at least 16, so that few lengths occur."""
    step = max(4, 1 << max(0, (length - 1).bit_length() - 3))
    return min(most, max(16, -(-length // step) * step))


def pairs_per_pass(requests: tuple[Request, ...], device: torch.device, tokens: int | None = None) -> int:
    """As many pairs as keep one pass without gradients within so many tokens."""
    return _pairs(sum(request.tokens for request in requests), tokens or TOKENS_PER_PASS[device.type])


def _pairs(length: int, tokens: int) -> int:
    return max(1, tokens // (2 * max(length, 1)))


def by_length(
    lengths: Int64[Tensor, "p"], most: int, device: torch.device, tokens: int | None = None
) -> Iterator[tuple[Int64[Tensor, "r"], int]]:
    """Pairs in parts of at most so many tokens, the longest histories first, each with its look-up length."""
    ranked = lengths.sort(descending=True, stable=True)
    longest, start = ranked.values.tolist(), 0
    while start < len(longest):
        length = rounded(longest[start], most)
        stop = start + _pairs(length, tokens or TOKENS_PER_PASS[device.type])
        yield ranked.indices[start:stop], length
        start = stop
