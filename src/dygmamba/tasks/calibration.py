"""Calibration: a monotone curve from logits to probabilities, fitted on validation pairs.

First a line in the log-odds (Platt, "Probabilistic outputs for support vector machines", 1999, with his targets, so
that a fit exists even for separable logits). With enough pairs, a few knots are added: log-odds of bins of equal mass,
shrunk towards the line, made monotone (isotonic regression) and interpolated linearly. The curve is strictly
increasing, so ranks, AP and AUC do not change.

Streams drift: the whole validation period is fitted, unless a fit to its last part predicts following blocks inside the
period significantly better.

Legend: p pairs, c columns.
"""

from dataclasses import dataclass
from math import pi, sqrt

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dygmamba.core.errors import ScoreError

BINS = 10  # of equal mass
BLOCKS = 8  # consecutive blocks of a validation period
SHORTER_PERIODS = (4, 2, 1)  # numbers of last blocks that may be fitted instead of all
MIN_STANDARD_ERRORS = 2.0  # by how many standard errors fewer blocks must predict better
MIN_BLOCK_PAIRS = 100  # if a block has fewer pairs of either class, all blocks are fitted
MIN_SLOPE = 1e-3  # a model that ranks worse than chance keeps its order, almost flat
MAX_STEPS = 100
KNOTS = 10
MIN_KNOT_PAIRS = 20  # with fewer pairs of either class per knot there are no knots
PRIOR_PAIRS = 4.0  # weight of the line at a knot, in pairs


