"""Losses of link prediction: binary cross-entropy of pairs, or softmax cross-entropy among candidates of one source.

Leaderboards rank a true destination among many. A loss over pairs teaches which pairs are likely; a loss over
candidates teaches which destination is the likeliest for a given source and time.

Legend: p pairs, b events, c candidates per event.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float32
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.choices import LossName as LossName


@dataclass(frozen=True, slots=True)
class PairwiseLoss:
    """Binary cross-entropy of every pair, as in DyGLib. A call returns the sum of the losses of all pairs."""

    needs_joint_pairs: ClassVar[bool] = False  # whether all pairs of an event must be in one pass

    @staticmethod
    def create(candidates: int) -> "PairwiseLoss":
        """Create the loss; it has one negative per event, so `candidates` is ignored."""
        return PairwiseLoss()

    @property
    def about(self) -> dict[str, Any]:
        """Fields of a result row; empty for the published loss."""
        return {}

    def __call__(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        return binary_cross_entropy_with_logits(logits, label, reduction="sum")


@dataclass(frozen=True, slots=True)
class RankingLoss:
    """Softmax cross-entropy of each event's destination among c candidates.

    Pairs come in the order: all events, the first candidate of each, the second of each, and so on. The sum counts each
    event 1 + c times, so that the mean over pairs equals the mean over events.
    """

    candidates: int
    needs_joint_pairs: ClassVar[bool] = True

    @staticmethod
    def create(candidates: int) -> "RankingLoss":
        return RankingLoss(candidates)

    @property
    def about(self) -> dict[str, Any]:
        return {"loss": "ranking", "train_candidates": self.candidates}

    def __call__(self, logits: Float32[Tensor, "p"], label: Float32[Tensor, "p"]) -> Tensor:
        score = logits.view(1 + self.candidates, -1)  # [1 + c, b]
        return len(score) * (score.logsumexp(dim=0) - score[0]).sum()


Loss = PairwiseLoss | RankingLoss
PAIRWISE_LOSS = PairwiseLoss()
LOSSES: dict[LossName, type[Loss]] = {"pairwise": PairwiseLoss, "ranking": RankingLoss}
