"""Calibration: from logits to probabilities, fitted on validation pairs.

First a line in the log-odds (Platt, "Probabilistic outputs for support vector machines", 1999, with his targets, so
that a fit exists even for separable logits). With enough pairs, a few knots are added: log-odds of bins of equal mass,
shrunk towards the line, made monotone (isotonic regression) and interpolated linearly. Then offsets of pairs with a new
source or a new destination are added to the log-odds, because a model is often more or less certain about nodes that it
was not trained with than it should be. For given offsets the map is strictly increasing in the logit.

A model that is trained with k negatives for each event has logits that are too low by log k. That needs no fit: with
too few pairs to fit anything, the logits are raised by it.

Legend: p pairs, c columns, n nodes, k events.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log, pi, sqrt
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dygmamba.core.errors import ConfigError, ScoreError
from dygmamba.core.settings import Bounds, Share
from dygmamba.data.events.event_store import EventStore
from dygmamba.nn.logistic import fit_logistic
from dygmamba.tasks.base import EvaluationSet

BINS = 10  # of equal mass
MIN_PAIRS = 20  # with fewer pairs of either class nothing is fitted
MIN_SLOPE = 1e-3  # a model that ranks worse than chance keeps its order, almost flat
KNOTS = 10
MIN_KNOT_PAIRS = 20  # with fewer pairs of either class per knot there are no knots
PRIOR_PAIRS = 4.0  # weight of the line at a knot, in pairs
EVENTS_PER_READ = 1 << 20
LARGEST_NUMBER = 1e9  # of logits, log-odds and slopes; products of two stay finite
Number = Annotated[float, Bounds(-LARGEST_NUMBER, LARGEST_NUMBER)]
OFFSET_RIDGE = 1.0  # penalty of squared offsets, in units of the log loss of one pair


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Tells which ends of a query are new: without a training event strictly before the query.

    Attributes:
        first: Time of the first training event of each node; infinite for a node without one.
    """

    first: Float64[Tensor, "n"]

    @staticmethod
    def from_events(store: EventStore, train: Int64[Tensor, "k"]) -> "NewNodes":
        first = torch.full((store.num_nodes,), inf, dtype=torch.float64)
        for rows in train.cpu().split(EVENTS_PER_READ):  # bounds the memory of a stream on disk
            for nodes in (store.src[rows], store.dst[rows]):
                first.scatter_reduce_(0, nodes.cpu().long(), store.time[rows].cpu().double(), "amin")
        return NewNodes(first)

    def find(
        self, src: Int64[Tensor, "*p"], dst: Int64[Tensor, "*p"], time: Float64[Tensor, "*p"]
    ) -> Bool[Tensor, "*p 2"]:
        """Return whether the source and whether the destination is new; nodes beyond the training stream are."""
        nodes = torch.stack([src, dst], dim=-1).cpu()
        is_listed = nodes < len(self.first)
        first = self.first[torch.where(is_listed, nodes, 0)]
        return ~is_listed | (first >= time.cpu()[..., None])


