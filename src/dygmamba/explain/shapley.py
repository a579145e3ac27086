"""What each event adds to a logit: Shapley values by drawn orders, each of which adds up exactly.

Events come back into the history one after another; each is credited with what the logit moves when it comes. In
one order the steps sum up to the logit with all of them minus the logit with none, so in the mean over orders too.
Orders are drawn in pairs, one the other backwards: what came late in the one comes early in the other.

Legend: m subsets, n players, r pairs of orders.

Why the trees score a pair as they do: exact Shapley values of every number they look at, in words.

Legend: p pairs, f numbers per pair, k of them kept.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.statistics import format_duration, looks_like_epoch_seconds
from dygmamba.engine.stream import Stream
from dygmamba.explain.event_removal import RemovalGame
from dygmamba.models.base import Scorer
from dygmamba.models.trees import BoostedTrees
from dygmamba.ops.trees import Trees, shapley_values
from dygmamba.sampling.view import PairBatch


@dataclass(frozen=True, slots=True)
class ShapleyValues:
    """What each player adds, its standard error over the pairs of orders, and the two ends; errors are nan for one."""

    value: Float64[Tensor, "n"]
    error: Float64[Tensor, "n"]
    base: float  # the logit with none of them
    logit: float  # with all


class CachedGame:
    """A game that is asked about each subset once, and counts how often it was."""

    def __init__(self, game: RemovalGame) -> None:
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


def estimate_shapley(ledger: CachedGame, pairs: int, seed: int) -> ShapleyValues:
    """Shapley values from so many pairs of orders, or as many as the game allows; they are a function of the seed."""
    n, pairs = len(ledger.game.players), min(pairs, ledger.game.orders)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(n, generator=rng) for _ in range(pairs)])
    orders = torch.stack([drawn, drawn.flip(1)], dim=1).view(2 * pairs, n)
    steps = _growing_subsets(orders)  # [2r n+1 n]
    logit = ledger.logits(steps.view(-1, n)).view(2 * pairs, n + 1)
    moved = torch.zeros(2 * pairs, n, dtype=torch.float64).scatter_(1, orders, logit.diff(dim=1))
    each = moved.view(pairs, 2, n).mean(dim=1)
    error = each.std(dim=0) / pairs**0.5 if pairs > 1 else torch.full((n,), torch.nan, dtype=torch.float64)
    return ShapleyValues(each.mean(dim=0), error, float(logit[0, 0]), float(logit[0, -1]))


def _growing_subsets(orders: Int64[Tensor, "r n"]) -> Bool[Tensor, "r n1 n"]:
    """For each order its n + 1 subsets, from nobody to everybody."""
    r, n = orders.shape
    place = torch.empty_like(orders).scatter_(1, orders, torch.arange(n).expand(r, n))
    return place[:, None] < torch.arange(n + 1)[:, None]


DECAY_MARKER = ", fading over "


@dataclass(frozen=True, slots=True)
class TreeAttribution:
    """What each number adds to each pair's logit, counted from `base`: with it they add up to the logit."""

    names: list[str]
    value: Float64[Tensor, "p f"]  # the numbers themselves
    contribution: Float64[Tensor, "p f"]
    base: float

    @property
    def logit(self) -> Float64[Tensor, "p"]:
        """The scores that are explained."""
        return self.base + self.contribution.sum(dim=1)

    def strongest(self, k: int) -> list[list[tuple[str, float]]]:
        """For each pair the k kinds of numbers that move its logit most, in words, and by how much.

        The same count on several scales of time is one kind: what they add is added up.
        """
        kinds = [name.split(DECAY_MARKER)[0] for name in self.names]
        names = list(dict.fromkeys(kinds))
        place = torch.tensor([names.index(kind) for kind in kinds])
        moved = self.contribution.new_zeros(len(self.contribution), len(names))
        moved.index_add_(1, place, self.contribution)
        order = moved.abs().argsort(dim=1, descending=True, stable=True)[:, :k]
        found = torch.gather(moved, 1, order)
        return [
            [(names[kind], by) for kind, by in zip(chosen, amounts, strict=True)]
            for chosen, amounts in zip(order.tolist(), found.tolist(), strict=True)
        ]


def attribute_trees(scorer: Scorer, stream: Stream, pairs: PairBatch) -> TreeAttribution:
    """Why these pairs have their scores, from what is strictly earlier than each."""
    if not isinstance(scorer, BoostedTrees):
        raise ConfigError("exact reasons are those of the model 'trees'; this one is another")
    numbers = scorer.numbers(stream.view(pairs, scorer.requests))
    trees = Trees(*(column.cpu() for column in scorer.trees().columns))
    found, expected = shapley_values(trees, numbers.cpu())
    names = [_describe_number(name, scorer.request.scales, stream) for name in scorer.names]
    return TreeAttribution(names, numbers.cpu().double(), found, float(scorer.base + expected))


def _describe_number(name: str, scales: tuple[float, ...], stream: Stream) -> str:
    """The name of a number; where times are seconds its scale is a duration."""
    kind, fading, given = name.partition(DECAY_MARKER)
    time = stream.store.time
    if not fading or not looks_like_epoch_seconds(float(time[0]), float(time[-1])):
        return name
    scale = min(scales, key=lambda scale: abs(scale - float(given)))
    return f"{kind}{DECAY_MARKER}{format_duration(scale)}"
