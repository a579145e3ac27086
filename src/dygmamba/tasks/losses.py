"""What a step of link prediction is judged by: each pair alone, or each event among candidates of its source.

Scoreboards rank a true destination among many. A loss over pairs teaches what is likely at all; one over candidates
teaches which of them is the likeliest, for a source and a moment that all of them share.

Legend: p pairs, b events, c candidates an event is asked beside.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float32
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

LossName = Literal["pairwise", "ranking"]


@runtime_checkable
class Loss(Protocol):
    """How logits are judged; `together` says that an event's pairs must be in one pass."""

    together: ClassVar[bool]

    @property
    def about(self) -> dict[str, Any]:
        """What a result row says of it; nothing of the published one."""
        ...

    def __call__(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """The sum over pairs."""
        ...


@dataclass(frozen=True, slots=True)
class PairwiseLoss:
    """Binary cross-entropy of every pair, as published."""

    together: ClassVar[bool] = False

    @staticmethod
    def of(candidates: int) -> "PairwiseLoss":
        """One pair beside each event, whatever the number."""
        return PairwiseLoss()

    @property
    def about(self) -> dict[str, Any]:
        """Nothing: it is the published one."""
        return {}

    def __call__(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """The sum over pairs."""
        return binary_cross_entropy_with_logits(logits, label, reduction="sum")


@dataclass(frozen=True, slots=True)
class RankingLoss:
    """Softmax cross-entropy of each event's own pair among those of c candidates of its source.

    Pairs come as all events, then all their first candidates, then all second ones. The sum counts each event 1 + c
    times, so that the mean over pairs is the mean over events.
    """

    candidates: int
    together: ClassVar[bool] = True

    @staticmethod
    def of(candidates: int) -> "RankingLoss":
        """Among so many."""
        return RankingLoss(candidates)

    @property
    def about(self) -> dict[str, Any]:
        """Its name and how many candidates there were."""
        return {"loss": "ranking", "train_candidates": self.candidates}

    def __call__(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        """The sum over pairs."""
        score = logits.view(1 + self.candidates, -1)  # [1 + c, b]
        return len(score) * (score.logsumexp(dim=0) - score[0]).sum()


PAIRWISE_LOSS = PairwiseLoss()
LOSSES: dict[LossName, type[PairwiseLoss] | type[RankingLoss]] = {
    "pairwise": PairwiseLoss,
    "ranking": RankingLoss,
}
