"""Which pairs of a batch are read together, so that short histories do not pay for long ones.

A batch is sorted by the longer history of each pair and cut into parts; each part is looked up only as far back as
its longest history, rounded up so that few lengths occur. A score depends on its pair alone, so parts change
what a step costs and nothing of what it computes but the order of rounding and of dropout's draws.

Legend: s steps of an epoch, b events of a step, r = 2 b pairs, k training events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.view import NeighborRequest

Cut = tuple[int, ...]  # twentieths of a batch, the longest histories first
CUTS: tuple[Cut, ...] = ((20,), (10, 10), (5, 5, 5, 5), (2, 2, 4, 4, 8), (2,) * 10)
ISSUE = 4000  # entries of history whose computation takes as long as issuing one more part (one H200, docs/log.md)
# tokens of one pass without gradients: they bound the memory and change no score; a CPU gains nothing from more
TOKENS = {"cpu": 16_000, "cuda": 64_000}
NARROW = 40  # fewer pairs than this do not fill the device: they take as long


@dataclass(frozen=True, slots=True)
class Epoch:
    """The full batches of an epoch: their pairs, longest history first, and the parts' sizes and look-up lengths."""

    order: Int64[Tensor, "s r"]
    sizes: tuple[int, ...]
    lengths: list[list[int]]


def pair_lengths(
    index: NeighborIndex,
    ends: tuple[Tensor, Tensor, Tensor],
    negative: Int64[Tensor, "k"],
    size: int,
    most: int,
) -> Int64[Tensor, "s r"]:
    """The longer history of each pair, at most `most`: a step's positives, then its negatives."""
    src, dst, time = ends
    count = [index.past(node, time)[1].clamp(max=most) for node in (src, dst, negative)]
    whole = len(src) // size
    pairs = torch.stack([torch.maximum(count[0], count[1]), torch.maximum(count[0], count[2])])
    return pairs[:, : whole * size].view(2, whole, size).transpose(0, 1).reshape(whole, 2 * size)


def rounded(length: int, most: int) -> int:
    """The next of four steps per octave, at least 16."""
    step = max(4, 1 << max(0, (length - 1).bit_length() - 3))
    return min(most, max(16, -(-length // step) * step))


def part_sizes(pairs: int, cut: Cut) -> tuple[int, ...]:
    """Pairs of each part; parts without any are left out."""
    ends = [pairs * total // sum(cut) for total in accumulate(cut)]
    return tuple(stop - start for start, stop in pairwise([0, *ends]) if stop > start)


def arrange(lengths: Int64[Tensor, "s r"], cut: Cut, most: int) -> Epoch:
    """An epoch with every step cut like this."""
    ranked = lengths.sort(dim=1, descending=True, stable=True)
    sizes = part_sizes(lengths.shape[1], cut)
    longest = ranked.values[:, list(accumulate(sizes[:-1], initial=0))].tolist()
    return Epoch(ranked.indices, sizes, [[rounded(length, most) for length in row] for row in longest])


def best_cut(lengths: Int64[Tensor, "s r"], most: int) -> Cut:
    """The cut that makes an epoch cheapest, counting what each part costs to issue."""

    def cost(cut: Cut) -> int:
        epoch = arrange(lengths, cut, most)
        return sum(
            max(size, NARROW) * length + ISSUE
            for row in epoch.lengths
            for size, length in zip(epoch.sizes, row, strict=True)
        )

    return min(CUTS, key=cost) if len(lengths) else CUTS[0]


def pairs_per_pass(requests: tuple[NeighborRequest, ...], device: torch.device) -> int:
    """As many pairs as keep one pass without gradients within the device's `TOKENS`."""
    return _pairs(sum(request.tokens for request in requests), TOKENS[device.type])


def _pairs(length: int, tokens: int) -> int:
    return max(1, tokens // (2 * max(length, 1)))


def by_length(
    lengths: Int64[Tensor, "p"], most: int, tokens: int
) -> Iterator[tuple[Int64[Tensor, "r"], int]]:
    """Pairs in parts of at most so many tokens, the longest histories first, each with its look-up length."""
    ranked = lengths.sort(descending=True, stable=True)
    longest, start = ranked.values.tolist(), 0
    while start < len(longest):
        length = rounded(longest[start], most)
        stop = start + _pairs(length, tokens)
        yield ranked.indices[start:stop], length
        start = stop
