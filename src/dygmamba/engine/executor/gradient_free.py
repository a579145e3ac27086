"""Steps of a model that learns in rounds: from a table of all training questions, made once.

Legend: k training events, b of a pass.

A model that has nothing to learn, such as a sum of grown trees: an epoch of it has no step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError
from dygmamba.engine.executor.eager import Batch, Epoch, QueryBuilder
from dygmamba.engine.scoring import Advance, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.models.base import RoundLearner
from dygmamba.sampling.view import PairView

EVENTS_PER_PASS = 4096  # training events that are looked up in one pass; changes no bit


class RoundExecutor:
    """A step is one round. The other nodes beside the training events are those of as many first epochs."""

    optimizer = None  # there is no gradient to follow

    def __init__(
        self, asking: QueryBuilder, scorer: RoundLearner, stream: Stream, epoch: Callable[[int], Epoch]
    ) -> None:
        self.asking, self.scorer, self.stream, self.epoch = asking, scorer, stream, epoch
        self._lesson: Any = None

    @property
    def steps(self) -> int:
        """Rounds of an epoch."""
        return self.scorer.rounds

    @property
    def unstudied(self) -> int:
        """Training questions that are still to be looked up."""
        return 0 if self._lesson is not None else (1 + self.scorer.negatives) * len(self.stream.train)

    def study(self, advance: Advance) -> None:
        """Look up what all rounds learn from."""

        def told() -> Iterator[PairView]:
            for view in self._views():
                yield view
                advance(len(view.pairs))

        self._lesson = self.scorer.study(told(), self.asking.task.offset)

    def catch_up(self, batch: Batch) -> None:
        """There is no memory."""

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """One round; the mean loss before it."""
        if self._lesson is None:
            self.study(unwatched)
        with torch.no_grad():
            return self.scorer.learn(self._lesson)

    def _views(self) -> Iterator[PairView]:
        """Each training event with its other nodes; an event itself is asked about once."""
        stream, requests = self.stream, getattr(self.scorer, "requests")  # noqa: B009
        for number in range(self.scorer.negatives):
            epoch = self.epoch(number)
            for events, others in zip(
                stream.train.split(EVENTS_PER_PASS), epoch.others.split(EVENTS_PER_PASS), strict=True
            ):
                pairs = self.asking(events, others)
                asked = torch.ones_like(pairs.label) if number == 0 else 1 - pairs.label
                chosen = pairs.shared(asked.nonzero()[:, 0], stream.store.num_nodes)
                yield stream.training_view(chosen, requests, epoch.draws)


class NoOpExecutor:
    """No weights, no optimizer, no steps."""

    optimizer: torch.optim.Optimizer | None = None
    steps = 0
    unstudied = 0

    def study(self, advance: Advance) -> None:
        """There is nothing to look up."""

    def catch_up(self, batch: Batch) -> None:
        """There is no memory."""

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """No batch is ever asked for."""
        raise ConfigError(
            f"a model without weights cannot learn from step {batch.number}; train a model that has some"
        )


def has_no_trainable_parameters(scorer: nn.Module) -> bool:
    """Whether no weight of it follows a gradient."""
    return not any(parameter.requires_grad for parameter in scorer.parameters())