@dataclass(frozen=True, slots=True)
class Calibration:
    """Map from logits to log-odds: `slope` * logit + `bias`, or a piecewise linear curve through `knots`; plus offsets.

    Attributes:
        slope: Slope of the line, also beyond the outer knots.
        bias: Bias of the line.
        prior: Share of positives among the fitted pairs.
        pairs: Number of fitted pairs.
        stretch: Share of the validation period, counted from its end, that was fitted; below 1 only in files written
            before the first release.
        knots: (logit, log-odds) points.
        new_source: Added to the log-odds if the source is new.
        new_destination: Added if the destination is new.
        both_new: Added, besides the two others, if both are new.
    """

    slope: Annotated[float, Bounds(0, LARGEST_NUMBER, above=True)]
    bias: Number
    prior: Share
    pairs: Annotated[int, Bounds(0, 2**63 - 1)]
    stretch: Share
    knots: tuple[tuple[Number, Number], ...] = ()
    new_source: Number = 0.0
    new_destination: Number = 0.0
    both_new: Number = 0.0

    def __post_init__(self) -> None:
        if any(len(knot) != 2 for knot in self.knots) or any(
            not (left[0] < right[0] and left[1] <= right[1]) for left, right in pairwise(self.knots)
        ):
            raise ConfigError(
                "the knots of a calibration do not increase; fit it again", code="damaged-calibration"
            )

    @staticmethod
    def from_training(negatives: int, prior: float = 0.5, pairs: int = 0) -> "Calibration":
        """Return the calibration that only corrects the share of positives in training: 1 in 1 + `negatives`."""
        return Calibration(1.0, log(negatives), prior, pairs, 1.0)

    @property
    def is_fitted(self) -> bool:
        """Whether the calibration was fitted to validation pairs; if not, it only adds log(negatives) to the logits."""
        return self.slope != 1.0 or bool(self.knots) or self.has_offsets

    @property
    def has_offsets(self) -> bool:
        """Whether the probability of a pair depends on which of its ends are new."""
        return any((self.new_source, self.new_destination, self.both_new))

    def log_odds(
        self, logit: Float[Tensor, "*p"], new_ends: Bool[Tensor, "*p 2"] | None = None
    ) -> Float64[Tensor, "*p"]:
        """Return the log-odds in 64 bits, in which even extreme logits keep their order.

        Args:
            logit: Logits of pairs.
            new_ends: Whether the source and the destination of each pair are new; without it, none is.
        """
        odds = self._evaluate_curve(logit.double())
        if new_ends is None:
            return odds
        offsets = odds.new_tensor([self.new_source, self.new_destination, self.both_new])
        return odds + _context_columns(new_ends.to(odds.device)) @ offsets

    def _evaluate_curve(self, z: Float64[Tensor, "*p"]) -> Float64[Tensor, "*p"]:
        # tensors: the export to ONNX rounds Python numbers to 32 bits
        slope, bias = z.new_tensor(self.slope), z.new_tensor(self.bias)
        if len(self.knots) < 2:
            return slope * z + bias
        x, f = torch.tensor(self.knots, dtype=torch.float64).T.contiguous()
        left = (torch.searchsorted(x, z.contiguous()) - 1).clamp(0, len(x) - 2)
        inside = f[left] + (z - x[left]) * (f[left + 1] - f[left]) / (x[left + 1] - x[left])
        below, above = f[0] + slope * (z - x[0]), f[-1] + slope * (z - x[-1])
        return torch.where(z < x[0], below, torch.where(z > x[-1], above, inside))

    def probability(
        self, logit: Float[Tensor, "*p"], new_ends: Bool[Tensor, "*p 2"] | None = None
    ) -> Float64[Tensor, "*p"]:
        """Return the calibrated probabilities; the arguments are those of `log_odds`."""
        return compute_logistic(self.log_odds(logit, new_ends))


def compute_logistic(odds: Float64[Tensor, "*p"]) -> Float64[Tensor, "*p"]:
    """Return the logistic function of log-odds, equal bits for equal values.

    Of a contiguous tensor, torch computes the last values in another way than the others, which rounds some of them
    differently: the score of a pair would depend on its place in the table. Of a view with gaps, all are alike.
    """
    return torch.sigmoid(torch.stack([odds, odds], dim=-1)[..., 0])


