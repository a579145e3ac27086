"""Buckets of pairs with histories of similar length, so that short histories are not padded to long ones.

Pairs are sorted by the longer history of their two nodes and cut into buckets. Each bucket is looked up only as far
back as its longest history, rounded up so that few different lengths occur. A score depends on its pair alone, so
buckets change the cost of a pass and nothing of what it computes, except the order of rounding and of dropout masks.

Legend: p pairs, s steps of an epoch, r pairs of a step or of a bucket.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.history.view import NeighborRequest, Request

# Tokens of one pass without gradients. They bound the memory and change no score; more gain nothing on a CPU.
TOKENS_PER_PASS = {"cpu": 16_000, "cuda": 64_000}
# Of a scorer that reads tables and no sequence, such as trees: its passes are short, and what they share (the nodes of
# the pairs, threads that are started) costs more than the rest of a small one.
TABLE_TOKENS_PER_PASS = {"cpu": 160_000, "cuda": 64_000}


def round_length(length: int, most: int) -> int:
    """Round up to one of four lengths per octave, at least 16 and at most `most`."""
    step = max(4, 1 << max(0, (length - 1).bit_length() - 3))
    return min(most, max(16, -(-length // step) * step))


def max_pairs_per_pass(requests: tuple[Request, ...], device: torch.device, tokens: int | None = None) -> int:
    """Return how many pairs fit into one pass without gradients; `tokens` defaults to what suits the device."""
    reads_tables = bool(requests) and not any(isinstance(request, NeighborRequest) for request in requests)
    most = (TABLE_TOKENS_PER_PASS if reads_tables else TOKENS_PER_PASS)[device.type]
    return _max_pairs(sum(request.tokens for request in requests), tokens or most)


def _max_pairs(length: int, tokens: int) -> int:
    return max(1, tokens // (2 * max(length, 1)))


def split_by_length(
    lengths: Int64[Tensor, "p"], most: int, device: torch.device, tokens: int | None = None
) -> Iterator[tuple[Int64[Tensor, "r"], int]]:
    """Iterate over (rows, look-up length) of buckets of at most `tokens` tokens, longest histories first."""
    ranked = lengths.sort(descending=True, stable=True)
    longest, start = ranked.values.tolist(), 0
    while start < len(longest):
        length = round_length(longest[start], most)
        stop = start + _max_pairs(length, tokens or TOKENS_PER_PASS[device.type])
        yield ranked.indices[start:stop], length
        start = stop


BucketShares = tuple[int, ...]  # relative sizes of a batch's buckets, longest histories first
SINGLE_BUCKET: BucketShares = (20,)
SHARE_CHOICES: tuple[BucketShares, ...] = (SINGLE_BUCKET, (10, 10), (5, 5, 5, 5), (2, 4, 6, 8), (2,) * 10)


@dataclass(frozen=True, slots=True)
class BucketCosts:
    """Cost of a bucket on a device, in entries of history."""

    issue: int  # overhead of one more bucket
    narrow: int  # fewer pairs than this take as long as this many


# each measured, docs/research/log.md
DEVICE_COSTS = {"cuda": BucketCosts(issue=4000, narrow=40), "cpu": BucketCosts(issue=400, narrow=1)}


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Buckets of the full batches of an epoch.

    Attributes:
        order: Pairs of each step, longest history first.
        sizes: Pairs of each bucket.
        lengths: Look-up length of each step's buckets.
    """

    order: Int64[Tensor, "s r"]
    sizes: tuple[int, ...]
    lengths: list[list[int]]


def bucket_sizes(pairs: int, shares: BucketShares) -> tuple[int, ...]:
    """Return the number of pairs of each bucket, without empty buckets."""
    ends = [pairs * total // sum(shares) for total in accumulate(shares)]
    return tuple(stop - start for start, stop in pairwise([0, *ends]) if stop > start)


def plan_buckets(lengths: Int64[Tensor, "s r"], shares: BucketShares, most: int) -> BucketPlan:
    """Plan the buckets of an epoch from the history length of every pair of every step."""
    ranked = lengths.sort(dim=1, descending=True, stable=True)
    sizes = bucket_sizes(lengths.shape[1], shares)
    longest = ranked.values[:, list(accumulate(sizes[:-1], initial=0))].tolist()
    return BucketPlan(
        ranked.indices, sizes, [[round_length(length, most) for length in row] for row in longest]
    )


def choose_shares(lengths: Int64[Tensor, "s r"], most: int, costs: BucketCosts) -> BucketShares:
    """Return the bucket shares with the lowest cost of an epoch."""

    def cost(shares: BucketShares) -> int:
        plan = plan_buckets(lengths, shares, most)
        return sum(
            max(size, costs.narrow) * length + costs.issue
            for row in plan.lengths
            for size, length in zip(plan.sizes, row, strict=True)
        )

    return min(SHARE_CHOICES, key=cost) if len(lengths) else SINGLE_BUCKET
