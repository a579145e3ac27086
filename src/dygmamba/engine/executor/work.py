"""What an optimizer step is made of, however it is issued: its view, its loss, the update, what a memory is told.

Legend: k training events, b of a step, p pairs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.stream import Stream
from dygmamba.models.base import Scorer
from dygmamba.process_wide import float32_products
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import PairView
from dygmamba.tasks.base import Task

PRECISIONS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "float32": lambda device: nullcontext(),
    "tf32": lambda device: float32_products("high") if device == "cuda" else nullcontext(),
    "bf16": lambda device: torch.autocast(device, dtype=torch.bfloat16),
}


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch's number, the other node asked about beside each training event, and its draws of neighbours."""

    number: int
    others: Int64[Tensor, "k"]
    draws: Draws


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of an epoch, and the cells of training events that a memory is told of before it."""

    epoch: Epoch
    number: int
    told: range


class Work:
    """A model under training: its data, its optimizer, and the pieces that every way of issuing a step is made of."""

    def __init__(self, task: Task, scorer: nn.Module, stream: Stream, config: FitConfig) -> None:
        assert isinstance(scorer, Scorer)
        self.task, self.scorer, self.stream, self.config = task, scorer, stream, config
        self.device = stream.device.type
        self.trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        on_gpu = self.device == "cuda"
        self.optimizer = torch.optim.Adam(
            self.trained, lr=config.lr, capturable=on_gpu and config.graphs, fused=on_gpu or None
        )
        self.draws = Draws.of(
            0, 0, stream.device
        )  # captured graphs read its key, so an epoch's is copied into it

    @property
    def full(self) -> int:
        """Full batches of an epoch."""
        return len(self.stream.train) // self.config.batch

    def rows(self, number: int) -> slice:
        """Which of the training events a step, or a cell, takes."""
        return slice(number * self.config.batch, (number + 1) * self.config.batch)

    def view(self, events: Int64[Tensor, "b"], others: Int64[Tensor, "b"]) -> PairView:
        """What a step asks, and what the model may see for it."""
        pairs = self.task.questions(self.stream.events.select(events), others)
        return self.stream.training_view(pairs, self.scorer.requests, self.draws)

    def loss(self, view: PairView) -> Tensor:
        """The sum over the pairs of a view."""
        return self.task.loss(self.scorer(view).float(), view.pairs.label)

    def precision(self) -> AbstractContextManager[Any]:
        """Inside, products are computed as the run wants them."""
        return PRECISIONS[self.config.precision](self.device)

    def tell(self, events: Int64[Tensor, "b"]) -> None:
        """Let the memory take in these events."""
        self.scorer.observe(self.stream.events.select(events))
