"""What a task is: what is asked of each event, how an answer is judged, and which weights are better.

Legend: k training events, b of a batch, p pairs.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dygmamba.data.events.event_store import EventBatch
from dygmamba.sampling.view import PairBatch


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Questions whose answers are known: which events they are about, and which periods came before these.

    `number` says beside which of the events a pair is asked. On the host; `about` is what a result row says of it.
    """

    about: dict[str, str]
    events: Int64[Tensor, "k"]
    earlier: tuple[Int64[Tensor, "_"], ...]
    pairs: PairBatch
    number: Int64[Tensor, "p"]


@runtime_checkable
class Task(Protocol):
    """What is learned, whatever the model; the training loop knows nothing else of it."""

    @property
    def validation(self) -> EvaluationSet | None:
        """What an epoch's weights are judged by; none where everything is trained on."""
        ...

    @property
    def together(self) -> bool:
        """Whether an event's pairs must be in one pass: the loss is no sum over pairs."""
        ...

    def others(self, seed: int, epoch: int) -> Int64[Tensor, "k"]:
        """For each training event the other node that is asked about beside it, the same on every device."""
        ...

    def questions(self, events: EventBatch, others: Int64[Tensor, "b"]) -> PairBatch:
        """What is asked of a batch of training events."""
        ...

    def offset(self, pairs: PairBatch) -> Float32[Tensor, "p"] | None:
        """What is added to logits before the loss of training takes them, and nowhere else; none where nothing is."""
        ...

    def loss(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """The sum over pairs."""
        ...

    def metrics(self, score: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> dict[str, Any]:
        """How good the scores of an exam are, `ap` and `auc` among it."""
        ...

    def better(self, found: dict[str, Any], best_ap: float, best_auc: float) -> bool:
        """Whether validation found weights worth keeping."""
        ...
