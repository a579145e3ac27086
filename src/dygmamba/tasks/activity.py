"""Activity rate of sources: a self-exciting point process with a bank of decays, fitted by exact likelihood.

The rate of source u at time t is base + sum over scales of weight * (decayed count of u's earlier events) / scale + a
weight times their number, with all weights at least 0 (Hawkes, "Spectra of some self-exciting and mutually exciting
point processes", 1971). The log likelihood, the sum of log rates at the events minus the integral of all rates over the
period, is concave in the weights and every integral has a closed form. So the best fit is unique and needs no sampling.

A pair's score says which destination a source chooses; log rate + log choice is the log likelihood of the event. The
sum helps where sources compete, as with negatives that replace the source. Within one source the rate is the same for
every candidate and changes nothing.

Legend: e events, p queries, k kernels.
"""

from dataclasses import dataclass
from math import pi, tan

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.history.source_activity import SourceActivity
from dygmamba.tasks.metrics import PUBLISHED_BATCH, average_precision

MAX_STEPS = 200
TOLERANCE = 1e-9  # on the optimality conditions, in events per event
NUM_WEIGHTS = 45  # weights that are tried between the model's score alone and the rate alone


@dataclass(frozen=True, slots=True)
class ActivityRate:
    """Fitted rate: a weight for each kernel of `SourceActivity` (the constant, the scales, the number of events)."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    events: int  # number of fitted events
    log_likelihood: float  # per event

    def log_rate(
        self, activity: SourceActivity, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float64[Tensor, "p"]:
        """Return the log rate of each source strictly before each time."""
        # summed kernel by kernel: a matrix product would round differently in batches of different sizes
        rate = torch.zeros_like(time)
        for kernel, weight in zip(activity.kernels(src, time).T, self.weights, strict=True):
            rate += weight * kernel
        return rate.log()


def fit_activity(
    activity: SourceActivity, src: Int64[Tensor, "e"], time: Float64[Tensor, "e"]
) -> ActivityRate:
    """Fit the rate to events in time order; `activity` must count exactly these events."""
    x, scales = activity.kernels(src, time), activity.scales
    start, end = float(time[0]), float(time[-1])
    expected = activity.integrate_kernels(time, start, end, len(src.unique()))
    if end <= start:  # events of a single instant determine no rate
        return ActivityRate(scales, (1.0, *(0.0 for _ in expected[1:])), len(src), 0.0)
    used = expected > 0
    share = maximize_likelihood(x[:, used] / expected[used])  # share of the events that each kernel explains
    weights = torch.zeros_like(expected)
    weights[used] = share * len(src) / expected[used]
    log_likelihood = (x @ weights).log().sum() - (expected * weights).sum()
    return ActivityRate(scales, tuple(weights.tolist()), len(src), float(log_likelihood) / len(src))


def maximize_likelihood(x: Float64[Tensor, "e k"]) -> Float64[Tensor, "k"]:
    """Return the w >= 0 that maximizes mean(log(x w)) - sum(w); the first column of x must be positive.

    The optimal w sums to 1. Newton's method: each step maximizes the quadratic approximation exactly over w >= 0.
    """
    w = x.new_full((x.shape[1],), 1 / x.shape[1])
    for _ in range(MAX_STEPS):
        part = x / (x @ w)[:, None]
        slope = part.mean(0) - 1  # at the optimum 0 where w > 0 and at most 0 elsewhere
        if float((w * slope).abs().max()) < TOLERANCE and float(slope.max()) < TOLERANCE:
            break
        hessian = part.T @ part / len(x)
        # ridge for equal kernels
        hessian += 1e-12 * hessian.diagonal().max() * torch.eye(len(w), dtype=x.dtype)
        target = solve_nonnegative_quadratic(hessian.numpy(), (hessian @ w + slope).numpy())
        w, before = _line_search(x, w, torch.from_numpy(target)), w
        if torch.equal(w, before):  # no further gain in 64 bits
            break
    return w / w.sum()


def solve_nonnegative_quadratic(hessian: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return the v >= 0 that maximizes slope' v - v' hessian v / 2.

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems".
    """
    v, free = np.zeros_like(slope), np.zeros(len(slope), bool)
    for _ in range(3 * len(slope)):
        up = np.where(free, -np.inf, slope - hessian @ v)
        if up.max() <= 1e-12:
            break
        free[up.argmax()] = True
        while True:
            then = np.zeros_like(v)
            then[free] = np.linalg.solve(hessian[np.ix_(free, free)], slope[free])
            low = free & (then <= 0)
            if not low.any():
                break
            share = (v[low] / np.maximum(v[low] - then[low], 1e-300)).min()
            v = v + share * (then - v)
            free &= v > 1e-15
        v = then
    return v


def _line_search(x: Float64[Tensor, "e k"], w: Float64[Tensor, "k"], target: Float64[Tensor, "k"]) -> Tensor:
    """Return `target`, or the first of repeated halvings towards w that improves; w itself if none does."""
    now = _mean_log_likelihood(x, w)
    for halves in range(30):
        then = w + (target - w) / 2**halves
        if _mean_log_likelihood(x, then) > now:
            return then
    return w


def _mean_log_likelihood(x: Float64[Tensor, "e k"], w: Float64[Tensor, "k"]) -> float:
    return float((x @ w).log().mean() - w.sum())


def choose_activity_weight(
    score: Float[Tensor, "p"],
    log_rate: Float64[Tensor, "p"],
    label: Float[Tensor, "p"],
    group: Int64[Tensor, "p"],
) -> float:
    """Return the weight of the log rate in score + weight * log_rate with the best AP, 0 if no weight helps.

    Candidate weights are tangents of equally spaced angles between score and rate after both are scaled to the same
    standard deviation, so the unit of the score does not matter.
    """
    own, rate = (column.double().std(correction=0).item() for column in (score, log_rate))
    if not rate > 0:
        return 0.0
    order = torch.argsort(group // PUBLISHED_BATCH, stable=True)
    columns = (score.double()[order], log_rate[order], label[order])
    sizes = torch.unique_consecutive((group // PUBLISHED_BATCH)[order], return_counts=True)[1].tolist()
    batches = list(zip(*(column.split(sizes) for column in columns), strict=True))
    tangents = [tan(pi / 2 * step / NUM_WEIGHTS) for step in range(NUM_WEIGHTS)]
    weights = [tangent * (own / rate if own > 0 else 1.0) for tangent in tangents]
    # max takes the first, that is the smallest, of equally good weights
    return max(weights, key=lambda w: sum(average_precision(s + w * rate, y) for s, rate, y in batches))
