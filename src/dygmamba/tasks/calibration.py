"""From a logit to a probability: a rising curve in the logit, fitted on questions whose answers are known.

A line first (Platt, "Probabilistic outputs for support vector machines", 1999, with his targets: a fit exists even
where the logits tell both kinds apart). Where there are enough pairs, a few knots on it: the log-odds of bins of equal
mass, drawn towards the line, made to rise (isotonic), straight in between. It always rises: no rank, AP or AUC changes.

Streams drift: the whole validation period is fitted, unless shorter stretches would surely have served what came after
them better, inside that period.

Legend: p pairs.
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
BLOCKS = 8  # of a validation period, one after another
SHORTER_PERIODS = (4, 2, 1)  # last blocks that may be fitted instead of all
MIN_STANDARD_ERRORS = 2.0  # standard errors by which fewer must have served better
MIN_BLOCK_PAIRS = 100  # pairs of each kind in a block, below which all are fitted
MIN_SLOPE = 1e-3  # slope: a run that ranks worse than chance keeps its order, almost level
MAX_STEPS = 100
KNOTS = 10
MIN_KNOT_PAIRS = 20  # pairs of each kind per knot, below which there are none
PRIOR_PAIRS = 4.0  # pairs that speak for the line at a knot


@dataclass(frozen=True, slots=True)
class Calibration:
    """A logit's log-odds: `slope` * logit + `bias`, given that `prior` of such questions are true beforehand.

    `knots` are logits with their log-odds, joined by straight lines; beyond them the slope goes on.
    """

    slope: float
    bias: float
    prior: float
    pairs: int  # that were fitted
    stretch: float  # the share of the validation period, at its end, that they are of
    knots: tuple[tuple[float, float], ...] = ()

    def log_odds(self, logit: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """In 64 bits: certain pairs keep their order."""
        z = logit.double()
        if len(self.knots) < 2:
            return self.slope * z + self.bias
        x, f = torch.tensor(self.knots, dtype=torch.float64).T.contiguous()
        left = (torch.searchsorted(x, z.contiguous()) - 1).clamp(0, len(x) - 2)
        inside = f[left] + (z - x[left]) * (f[left + 1] - f[left]) / (x[left + 1] - x[left])
        below, above = f[0] + self.slope * (z - x[0]), f[-1] + self.slope * (z - x[-1])
        return torch.where(z < x[0], below, torch.where(z > x[-1], above, inside))

    def probability(self, logit: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """Of being true."""
        return torch.sigmoid(self.log_odds(logit))


@dataclass(frozen=True, slots=True)
class Reliability:
    """What was said and what was so: in each bin of equal mass the mean score, the share that was true, the pairs."""

    score: tuple[float, ...]
    share: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def ece(self) -> float:
        """The expected calibration error: the mean distance between what was said and what was so."""
        return self._mean([abs(a - b) for a, b in zip(self.score, self.share, strict=True)])

    @property
    def chance(self) -> float:
        """The error that scores without any would show here, by chance: the more, the fewer pairs there are."""
        parts = zip(self.score, self.count, strict=True)
        return self._mean([sqrt(2 / pi * score * (1 - score) / count) for score, count in parts])

    def _mean(self, values: list[float]) -> float:
        return float(np.average(values, weights=self.count))


def compute_reliability(
    score: Float[Tensor, "p"], label: Float[Tensor, "p"], bins: int = BINS
) -> Reliability:
    """Pairs in bins of equal mass by their score; equal scores are equally often true, whatever bin they are in."""
    if not score.numel():
        raise ScoreError("there are no scores to judge; ask about at least one pair")
    said, true = score.detach().cpu().double().numpy(), label.detach().cpu().double().numpy()
    _, group, size = np.unique(said, return_inverse=True, return_counts=True)
    true = (np.bincount(group, true) / size)[group]
    parts = np.array_split(np.argsort(said, kind="stable"), min(bins, len(said)))
    return Reliability(
        tuple(float(said[part].mean()) for part in parts),
        tuple(float(true[part].mean()) for part in parts),
        tuple(len(part) for part in parts),
    )


def fit_calibration(
    logit: Float[Tensor, "p"], label: Float[Tensor, "p"], number: Int64[Tensor, "p"]
) -> Calibration:
    """The line that makes probabilities of these logits; `number` says which comes before which."""
    if not logit.numel() or not bool(torch.isfinite(logit).all()):
        raise ScoreError("probabilities are fitted to finite scores, of at least one pair; mend the scores")
    z, y = logit.detach().cpu().double(), label.detach().cpu().double()
    block = number.cpu() * BLOCKS // (int(number.max()) + 1)
    last = _choose_blocks(z, y, block)
    used = block >= BLOCKS - last
    straight = fit_line(z[used], y[used])
    bends = fit_knots(z[used], y[used], straight)
    return Calibration(*straight, float(y[used].mean()), int(used.sum()), last / BLOCKS, bends)


def fit_line(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"]) -> tuple[float, float]:
    """Slope and bias of the least cross-entropy with Platt's targets, by Newton's method; the slope is positive."""
    true, false = float(y.sum()), float((1 - y).sum())
    target = torch.where(y > 0.5, (true + 1) / (true + 2), 1 / (false + 2)).double()
    middle, scale = float(z.mean()), float(z.std(correction=0)) or 1.0
    x = torch.stack([(z - middle) / scale, torch.ones_like(z)], dim=1)
    found = _fit_logistic(x, target)
    if found[0] / scale < MIN_SLOPE:  # no order is turned round
        held = MIN_SLOPE * z
        return MIN_SLOPE, float(_fit_logistic(x[:, 1:], target, held)[0])
    slope = float(found[0]) / scale
    return slope, float(found[1]) - slope * middle


def fit_knots(
    z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], straight: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """Logits and log-odds of bins of equal mass, rising; none where there are too few pairs to tell."""
    if min(float(y.sum()), float((1 - y).sum())) < MIN_KNOT_PAIRS * KNOTS:
        return ()
    slope, bias = straight
    found = compute_reliability(z, y, KNOTS)
    x, first = np.unique(found.score, return_index=True)  # bins of one and the same logit are one
    count = np.add.reduceat(np.array(found.count), first)
    true = np.add.reduceat(np.array(found.share) * np.array(found.count), first)
    said = 1 / (1 + np.exp(-np.clip(slope * x + bias, -50, 50)))
    share = _fit_isotonic((true + PRIOR_PAIRS * said) / (count + PRIOR_PAIRS), count + PRIOR_PAIRS)
    odds = np.log(share) - np.log1p(-share)
    for place in range(1, len(x)):
        odds[place] = max(odds[place], odds[place - 1] + MIN_SLOPE * (x[place] - x[place - 1]))
    return tuple(zip(x.tolist(), odds.tolist(), strict=True))


def _fit_isotonic(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The nearest values that never fall: those that do are pooled with their neighbours."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for mean, mass in zip(value.tolist(), weight.tolist(), strict=True):
        many = 1
        while pools and pools[-1][0] >= mean:
            other, more, few = pools.pop()
            mean, mass, many = (mean * mass + other * more) / (mass + more), mass + more, many + few
        pools.append((mean, mass, many))
    return np.repeat([mean for mean, _, _ in pools], [many for _, _, many in pools])


def _fit_logistic(
    x: Float64[Tensor, "p c"], target: Float64[Tensor, "p"], offset: Float64[Tensor, "p"] | float = 0.0
) -> Float64[Tensor, "c"]:
    """Logistic regression; a step that does not help is halved. A hair of ridge keeps level logits solvable."""
    weight, ridge = x.new_zeros(x.shape[1]), 1e-9 * torch.eye(x.shape[1], dtype=x.dtype)

    def loss(at: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(x @ at + offset, target))

    now = loss(weight)
    for _ in range(MAX_STEPS):
        p = torch.sigmoid(x @ weight + offset)
        slope = x.T @ (p - target) / len(x)
        bend = (x * (p * (1 - p))[:, None]).T @ x / len(x) + ridge
        step = torch.linalg.solve(bend, slope)
        while (then := loss(weight - step)) > now and float(step.abs().max()) > 1e-12:
            step = step / 2
        if then > now or float(step.abs().max()) <= 1e-12:
            break
        weight, now = weight - step, then
    return weight


def _choose_blocks(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"]) -> int:
    """How many of the last blocks are fitted: all, unless fewer would surely have served what came after better."""
    for number in range(BLOCKS):
        own = y[block == number]
        if min(float(own.sum()), float((1 - own).sum())) < MIN_BLOCK_PAIRS:
            return BLOCKS

    whole = _next_block_losses(z, y, block, BLOCKS)
    gains = {length: whole - _next_block_losses(z, y, block, length) for length in SHORTER_PERIODS}
    sure = {
        length: float(gain.mean())
        for length, gain in gains.items()
        if float(gain.mean()) > MIN_STANDARD_ERRORS * float(gain.std()) / sqrt(len(gain))
    }
    return max(sure, key=lambda length: sure[length], default=BLOCKS)


def _next_block_losses(
    z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], block: Int64[Tensor, "p"], length: int
) -> Float64[Tensor, "_"]:
    """The cross-entropy of each pair but the first block's, by a line fitted to so many blocks before its own."""
    parts = []
    for number in range(1, BLOCKS):
        past, own = (block < number) & (block >= number - length), block == number
        slope, bias = fit_line(z[past], y[past])
        parts.append(binary_cross_entropy_with_logits(slope * z[own] + bias, y[own], reduction="none"))
    return torch.cat(parts)
