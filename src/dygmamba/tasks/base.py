"""Interface of a task: the queries of training events, their loss, and the metrics that choose the best weights.

Legend: k events, b events of a batch, p pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch
from dygmamba.history.view import LabelledPairs


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Queries with known labels, for validation or test; all tensors are on the CPU.

    Attributes:
        about: Fields of a result row that describe the set, such as split and setting.
        events: Events (rows of the stream) that the queries are about, in time order.
        earlier: Events of the periods before, in order.
        pairs: The queries with their labels.
        event_index: For each pair, the index into `events` of the event it belongs to.
    """

    about: dict[str, str]
    events: Int64[Tensor, "k"]
    earlier: tuple[Int64[Tensor, "_"], ...]
    pairs: LabelledPairs
    event_index: Int64[Tensor, "p"]


@runtime_checkable
class Task(Protocol):
    """A learning task as the training loop sees it, independent of the model."""

    @property
    def validation(self) -> EvaluationSet | None:
        """Queries that decide which epoch is best; None if every event is trained on."""
        ...

    @property
    def needs_joint_pairs(self) -> bool:
        """Whether all pairs of an event must be in one pass, because the loss is not a sum over pairs."""
        ...

    def draw_negatives(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """Draw a number for each training event that determines its negatives; the same on every device."""
        ...

    def build_queries(self, events: EventBatch, others: Int64[Tensor, "b"]) -> LabelledPairs:
        """Return the queries of a batch of training events, given what `draw_negatives` drew for them."""
        ...

    def loss(self, logits: Float32[Tensor, "p *c"], label: Float32[Tensor, "p"]) -> Tensor:
        """Return the sum of the losses of all pairs."""
        ...

    def metrics(self, score: Float[Tensor, "p *c"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        """Return the metrics of scores on an evaluation set."""
        ...

    def is_better(self, metrics: dict[str, Any], best: Mapping[str, float]) -> bool:
        """Return whether these validation metrics are at least as good as those of the best epoch so far."""
        ...
