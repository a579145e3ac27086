"""Shapley values: what each past event adds to a logit (estimated), and each feature of boosted trees (exact).

Past events return to the history one after another, in a random order; each is credited with the change of the logit.
In every order the credits add up to the logit with all events minus the logit with none, and so does their mean over
orders. Orders are drawn in antithetic pairs (one is the other reversed), so that an event that comes late in one comes
early in the other.

Shapes: m subsets, n players, r orders, p pairs, f features.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.times import format_duration, looks_like_epoch_seconds
from dygmamba.engine.stream import Stream
from dygmamba.explain.event_removal import RemovalGame
from dygmamba.history.view import PairBatch
from dygmamba.models.base import Scorer
from dygmamba.models.trees import BoostedTrees
from dygmamba.ops.trees import Trees, shapley_values

DECAY_MARKER = ", fading over "  # in the name of a decayed count, before its time scale


@dataclass(frozen=True, slots=True)
class ShapleyValues:
    """Contribution of each player to a logit."""

    value: Float64[Tensor, "n"]
    error: Float64[Tensor, "n"]  # standard error over the pairs of orders; nan for a single pair
    base: float  # the logit without any player
    logit: float  # the logit with all players


class CachedGame:
    """A removal game that scores each subset of players once."""

    def __init__(self, game: RemovalGame) -> None:
        self.game, self._known = game, {}

    @property
    def num_scored(self) -> int:
        return len(self._known)

    def logits(self, keep: Bool[Tensor, "m n"]) -> Float64[Tensor, "m"]:
        """Return the logit of each subset."""
        keys = [row.tobytes() for row in keep.numpy()]
        new = list({key: row for row, key in enumerate(keys) if key not in self._known}.items())
        logits = self.game.logits(keep[[row for _, row in new]])
        self._known |= {key: float(value) for (key, _), value in zip(new, logits, strict=True)}
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float64)

    def without(self, players: list[list[int]]) -> Float64[Tensor, "m"]:
        """Return the logit without each of these sets of players."""
        keep = torch.ones(len(players), len(self.game.players), dtype=torch.bool)
        for row, removed in zip(keep, players, strict=True):
            row[removed] = False
        return self.logits(keep)


def estimate_shapley(game: CachedGame, pairs: int, seed: int) -> ShapleyValues:
    """Estimate Shapley values from random orders.

    Args:
        game: The players and the logit of each subset.
        pairs: Antithetic pairs of orders; the game may allow fewer.
        seed: Of the orders.
    """
    n, pairs = len(game.game.players), min(pairs, game.game.orders)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(n, generator=rng) for _ in range(pairs)])
    orders = torch.stack([drawn, drawn.flip(1)], dim=1).view(2 * pairs, n)
    subsets = _growing_subsets(orders)  # [2r n+1 n]
    logit = game.logits(subsets.view(-1, n)).view(2 * pairs, n + 1)
    credit = torch.zeros(2 * pairs, n, dtype=torch.float64).scatter_(1, orders, logit.diff(dim=1))
    # the two orders of a pair depend on each other, so only their mean is a sample
    sample = credit.view(pairs, 2, n).mean(dim=1)
    error = sample.std(dim=0) / pairs**0.5 if pairs > 1 else torch.full((n,), torch.nan, dtype=torch.float64)
    return ShapleyValues(sample.mean(dim=0), error, float(logit[0, 0]), float(logit[0, -1]))


def _growing_subsets(orders: Int64[Tensor, "r n"]) -> Bool[Tensor, "r n1 n"]:
    """Return the n + 1 subsets of each order, from no player to all."""
    r, n = orders.shape
    place = torch.empty_like(orders).scatter_(1, orders, torch.arange(n).expand(r, n))
    return place[:, None] < torch.arange(n + 1)[:, None]


@dataclass(frozen=True, slots=True)
class TreeAttribution:
    """Exact Shapley values of the features of boosted trees: `base` plus the contributions is the logit."""

    names: list[str]
    value: Float64[Tensor, "p f"]  # of the features
    contribution: Float64[Tensor, "p f"]
    base: float

    def strongest(self, k: int) -> list[list[tuple[str, float]]]:
        """Return the name and contribution of the k strongest kinds of features, for each pair.

        The same count on several time scales is one kind, whose contributions are added up.
        """
        kind_of = [name.split(DECAY_MARKER)[0] for name in self.names]
        kinds = list(dict.fromkeys(kind_of))
        index = torch.tensor([kinds.index(kind) for kind in kind_of])
        total = self.contribution.new_zeros(len(self.contribution), len(kinds))
        total.index_add_(1, index, self.contribution)
        order = total.abs().argsort(dim=1, descending=True, stable=True)[:, :k]
        amounts = torch.gather(total, 1, order)
        return [
            [(kinds[kind], amount) for kind, amount in zip(*row, strict=True)]
            for row in zip(order.tolist(), amounts.tolist(), strict=True)
        ]


def attribute_trees(scorer: Scorer, stream: Stream, pairs: PairBatch) -> TreeAttribution:
    """Compute the Shapley values of the features of each pair, from strictly earlier events."""
    if not isinstance(scorer, BoostedTrees):
        raise ConfigError(
            "only the features of boosted trees have exact Shapley values; give a run of 'trees'",
            code="model-without-features",
        )
    numbers = scorer.features(stream.view(pairs, scorer.requests))
    trees = Trees(*(column.cpu() for column in scorer.trees().columns))
    contribution, expected = shapley_values(trees, numbers.cpu())
    scales = tuple(scale for request in scorer.requests for scale in getattr(request, "scales", ()))
    names = [_describe_feature(name, scales, stream) for name in scorer.names]
    return TreeAttribution(names, numbers.cpu().double(), contribution, float(scorer.base + expected))


def _describe_feature(name: str, scales: tuple[float, ...], stream: Stream) -> str:
    """Write the time scale in the name of a decayed count as a duration if times are seconds."""
    kind, marker, scale_text = name.partition(DECAY_MARKER)
    time = stream.store.time
    if not marker or not looks_like_epoch_seconds(float(time[0]), float(time[-1])):
        return name
    # the name has a rounded scale
    scale = min(scales, key=lambda scale: abs(scale - float(scale_text)))
    return f"{kind}{DECAY_MARKER}{format_duration(scale)}"
