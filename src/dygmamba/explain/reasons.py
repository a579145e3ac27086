"""Why the trees score a pair as they do: exact Shapley values of every number they look at, in words.

Legend: p pairs, f numbers per pair, k of them kept.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from dygmamba.engine.stream import Stream
from dygmamba.errors import ConfigError
from dygmamba.models.base import Scorer
from dygmamba.models.trees import BoostedTrees
from dygmamba.ops.trees import Trees, contributions
from dygmamba.sampling.view import PairBatch


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
        """For each pair the k numbers that move its logit most, in words, and by how much."""
        order = self.contribution.abs().argsort(dim=1, descending=True, stable=True)[:, :k]
        found = torch.gather(self.contribution, 1, order)
        return [
            [(self.names[name], by) for name, by in zip(names, amounts, strict=True)]
            for names, amounts in zip(order.tolist(), found.tolist(), strict=True)
        ]


def reasons(scorer: Scorer, stream: Stream, pairs: PairBatch) -> Reasons:
    """Why these pairs have their scores, from what is strictly earlier than each."""
    if not isinstance(scorer, BoostedTrees):
        raise ConfigError("exact reasons are those of the model 'trees'; this one is another")
    numbers = scorer.numbers(stream.view(pairs, scorer.requests))
    trees = Trees(*(column.cpu() for column in scorer.trees().columns))
    found, expected = contributions(trees, numbers.cpu())
    return Reasons(scorer.names, numbers.cpu().double(), found, float(scorer.base + expected))