@dataclass(frozen=True, slots=True)
class LinkCalibration:
    """Calibrations of a link run, one per setting.

    A probability is "against a random destination". The settings draw it among different nodes: all destinations, or
    only those of events with a new node. So a pair has other odds in each of them, and each has its own fit.

    Attributes:
        transductive: For the setting of all nodes, and for predictions.
        inductive: For the setting of new nodes; None in files written before the first release, which use the other.
        new_nodes: Tells which ends of a pair are new.
    """

    transductive: Calibration
    inductive: Calibration | None
    new_nodes: NewNodes

    def select(self, setting: str) -> Calibration:
        """Return the calibration of a setting."""
        return self.transductive if setting == "transductive" or self.inductive is None else self.inductive

    def probability(self, logit: Float[Tensor, "p"], evaluation_set: EvaluationSet) -> Float64[Tensor, "p"]:
        """Return the probabilities of an evaluation set with the calibration of its setting."""
        pairs = evaluation_set.pairs
        new_ends = self.new_nodes.find(pairs.src, pairs.dst, pairs.time)
        return self.select(evaluation_set.about["setting"]).probability(logit.cpu(), new_ends)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Reliability diagram: mean score, share of positives and number of pairs in bins of equal mass."""

    score: tuple[float, ...]
    share: tuple[float, ...]
    count: tuple[Annotated[int, Bounds(1, 2**63 - 1)], ...]

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
    logit: Float[Tensor, "p"],
    label: Float[Tensor, "p"],
    new_ends: Bool[Tensor, "p 2"] | None = None,
    negatives: int = 1,
) -> Calibration:
    """Fit a calibration to logits of known labels; with too few pairs it only adds log(`negatives`) to the logits.

    Args:
        logit: Logits of the pairs.
        label: 1 for events, 0 for negatives.
        new_ends: Whether the source and the destination of each pair are new. Without it there are no offsets.
        negatives: Negatives per event that the model was trained with.
    """
    if not logit.numel() or not bool(torch.isfinite(logit).all()):
        raise ScoreError(
            "a calibration needs finite scores of at least one pair; remove or replace the others",
            code="not-finite",
        )
    z, y = logit.detach().cpu().double(), label.detach().cpu().double()
    if min(float(y.sum()), float((1 - y).sum())) < MIN_PAIRS:
        return Calibration.from_training(negatives, float(y.mean()), len(z))
    line = fit_line(z, y)
    curve = Calibration(*line, float(y.mean()), len(z), 1.0, fit_knots(z, y, line))
    return curve if new_ends is None else fit_offsets(curve, z, y, new_ends.cpu())


def fit_line(z: Float64[Tensor, "p"], y: Float64[Tensor, "p"]) -> tuple[float, float]:
    """Return the positive slope and the bias that minimize the cross-entropy with Platt's targets."""
    target = _smooth_labels(y)
    mean, scale = float(z.mean()), float(z.std(correction=0)) or 1.0
    x = torch.stack([(z - mean) / scale, torch.ones_like(z)], dim=1)
    weight = fit_logistic(x, target)
    if weight[0] / scale < MIN_SLOPE:  # a negative slope would reverse the ranking
        fixed = MIN_SLOPE * z
        return MIN_SLOPE, float(fit_logistic(x[:, 1:], target, fixed)[0])
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


def fit_offsets(
    curve: Calibration, z: Float64[Tensor, "p"], y: Float64[Tensor, "p"], new_ends: Bool[Tensor, "p 2"]
) -> Calibration:
    """Add offsets for new ends to a calibration, and move its curve so that the mean probability stays right.

    The offsets minimize the cross-entropy plus a ridge penalty: with few pairs of a context its offset is near 0.
    """
    x = torch.cat([torch.ones(len(z), 1, dtype=z.dtype), _context_columns(new_ends)], dim=1)
    penalty = OFFSET_RIDGE / len(z) * z.new_tensor([0.0, 1.0, 1.0, 1.0])
    weight = fit_logistic(x, _smooth_labels(y), curve.log_odds(z), penalty)
    shift, new_source, new_destination, both_new = weight.tolist()
    return replace(
        curve,
        bias=curve.bias + shift,
        knots=tuple((at, odds + shift) for at, odds in curve.knots),
        new_source=new_source,
        new_destination=new_destination,
        both_new=both_new,
    )


def _context_columns(new_ends: Bool[Tensor, "*p 2"]) -> Float64[Tensor, "*p 3"]:
    return torch.cat([new_ends, new_ends.all(dim=-1, keepdim=True)], dim=-1).double()


def _smooth_labels(y: Float64[Tensor, "p"]) -> Float64[Tensor, "p"]:
    """Return Platt's targets, which are slightly inside 0 and 1."""
    true, false = float(y.sum()), float((1 - y).sum())
    return torch.where(y > 0.5, (true + 1) / (true + 2), 1 / (false + 2)).double()


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
