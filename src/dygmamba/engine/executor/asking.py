"""What is asked of training events, whichever way a step is issued: the task's questions, by the run's rule.

Legend: e events, b of a step or a pass.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.engine.clock import Clock, Rule
from dygmamba.engine.stream import Stream
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions of any training events; by the rule `batch` tables know of nothing since the batch began."""

    task: Task
    stream: Stream
    known: Float64[Tensor, "e"] | None  # by event, when its batch began; on the device

    @staticmethod
    def of(task: Task, stream: Stream, rule: Rule) -> "Asking":
        """By a rule: training is cut into batches from its beginning."""
        train = stream.split.train
        clock = Clock.of(stream.store, (train,), rule.cell)
        began = clock.known(rule.visible, torch.arange(len(train)), clock.time)
        if began is None:
            return Asking(task, stream, None)
        known = torch.zeros(len(stream.store), dtype=torch.float64)
        known[train] = began
        return Asking(task, stream, known.to(stream.device))

    def __call__(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> PairBatch:
        """A task asks of all events once, then perhaps again, beside the same events in the same order."""
        asked = self.task.questions(self.stream.events.select(events), others)
        if self.known is None:
            return asked
        return asked.as_of(self.known[events].repeat(len(asked) // max(1, len(events))))
