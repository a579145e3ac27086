"""Who acts now: the rate of a source, self-exciting with a bank of decays, fitted by exact likelihood.

The rate of source u at time t is base + sum over scales of weight * (fading count of u's earlier events) / scale + a
weight for their number, all weights at least 0 (Hawkes, "Spectra of some self-exciting and mutually exciting point
processes", 1971). Its log likelihood, sum of log rates at the events minus the rates of all sources integrated over the
period, is concave in the weights and has every integral in closed form, so there is one best fit and it takes no draws.

A pair's score says whom a source chooses; log rate + log choice is the likelihood of the event. Where sources compete,
as with negatives that replace them, the sum answers; within one source the rate is the same for all and says nothing.

Legend: e events, p questions, k kernels.
"""

from dataclasses import dataclass
from math import pi, tan

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.sampling.source_activity import SourceActivity
from dygmamba.tasks.metrics import PUBLISHED_BATCH, average_precision

STEPS, CLOSE = (
    200,
    1e-9,
)  # at most so many steps; events per event by which the conditions of the best fit may be off
NUM_WEIGHTS = 45  # between the model's score alone and the rate alone, that are tried


@dataclass(frozen=True, slots=True)
class ActivityRate:
    """The fitted rate: a weight for each kernel of `Senders`, the constant first, then the scales, then the number."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    events: int  # that were fitted
    log_likelihood: float  # per event

    def log_rate(
        self, senders: SourceActivity, src: Int64[Tensor, "p"], time: Float64[Tensor, "p"]
    ) -> Float64[Tensor, "p"]:
        """Of each source strictly before each time; summed kernel by kernel, so that no question changes another's."""
        rate = torch.zeros_like(time)
        for kernel, weight in zip(senders.kernels(src, time).T, self.weights, strict=True):
            rate += weight * kernel
        return rate.log()


def fit_activity(
    senders: SourceActivity, src: Int64[Tensor, "e"], time: Float64[Tensor, "e"]
) -> ActivityRate:
    """The likeliest rate of these events, which are all that `senders` knows, in time order."""
    x, scales = senders.kernels(src, time), tuple(senders.lists.scale.tolist())
    start, end = float(time[0]), float(time[-1])
    expected = senders.expected(time, start, end, len(src.unique()))
    if end <= start:  # one instant says nothing of rates
        return ActivityRate(scales, (1.0, *(0.0 for _ in expected[1:])), len(src), 0.0)
    used = expected > 0
    share = maximize_likelihood(x[:, used] / expected[used])  # of the events, that each kernel explains
    weights = torch.zeros_like(expected)
    weights[used] = share * len(src) / expected[used]
    found = (x @ weights).log().sum() - (expected * weights).sum()
    return ActivityRate(scales, tuple(weights.tolist()), len(src), float(found) / len(src))


def maximize_likelihood(x: Float64[Tensor, "e k"]) -> Float64[Tensor, "k"]:
    """The w >= 0 with the largest mean of log(x w) - sum of w; the first column of x is positive, and w sums up to 1.

    Newton's method: in each step the parabola that touches the gain is maximised over w >= 0, exactly.
    """
    w = x.new_full((x.shape[1],), 1 / x.shape[1])
    for _ in range(STEPS):
        part = x / (x @ w)[:, None]
        slope = part.mean(0) - 1  # at the best fit 0 where w is above 0, at most 0 elsewhere
        if float((w * slope).abs().max()) < CLOSE and float(slope.max()) < CLOSE:
            break
        bend = part.T @ part / len(x)
        bend += 1e-12 * bend.diagonal().max() * torch.eye(len(w), dtype=x.dtype)
        top = solve_nonnegative_quadratic(bend.numpy(), (bend @ w + slope).numpy())
        w, before = _line_search(x, w, torch.from_numpy(top)), w
        if torch.equal(w, before):  # no better in 64 bits
            break
    return w / w.sum()


def solve_nonnegative_quadratic(bend: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The v >= 0 with the largest slope' v - v' bend v / 2 (Lawson and Hanson, "Solving Least Squares Problems")."""
    v, free = np.zeros_like(slope), np.zeros(len(slope), bool)
    for _ in range(3 * len(slope)):
        up = np.where(free, -np.inf, slope - bend @ v)
        if up.max() <= 1e-12:
            break
        free[up.argmax()] = True
        while True:
            then = np.zeros_like(v)
            then[free] = np.linalg.solve(bend[np.ix_(free, free)], slope[free])
            low = free & (then <= 0)
            if not low.any():
                break
            share = (v[low] / np.maximum(v[low] - then[low], 1e-300)).min()
            v = v + share * (then - v)
            free &= v > 1e-15
        v = then
    return v


def _line_search(x: Float64[Tensor, "e k"], w: Float64[Tensor, "k"], top: Float64[Tensor, "k"]) -> Tensor:
    """`top`, or as far towards it as gains, in halves; w itself where nothing does."""
    now = _mean_log_likelihood(x, w)
    for halves in range(30):
        then = w + (top - w) / 2**halves
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
    """The weight of the log rate beside the score with the best AP on these pairs, 0 where none is better.

    Both are brought to the same spread and turned into each other by angles, so no unit of a score matters.
    """
    own, rate = (column.double().std(correction=0).item() for column in (score, log_rate))
    if not rate > 0:
        return 0.0
    order = torch.argsort(group // PUBLISHED_BATCH, stable=True)
    columns = (score.double()[order], log_rate[order], label[order])
    sizes = torch.unique_consecutive((group // PUBLISHED_BATCH)[order], return_counts=True)[1].tolist()
    batches = list(zip(*(column.split(sizes) for column in columns), strict=True))
    turns = [tan(pi / 2 * place / NUM_WEIGHTS) for place in range(NUM_WEIGHTS)]
    weights = [turn * (own / rate if own > 0 else 1.0) for turn in turns]
    return max(
        weights, key=lambda w: sum(average_precision(s + w * rate, y) for s, rate, y in batches)
    )  # the first of equals
