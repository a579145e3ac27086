"""How far a metric can be trusted: blocks of events, standard errors, paired differences; and the log loss.

The events of an evaluation set are cut into consecutive blocks. A metric varies from block to block, and its standard
error says how much of it may be chance. Blocks are consecutive so that an unusual week affects few of them.

Legend: p pairs, k events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dygmamba.tasks.base import EvaluationSet

MAX_BLOCKS, MIN_BLOCK_EVENTS = 30, 20
SIGNIFICANT_ERRORS = 2.0  # standard errors
LEAST_PROBABILITY = 1e-12  # of what happened, so that the log loss of a certain mistake is finite


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of one model minus that of another on the same queries, with its standard error.

    The error is None where there are too few events.
    """

    value: float
    error: float | None

    @property
    def stands(self) -> str:
        """Standing of the first model: "above", "level" (within two standard errors), "below" or "unknown"."""
        if self.error is None:
            return "unknown"
        threshold = SIGNIFICANT_ERRORS * self.error
        return "above" if self.value > threshold else "below" if self.value < -threshold else "level"

    @property
    def is_significant(self) -> bool:
        """Whether the first model is better by more than two standard errors."""
        return self.stands == "above"

    def format(self, pattern: str = "{:.2f}") -> str:
        """Return the difference in per cent, ± two standard errors where they are known."""
        error = "" if self.error is None else f" ± {100 * SIGNIFICANT_ERRORS * self.error:.2f}"
        return f"{pattern.format(100 * self.value)}{error}"


def standard_error(values: Sequence[float] | np.ndarray) -> float | None:
    """Return the standard error of the mean; None for fewer than two values."""
    return float(np.std(values, ddof=1)) / sqrt(len(values)) if len(values) > 1 else None


def average_differences(differences: Sequence[Difference]) -> Difference:
    """Return the mean of independent differences."""
    errors = [one.error for one in differences if one.error is not None]
    is_known = len(errors) == len(differences)
    error = sqrt(sum(error**2 for error in errors)) / len(errors) if is_known else None
    return Difference(float(np.mean([one.value for one in differences])), error)


def compute_by_block(
    metric: Callable[[Tensor, Tensor], float], score: Float[Tensor, "p"], evaluation_set: EvaluationSet
) -> list[float]:
    """Return a metric of scores and labels in each block; none for a set that is shorter than a block."""
    events, label = len(evaluation_set.events), evaluation_set.pairs.label
    blocks = min(MAX_BLOCKS, events // MIN_BLOCK_EVENTS)
    block = evaluation_set.event_index * blocks // events
    return [metric(score[block == k], label[block == k]) for k in range(blocks)]


def log_loss_by_event(
    probability: Float64[Tensor, "p"], evaluation_set: EvaluationSet
) -> Float64[Tensor, "k"]:
    """Return the log loss of each event, averaged over its pairs."""
    given = torch.where(evaluation_set.pairs.label > 0, probability, 1 - probability)
    loss = -given.clamp(min=LEAST_PROBABILITY).log()
    index, count = evaluation_set.event_index, len(evaluation_set.events)
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, index, loss)
    return total / torch.bincount(index, minlength=count)
