"""What each event adds to a logit: Shapley values by drawn orders, each of which adds up exactly.

Events come back into the history one after another; each is credited with what the logit moves when it comes. In
one order the steps sum up to the logit with all of them minus the logit with none, so in the mean over orders too.
Orders are drawn in pairs, one the other backwards: what came late in the one comes early in the other.

Legend: m subsets, n players, r pairs of orders.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.explain.removal import Game


@dataclass(frozen=True, slots=True)
class Shares:
    """What each player adds, its standard error over the pairs of orders, and the two ends; errors are nan for one."""

    value: Float64[Tensor, "n"]
    error: Float64[Tensor, "n"]
    base: float  # the logit with none of them
    logit: float  # with all


class Ledger:
    """A game that is asked about each subset once, and counts how often it was."""

    def __init__(self, game: Game) -> None:
        self.game, self._known = game, {}

    @property
    def asked(self) -> int:
        """How many subsets were scored."""
        return len(self._known)

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """The logit of each subset."""
        keys = [row.tobytes() for row in keep.numpy()]
        fresh = list({key: at for at, key in enumerate(keys) if key not in self._known}.items())
        found = self.game.logits(keep[[at for _, at in fresh]])
        self._known |= {key: float(value) for (key, _), value in zip(fresh, found, strict=True)}
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float64)

    def without(self, players: list[list[int]]) -> Float64[Tensor, "m"]:
        """The logit without each of these sets of players."""
        keep = torch.ones(len(players), len(self.game.players), dtype=torch.bool)
        for row, gone in zip(keep, players, strict=True):
            row[gone] = False
        return self.logits(keep)


def shares(ledger: Ledger, pairs: int, seed: int) -> Shares:
    """Shapley values from so many pairs of orders, or as many as the game allows; they are a function of the seed."""
    n, pairs = len(ledger.game.players), min(pairs, ledger.game.orders)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(n, generator=rng) for _ in range(pairs)])
    orders = torch.stack([drawn, drawn.flip(1)], dim=1).view(2 * pairs, n)
    steps = _growing(orders)  # [2r n+1 n]
    logit = ledger.logits(steps.view(-1, n)).view(2 * pairs, n + 1)
    moved = torch.zeros(2 * pairs, n, dtype=torch.float64).scatter_(1, orders, logit.diff(dim=1))
    each = moved.view(pairs, 2, n).mean(dim=1)
    error = each.std(dim=0) / pairs**0.5 if pairs > 1 else torch.full((n,), torch.nan, dtype=torch.float64)
    return Shares(each.mean(dim=0), error, float(logit[0, 0]), float(logit[0, -1]))


def _growing(orders: Int64[Tensor, "r n"]) -> Bool[Tensor, "r n1 n"]:
    """For each order its n + 1 subsets, from nobody to everybody."""
    r, n = orders.shape
    place = torch.empty_like(orders).scatter_(1, orders, torch.arange(n).expand(r, n))
    return place[:, None] < torch.arange(n + 1)[:, None]
