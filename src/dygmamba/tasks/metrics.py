"""Ranking metrics: average precision, ROC-AUC, mean reciprocal rank and hits, with ties handled as the field does.

Legend: p pairs, g positives (groups), c candidates per positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.core.errors import ScoreError
from dygmamba.tasks.metric_names import parse_hits_k

PUBLISHED_BATCH = 200


def average_precision(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> float:
    """Sum over thresholds of (recall step) * precision; equal scores share one threshold (scikit-learn)."""
    return _precision_from_counts(*_counts_by_threshold(*_to_arrays(score, label)))


def roc_auc(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> float:
    """Probability that a positive outranks a negative, a tie counting half; nan if one class is missing."""
    return _area_from_counts(*_counts_by_threshold(*_to_arrays(score, label)))


def _precision_from_counts(hits: np.ndarray, total: np.ndarray) -> float:
    if not hits[-1]:
        return float("nan")
    return float((np.diff(hits, prepend=0) * (hits / total)).sum() / hits[-1])


def _area_from_counts(hits: np.ndarray, total: np.ndarray) -> float:
    misses = total - hits
    positives, negatives = hits[-1], misses[-1]
    if not positives or not negatives:
        return float("nan")
    trapezoid = np.diff(misses, prepend=0) * (hits + np.concatenate([[0], hits[:-1]])) / 2
    return float(trapezoid.sum() / (positives * negatives))


def reciprocal_rank(positive: Float[Tensor, "g"], negative: Float[Tensor, "g c"]) -> Float[Tensor, "g"]:
    """1 / rank with TGB's tie rule: the mean of the optimistic and the pessimistic rank."""
    for score in (positive, negative):
        _require_finite(score)
    return 1.0 / (1.0 + count_ranked_above(positive, negative))


def count_ranked_above(positive: Float[Tensor, "g"], negative: Float[Tensor, "g c"]) -> Float[Tensor, "g"]:
    """How many candidates come before each positive, a tie counting half; these add up over parts of the candidates."""
    above = (negative > positive[:, None]).sum(dim=1)
    level = (negative >= positive[:, None]).sum(dim=1)
    return 0.5 * (above + level).double()


def rank_metrics(rank: Float[Tensor, "g"], names: Sequence[str]) -> dict[str, float]:
    """`mrr` and `hits@k` of the ranks of all positives, 1 the best; a rank that is level with k is a hit (TGB)."""
    return {
        name: float((1 / rank).mean() if name == "mrr" else (rank <= parse_hits_k(name)).double().mean())
        for name in names
    }


def _to_arrays(score: Tensor, label: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Scores in 64 bits, and which of them are of positives."""
    if not score.numel():
        raise ScoreError("there are no scores to judge; ask about at least one pair")
    _require_finite(score)
    return score.detach().cpu().double().numpy(), label.detach().cpu().numpy() > 0


def _counts_by_threshold(values: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At each distinct score, from the highest: positives and pairs that reach it."""
    order = np.argsort(-values, kind="stable")
    values, truth = values[order], truth[order]
    last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    return np.cumsum(truth)[last].astype(np.float64), last + 1.0


def _require_finite(score: Tensor) -> None:
    """A rank among numbers that are none would be made up."""
    wrong = ~torch.isfinite(score)
    if bool(wrong.any()):
        raise ScoreError(
            f"{int(wrong.sum()):,} of {score.numel():,} scores are not finite, the first is "
            f"{float(score[wrong][0])}; mend the scores before they are judged"
        )


@dataclass(frozen=True, slots=True)
class LinkMetrics:
    """AP and AUC of one evaluation, both ways: mean over batches of 200 (published) and pooled (honest)."""

    ap: float
    auc: float
    ap_pooled: float
    auc_pooled: float
    n: int


def link_metrics(
    score: Float[Tensor, "p"],
    label: Float[Tensor, "p"],
    group: Int64[Tensor, "p"],
    batch: int = PUBLISHED_BATCH,
) -> LinkMetrics:
    """Metrics of a whole set; positives are numbered in time order and `batch` of them form a published batch.

    The batches are an arithmetic of the metric, not of the computation: how the pairs were scored is free.
    """
    order = torch.argsort(group // batch, stable=True)
    values, truth = _to_arrays(score[order], label[order])
    number = (group // batch)[order].cpu().numpy()
    cuts = np.flatnonzero(np.diff(number)) + 1
    parts = [
        _counts_by_threshold(*part)
        for part in zip(np.split(values, cuts), np.split(truth, cuts), strict=True)
    ]
    whole = _counts_by_threshold(values, truth)
    return LinkMetrics(
        ap=float(np.mean([_precision_from_counts(*part) for part in parts])),
        auc=float(np.mean([_area_from_counts(*part) for part in parts])),
        ap_pooled=_precision_from_counts(*whole),
        auc_pooled=_area_from_counts(*whole),
        n=int(truth.sum()),
    )