@dataclass(frozen=True, slots=True)
class Calibration:
    """Monotone map from logits to log-odds: `slope` * logit + `bias`, or a piecewise linear curve through `knots`.

    Attributes:
        slope: Slope of the line, also beyond the outer knots.
        bias: Bias of the line.
        prior: Share of positives among the fitted pairs.
        pairs: Number of fitted pairs.
        stretch: Share of the validation period, counted from its end, that was fitted.
        knots: (logit, log-odds) points.
    """

    slope: float
    bias: float
    prior: float
    pairs: int
    stretch: float
    knots: tuple[tuple[float, float], ...] = ()

    def log_odds(self, logit: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """Return the log-odds in 64 bits, in which even extreme logits keep their order."""
        z = logit.double()
        if len(self.knots) < 2:
            return self.slope * z + self.bias
        x, f = torch.tensor(self.knots, dtype=torch.float64).T.contiguous()
        left = (torch.searchsorted(x, z.contiguous()) - 1).clamp(0, len(x) - 2)
        inside = f[left] + (z - x[left]) * (f[left + 1] - f[left]) / (x[left + 1] - x[left])
        below, above = f[0] + self.slope * (z - x[0]), f[-1] + self.slope * (z - x[-1])
        return torch.where(z < x[0], below, torch.where(z > x[-1], above, inside))

    def probability(self, logit: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """Return the calibrated probabilities."""
        return torch.sigmoid(self.log_odds(logit))


@dataclass(frozen=True, slots=True)
class Reliability:
    """Reliability diagram: mean score, share of positives and number of pairs in bins of equal mass."""

    score: tuple[float, ...]
    share: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return self._mean([abs(a - b) for a, b in zip(self.score, self.share, strict=True)])

    @property
    def chance(self) -> float:
        """Calibration error that perfectly calibrated scores would show by chance with this many pairs."""
        parts = zip(self.score, self.count, strict=True)
        return self._mean([sqrt(2 / pi * score * (1 - score) / count) for score, count in parts])

    def _mean(self, values: list[float]) -> float:
        return float(np.average(values, weights=self.count))


def compute_reliability(
    score: Float[Tensor, "p"], label: Float[Tensor, "p"], bins: int = BINS
) -> Reliability:
    """Bin pairs by score into bins of equal mass; pairs with equal scores share their mean label in every bin."""
    if not score.numel():
        raise ScoreError("there are no scores to evaluate; score at least one pair", code="no-scores")
    value, true = score.detach().cpu().double().numpy(), label.detach().cpu().double().numpy()
    _, group, size = np.unique(value, return_inverse=True, return_counts=True)
    true = (np.bincount(group, true) / size)[group]
    parts = np.array_split(np.argsort(value, kind="stable"), min(bins, len(value)))
    return Reliability(
        tuple(float(value[part].mean()) for part in parts),
        tuple(float(true[part].mean()) for part in parts),
        tuple(len(part) for part in parts),
    )


def fit_calibration(
    logit: Float[Tensor, "p"], label: Float[Tensor, "p"], number: Int64[Tensor, "p"]
) -> Calibration:
    """Fit a calibration to logits of known labels; `number` gives the order in time."""
    if not logit.numel() or not bool(torch.isfinite(logit).all()):
        raise ScoreError(
            "a calibration needs finite scores of at least one pair; remove or replace the others",
            code="not-finite",
        )
    z, y = logit.detach().cpu().double(), label.detach().cpu().double()
    block = number.cpu() * BLOCKS // (int(number.max()) + 1)
    last = _choose_blocks(z, y, block)
    used = block >= BLOCKS - last
    line = fit_line(z[used], y[used])
    knots = fit_knots(z[used], y[used], line)
    return Calibration(*line, float(y[used].mean()), int(used.sum()), last / BLOCKS, knots)


def fit_line(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"]) -> tuple[float, float]:
    """Return the positive slope and the bias that minimize the cross-entropy with Platt's targets."""
    true, false = float(y.sum()), float((1 - y).sum())
    target = torch.where(y > 0.5, (true + 1) / (true + 2), 1 / (false + 2)).double()
    mean, scale = float(z.mean()), float(z.std(correction=0)) or 1.0
    x = torch.stack([(z - mean) / scale, torch.ones_like(z)], dim=1)
    weight = _fit_logistic(x, target)
    if weight[0] / scale < MIN_SLOPE:  # a negative slope would reverse the ranking
        fixed = MIN_SLOPE * z
        return MIN_SLOPE, float(_fit_logistic(x[:, 1:], target, fixed)[0])
    slope = float(weight[0]) / scale
    return slope, float(weight[1]) - slope * mean


def fit_knots(
    z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], line: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """Return increasing (logit, log-odds) points of bins of equal mass; none if there are too few pairs."""
    if min(float(y.sum()), float((1 - y).sum())) < MIN_KNOT_PAIRS * KNOTS:
        return ()
    slope, bias = line
    bins = compute_reliability(z, y, KNOTS)
    x, first = np.unique(bins.score, return_index=True)  # bins with the same mean logit become one
    count = np.add.reduceat(np.array(bins.count), first)
    true = np.add.reduceat(np.array(bins.share) * np.array(bins.count), first)
    prior = 1 / (1 + np.exp(-np.clip(slope * x + bias, -50, 50)))
    share = _fit_isotonic((true + PRIOR_PAIRS * prior) / (count + PRIOR_PAIRS), count + PRIOR_PAIRS)
    odds = np.log(share) - np.log1p(-share)
    for i in range(1, len(x)):  # isotonic regression leaves flat steps: keep the curve strictly increasing
        odds[i] = max(odds[i], odds[i - 1] + MIN_SLOPE * (x[i] - x[i - 1]))
    return tuple(zip(x.tolist(), odds.tolist(), strict=True))


def _fit_isotonic(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weighted isotonic regression of the values, by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for mean, mass in zip(value.tolist(), weight.tolist(), strict=True):
        size = 1
        while pools and pools[-1][0] >= mean:
            other_mean, other_mass, other_size = pools.pop()
            mean = (mean * mass + other_mean * other_mass) / (mass + other_mass)
            mass, size = mass + other_mass, size + other_size
        pools.append((mean, mass, size))
    return np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])


def _fit_logistic(
    x: Float64[Tensor, "p c"], target: Float64[Tensor, "p"], offset: Float64[Tensor, "p"] | float = 0.0
) -> Float64[Tensor, "c"]:
    """Fit a logistic regression by Newton's method with step halving; a tiny ridge keeps constant logits solvable."""
    weight, ridge = x.new_zeros(x.shape[1]), 1e-9 * torch.eye(x.shape[1], dtype=x.dtype)

    def loss(at: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(x @ at + offset, target))

    now = loss(weight)
    for _ in range(MAX_STEPS):
        p = torch.sigmoid(x @ weight + offset)
        slope = x.T @ (p - target) / len(x)
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + ridge
        step = torch.linalg.solve(hessian, slope)
        while (then := loss(weight - step)) > now and float(step.abs().max()) > 1e-12:
            step = step / 2
        if then > now or float(step.abs().max()) <= 1e-12:
            break
        weight, now = weight - step, then
    return weight


def _choose_blocks(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"]) -> int:
    """Return how many of the last blocks to fit: all, unless fewer predict following blocks significantly better."""
    for number in range(BLOCKS):
        own = y[block == number]
        if min(float(own.sum()), float((1 - own).sum())) < MIN_BLOCK_PAIRS:
            return BLOCKS

    base = _next_block_losses(z, y, block, BLOCKS)
    gains = {length: base - _next_block_losses(z, y, block, length) for length in SHORTER_PERIODS}
    significant = {
        length: float(gain.mean())
        for length, gain in gains.items()
        if float(gain.mean()) > MIN_STANDARD_ERRORS * float(gain.std()) / sqrt(len(gain))
    }
    return max(significant, key=lambda length: significant[length], default=BLOCKS)


def _next_block_losses(
    z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"], length: int
) -> Float64[Tensor, "_"]:
    """Return the cross-entropy of every pair after the first block under a line fitted to `length` blocks before it."""
    parts = []
    for number in range(1, BLOCKS):
        past, own = (block < number) & (block >= number - length), block == number
        slope, bias = fit_line(z[past], y[past])
        parts.append(binary_cross_entropy_with_logits(slope * z[own] + bias, y[own], reduction="none"))
    return torch.cat(parts)
