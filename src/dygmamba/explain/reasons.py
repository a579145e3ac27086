"""Why the trees score a pair as they do: exact Shapley values of every number they look at, in words.

Legend: p pairs, f numbers per pair, k of them kept.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from dygmamba.data.statistics import as_duration, looks_like_epoch
from dygmamba.engine.stream import Stream
from dygmamba.errors import ConfigError
from dygmamba.models.base import Scorer
from dygmamba.models.trees import BoostedTrees
from dygmamba.ops.trees import Trees, contributions
from dygmamba.sampling.view import PairBatch

FADING = ", fading over "


@dataclass(frozen=True, slots=True)
class Reasons:
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
        kinds = [name.split(FADING)[0] for name in self.names]
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


def reasons(scorer: Scorer, stream: Stream, pairs: PairBatch) -> Reasons:
    """Why these pairs have their scores, from what is strictly earlier than each."""
    if not isinstance(scorer, BoostedTrees):
        raise ConfigError("exact reasons are those of the model 'trees'; this one is another")
    numbers = scorer.numbers(stream.view(pairs, scorer.requests))
    trees = Trees(*(column.cpu() for column in scorer.trees().columns))
    found, expected = contributions(trees, numbers.cpu())
    names = [_in_words(name, scorer.request.scales, stream) for name in scorer.names]
    return Reasons(names, numbers.cpu().double(), found, float(scorer.base + expected))


def _in_words(name: str, scales: tuple[float, ...], stream: Stream) -> str:
    """The name of a number; where times are seconds its scale is a duration."""
    kind, fading, given = name.partition(FADING)
    time = stream.store.time
    if not fading or not looks_like_epoch(float(time[0]), float(time[-1])):
        return name
    scale = min(scales, key=lambda scale: abs(scale - float(given)))
    return f"{kind}{FADING}{as_duration(scale)}"
