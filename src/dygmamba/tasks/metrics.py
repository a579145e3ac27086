"""Metrics: average precision, ROC-AUC, mean reciprocal rank and hits@k, with ties as scikit-learn and TGB handle them.

Also those of classes (accuracy, macro-F1) and of numbers (mean absolute error).

Legend: p pairs, g positives (groups), c candidates per positive.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ScoreError
from dygmamba.tasks.metric_names import ERROR_SUFFIX, parse_hits_k

PUBLISHED_BATCH = 200  # positives per batch over which DyGLib averages AP and AUC


def average_precision(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> float:
    """Sum over thresholds of (recall step) * precision; equal scores share one threshold, as in scikit-learn."""
    return pair_metric("ap", score, label)


def roc_auc(score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> float:
    """Probability that a positive outranks a negative, ties counting half; nan if one class is missing."""
    return pair_metric("auc", score, label)


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


def count_ranked_above(positive: Float[Tensor, "g"], negative: Float[Tensor, "g c"]) -> Float[Tensor, "g"]:
    """Count the candidates ranked above each positive, ties counting half (TGB).

    1 plus this is the mean of the optimistic and the pessimistic rank. Counts add up over parts of the candidates.
    """
    above = (negative > positive[:, None]).sum(dim=1)
    level = (negative >= positive[:, None]).sum(dim=1)
    return 0.5 * (above + level).double()


def get_error_name(metric: str) -> str:
    """Return the name of the standard error of a metric in a result row."""
    return f"{metric}{ERROR_SUFFIX}"


def rank_metrics(rank: Float[Tensor, "g"], names: Sequence[str]) -> dict[str, Any]:
    """Return `mrr` and `hits@k` of ranks that start at 1; a rank equal to k is a hit, as in TGB.

    `mrr_se` is the standard error over the events; None for fewer than two.
    """
    found: dict[str, Any] = {}
    for name in names:
        values = _rank_values(rank, name.removesuffix(ERROR_SUFFIX))
        if name.endswith(ERROR_SUFFIX):
            found[name] = float(values.std() / sqrt(len(rank))) if len(rank) > 1 else None
        else:
            found[name] = float(values.mean())
    return found


def _rank_values(rank: Float[Tensor, "g"], name: str) -> Float64[Tensor, "g"]:
    """Return the value of each event whose mean is the metric."""
    return (1 / rank).double() if name == "mrr" else (rank <= parse_hits_k(name)).double()


def _to_arrays(score: Tensor, label: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores in 64 bits and a mask of the positives."""
    if not score.numel():
        raise ScoreError("there are no scores to evaluate; score at least one pair", code="no-scores")
    _require_finite(score)
    return score.detach().cpu().double().numpy(), label.detach().cpu().numpy() > 0


def _counts_by_threshold(values: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each distinct score from the highest, the number of positives and of pairs that reach it."""
    order = np.argsort(-values, kind="stable")
    values, truth = values[order], truth[order]
    last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    return np.cumsum(truth)[last].astype(np.float64), last + 1.0


def _require_finite(score: Tensor) -> None:
    # NaN compares as False with everything, so it would get an arbitrary rank
    wrong = ~torch.isfinite(score)
    if bool(wrong.any()):
        raise ScoreError(
            f"{int(wrong.sum()):,} of {score.numel():,} scores are not finite, the first is "
            f"{float(score[wrong][0])}; remove or replace them before computing metrics",
            code="not-finite",
        )


def classification_metrics(predicted: Int64[Tensor, "p"], true: Int64[Tensor, "p"]) -> dict[str, float | int]:
    """Return accuracy and macro-F1: the mean of F1 over the classes that occur among predictions or labels."""
    if not len(true):
        return {"macro_f1": float("nan"), "accuracy": float("nan"), "n": 0}
    count = 1 + int(torch.maximum(predicted.max(), true.max()))
    hits = torch.bincount(true[predicted == true], minlength=count).double()
    total = torch.bincount(predicted, minlength=count) + torch.bincount(true, minlength=count)
    f1 = 2 * hits[total > 0] / total[total > 0]
    return {"macro_f1": float(f1.mean()), "accuracy": float(hits.sum() / len(true)), "n": len(true)}


def regression_metrics(predicted: Float[Tensor, "p"], true: Float[Tensor, "p"]) -> dict[str, float | int]:
    """Return the mean absolute error and the root of the mean squared error."""
    if not len(true):
        return {"mae": float("nan"), "rmse": float("nan"), "n": 0}
    _require_finite(predicted)
    error = predicted.double() - true.double()
    return {"mae": float(error.abs().mean()), "rmse": float(error.square().mean().sqrt()), "n": len(true)}


# Of the scores of pairs, from the numbers of positives and of pairs that reach each distinct score.
THRESHOLD_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "ap": _precision_from_counts,
    "auc": _area_from_counts,
}


def pair_metric(name: str, score: Float[Tensor, "p"], label: Float[Tensor, "p"]) -> float:
    """Compute a metric of `THRESHOLD_METRICS` of all pairs at once."""
    return THRESHOLD_METRICS[name](*_counts_by_threshold(*_to_arrays(score, label)))


def link_metrics(
    score: Float[Tensor, "p"],
    label: Float[Tensor, "p"],
    group: Int64[Tensor, "p"],
    batch: int = PUBLISHED_BATCH,
) -> dict[str, Any]:
    """Compute each of `THRESHOLD_METRICS` as the mean over batches of positives, and as `_pooled` of all pairs at once.

    `group` numbers the positives in time order. The batches of `batch` positives are part of the published metric; they
    need not be the batches of scoring. `n` is the number of positives.
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
    by_batch = {
        name: float(np.mean([compute(*part) for part in parts]))
        for name, compute in THRESHOLD_METRICS.items()
    }
    pooled = {f"{name}_pooled": compute(*whole) for name, compute in THRESHOLD_METRICS.items()}
    return by_batch | pooled | {"n": int(truth.sum())}
