"""Which pairs of a batch are read together, so that short histories do not pay for long ones.

A batch is sorted by the longer history of each pair and cut into parts; each part is looked up only as far back as
its longest history, rounded up so that few lengths occur. A score depends on its pair alone, so parts change
what a step costs and nothing of what it computes but the order of rounding and of dropout's draws.

Legend: s steps of an epoch, b events of a step, r pairs of a step, k training events.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from jaxtyping import Int64
from torch import Tensor

from dygmamba.engine.lengths import rounded

Shares = tuple[int, ...]  # how a batch is cut: the parts' shares of it, the longest histories first
WHOLE: Shares = (20,)
CHOICES: tuple[Shares, ...] = (WHOLE, (10, 10), (5, 5, 5, 5), (2, 4, 6, 8), (2,) * 10)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a part costs a device, in entries of history computed."""

    issue: int  # to issue one more part
    narrow: int  # pairs that are computed as quickly as fewer


COSTS = {
    "cuda": Costs(issue=4000, narrow=40),
    "cpu": Costs(issue=400, narrow=1),
}  # each measured, docs/log.md


@dataclass(frozen=True, slots=True)
class Plan:
    """The full batches of an epoch: their pairs, longest history first, and the parts' sizes and look-up lengths."""

    order: Int64[Tensor, "s r"]
    sizes: tuple[int, ...]
    lengths: list[list[int]]


def part_sizes(pairs: int, shares: Shares) -> tuple[int, ...]:
    """Pairs of each part; parts without any are left out."""
    ends = [pairs * total // sum(shares) for total in accumulate(shares)]
    return tuple(stop - start for start, stop in pairwise([0, *ends]) if stop > start)


def arrange(lengths: Int64[Tensor, "s r"], shares: Shares, most: int) -> Plan:
    """An epoch with every step cut like this."""
    ranked = lengths.sort(dim=1, descending=True, stable=True)
    sizes = part_sizes(lengths.shape[1], shares)
    longest = ranked.values[:, list(accumulate(sizes[:-1], initial=0))].tolist()
    return Plan(ranked.indices, sizes, [[rounded(length, most) for length in row] for row in longest])


def best_shares(lengths: Int64[Tensor, "s r"], most: int, costs: Costs) -> Shares:
    """The cut that makes an epoch cheapest on a device with these costs."""

    def cost(shares: Shares) -> int:
        plan = arrange(lengths, shares, most)
        return sum(
            max(size, costs.narrow) * length + costs.issue
            for row in plan.lengths
            for size, length in zip(plan.sizes, row, strict=True)
        )

    return min(CHOICES, key=cost) if len(lengths) else WHOLE
