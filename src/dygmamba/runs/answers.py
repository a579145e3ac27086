"""Answers in the user's own ids: tables of scores, which are probabilities where the run has a calibration."""

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.runs.questions import Asking, Moment
from dygmamba.tasks.calibration import Calibration

SCORE, RAW = "score", "uncalibrated_score"  # the column of a run with a calibration, and of one without


@dataclass(frozen=True, slots=True)
class Predictions:
    """Answers in a table; the time that was assumed where none was given; which ids are in no event.

    `calibrated`: whether the scores are probabilities. `without` are the sources for whom no destination was left.
    """

    table: pa.Table
    assumed_time: Moment | None
    strangers: tuple[str, ...]
    calibrated: bool = True
    without: tuple[str, ...] = ()


def scores(logit: Tensor, calibration: Calibration | None) -> dict[str, pa.Array]:
    """The column of scores, in 64 bits: certain pairs keep their order."""
    if calibration is None:
        return {RAW: pa.array(torch.sigmoid(logit.double()).numpy())}
    return {SCORE: pa.array(calibration.probability(logit).numpy())}


def chances(logit: Tensor, total: Tensor, calibration: Calibration | None) -> dict[str, pa.Array]:
    """The column of probabilities among candidates of whom exactly one is true, each as likely before: odds by odds.

    The odds of a score are how many times likelier a real event would be this pair than a random one would, so the
    chance of a candidate is its odds by the sum of all candidates' odds (Bayes). A run without a calibration has none.
    """
    if calibration is None:
        return {}
    return {"probability": pa.array((calibration.log_odds(logit) - total).exp().numpy())}


def predictions(
    asking: Asking,
    columns: dict[str, pa.Array],
    calibration: Calibration | None,
    without: tuple[str, ...] = (),
) -> Predictions:
    """A table with what is to be said of it."""
    return Predictions(pa.table(columns), asking.assumed, asking.strangers, calibration is not None, without)
