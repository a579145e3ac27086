"""How long a look-up must be, and how many pairs are read in one pass.

Legend: p pairs, r of them read together.

Which pairs of a batch are read together, so that short histories do not pay for long ones.

A batch is sorted by the longer history of each pair and cut into parts; each part is looked up only as far back as
its longest history, rounded up so that few lengths occur. A score depends on its pair alone, so parts change
what a step costs and nothing of what it computes but the order of rounding and of dropout's draws.

Legend: s steps of an epoch, b events of a step, r pairs of a step, k training events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.sampling.view import Request

# tokens of one pass without gradients: they bound the memory and change no score; a CPU gains nothing from more
TOKENS_PER_PASS = {"cpu": 16_000, "cuda": 64_000}


def round_length(length: int, most: int) -> int:
    """The next of four steps per octave, at least 16, so that few lengths occur."""
    step = max(4, 1 << max(0, (length - 1).bit_length() - 3))
    return min(most, max(16, -(-length // step) * step))


def max_pairs_per_pass(requests: tuple[Request, ...], device: torch.device, tokens: int | None = None) -> int:
    """As many pairs as keep one pass without gradients within so many tokens."""
    return _max_pairs(sum(request.tokens for request in requests), tokens or TOKENS_PER_PASS[device.type])


def _max_pairs(length: int, tokens: int) -> int:
    return max(1, tokens // (2 * max(length, 1)))


def split_by_length(
    lengths: Int64[Tensor, "p"], most: int, device: torch.device, tokens: int | None = None
) -> Iterator[tuple[Int64[Tensor, "r"], int]]:
    """Pairs in parts of at most so many tokens, the longest histories first, each with its look-up length."""
    ranked = lengths.sort(descending=True, stable=True)
    longest, start = ranked.values.tolist(), 0
    while start < len(longest):
        length = round_length(longest[start], most)
        stop = start + _max_pairs(length, tokens or TOKENS_PER_PASS[device.type])
        yield ranked.indices[start:stop], length
        start = stop


BucketShares = tuple[int, ...]  # how a batch is cut: the parts' shares of it, the longest histories first
SINGLE_BUCKET: BucketShares = (20,)
SHARE_CHOICES: tuple[BucketShares, ...] = (SINGLE_BUCKET, (10, 10), (5, 5, 5, 5), (2, 4, 6, 8), (2,) * 10)


@dataclass(frozen=True, slots=True)
class BucketCosts:
    """What a part costs a device, in entries of history computed."""

    issue: int  # to issue one more part
    narrow: int  # pairs that are computed as quickly as fewer


DEVICE_COSTS = {
    "cuda": BucketCosts(issue=4000, narrow=40),
    "cpu": BucketCosts(issue=400, narrow=1),
}  # each measured, docs/log.md


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The full batches of an epoch: their pairs, longest history first, and the parts' sizes and look-up lengths."""

    order: Int64[Tensor, "s r"]
    sizes: tuple[int, ...]
    lengths: list[list[int]]


def bucket_sizes(pairs: int, shares: BucketShares) -> tuple[int, ...]:
    """Pairs of each part; parts without any are left out."""
    ends = [pairs * total // sum(shares) for total in accumulate(shares)]
    return tuple(stop - start for start, stop in pairwise([0, *ends]) if stop > start)


def plan_buckets(lengths: Int64[Tensor, "s r"], shares: BucketShares, most: int) -> BucketPlan:
    """An epoch with every step cut like this."""
    ranked = lengths.sort(dim=1, descending=True, stable=True)
    sizes = bucket_sizes(lengths.shape[1], shares)
    longest = ranked.values[:, list(accumulate(sizes[:-1], initial=0))].tolist()
    return BucketPlan(
        ranked.indices, sizes, [[round_length(length, most) for length in row] for row in longest]
    )


def choose_shares(lengths: Int64[Tensor, "s r"], most: int, costs: BucketCosts) -> BucketShares:
    """The cut that makes an epoch cheapest on a device with these costs."""

    def cost(shares: BucketShares) -> int:
        plan = plan_buckets(lengths, shares, most)
        return sum(
            max(size, costs.narrow) * length + costs.issue
            for row in plan.lengths
            for size, length in zip(plan.sizes, row, strict=True)
        )

    return min(SHARE_CHOICES, key=cost) if len(lengths) else SINGLE_BUCKET
