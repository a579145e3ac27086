"""Executor without gradients, of models that learn in rounds from one table."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from dygmamba.core.progress import Advance, no_advance
from dygmamba.engine.executor.eager import Batch, Epoch, QueryBuilder
from dygmamba.engine.stream import Stream
from dygmamba.history.view import LabelledView
from dygmamba.models.base import Scorer

EVENTS_PER_PASS = 4096  # training events looked up in one pass; does not change any result


class RoundExecutor:
    """Executor of a model that learns in rounds: a step is one round on a table of all training queries.

    The table has the negatives of as many first epochs as the model wants; if an event competes with its candidates,
    those of the first epoch only. A model without trainable weights, such as a blend of trees, has no rounds.
    """

    optimizer = None  # no gradients

    def __init__(
        self, build_queries: QueryBuilder, scorer: Scorer, stream: Stream, epoch: Callable[[int], Epoch]
    ) -> None:
        self.build_queries, self.scorer, self.stream, self.epoch = build_queries, scorer, stream, epoch
        self.is_grouped = build_queries.task.needs_joint_pairs
        self._table: Any = None

    @property
    def steps(self) -> int:
        return self.scorer.rounds_per_epoch

    @property
    def pending_queries(self) -> int:
        if self._table is not None:
            return 0
        pairs = len(self.build_queries(self.stream.train[:1], self.epoch(0).others[:1]))
        return len(self.stream.train) * (pairs if self.is_grouped else 1 + self.scorer.negatives)

    def build_table(self, advance: Advance) -> None:
        """Look up all training queries and let the model build its table from them."""

        def watched_queries() -> Iterator[LabelledView]:
            for queries in self._look_up():
                yield queries
                advance(len(queries.pairs))

        study = self.scorer.study_groups if self.is_grouped else self.scorer.study
        self._table = study(watched_queries())

    def catch_up(self, batch: Batch) -> None:
        """Do nothing: there is no memory."""

    def step(self, batch: Batch) -> Float32[Tensor, ""]:
        """Learn one round; return the mean loss before it."""
        if self._table is None:
            self.build_table(no_advance)
        with torch.no_grad():
            return self.scorer.learn(self._table)

    def _look_up(self) -> Iterator[LabelledView]:
        """Iterate over the training events with their negatives; positives occur once, in the first epoch."""
        stream, requests = self.stream, self.scorer.requests
        for number in range(1 if self.is_grouped else max(1, self.scorer.negatives)):
            epoch = self.epoch(number)
            for events, others in zip(
                epoch.events.split(EVENTS_PER_PASS), epoch.others.split(EVENTS_PER_PASS), strict=True
            ):
                pairs = self.build_queries(events, others)
                wanted = torch.ones_like(pairs.label) if number == 0 else 1 - pairs.label
                chosen = pairs.select(wanted.nonzero()[:, 0])
                yield LabelledView(stream.training_view(chosen, requests, epoch.draws), chosen)
