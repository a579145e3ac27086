"""Decisions by a threshold: precision, recall, alerts per day and lift on the test period, and a choice by costs.

Calibrated scores are probabilities, so an alert is worth its cost where the score is at least
false alarm / (false alarm + miss), where half of the pairs are real; `core/costs.py` has other shares.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dygmamba.core.costs import Costs
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.dataset_summary import TimeFormatter
from dygmamba.report.document import Cell, LineChart, ReportTable, Section
from dygmamba.report.results import MIN_EVENTS
from dygmamba.report.svg import format_number
from dygmamba.runs.stored_predictions import StoredPredictions

DAY = 86_400
SHOWN_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CURVE_THRESHOLDS = tuple(step / 50 for step in range(1, 50))
PAIR_WORDS, NODE_WORDS = ("pair", "real"), ("event", "positive")  # what is scored, and one that has the label


@dataclass(frozen=True, slots=True)
class Decision:
    """Precision, recall and alerts on the test period if every pair with at least this score is an alert."""

    threshold: float
    precision: float | None  # None without an alert
    recall: float
    alerts: int
    lift: float | None  # precision divided by the share of real events among all pairs
    false_alarms: int
    misses: int

    def compute_cost(self, costs: Costs) -> float:
        return self.false_alarms * costs.weighted_false_alarm + self.misses * costs.miss


def evaluate_threshold(score: np.ndarray, is_real: np.ndarray, threshold: float) -> Decision:
    """Count alerts, hits and misses of one threshold."""
    alert = score >= threshold
    alerts, hits, real = int(alert.sum()), int((alert & is_real).sum()), int(is_real.sum())
    precision = hits / alerts if alerts else None
    return Decision(
        threshold,
        precision,
        hits / real if real else 0.0,
        alerts,
        None if precision is None or not real else precision / (real / len(is_real)),
        alerts - hits,
        real - hits,
    )


def build_decisions_section(
    predictions: StoredPredictions,
    dataset: Dataset,
    scores: Tensor,
    costs: Costs | None = None,
    words: tuple[str, str] = PAIR_WORDS,
) -> Section | None:
    """Tabulate and plot what a threshold means on the test period.

    Args:
        predictions: Stored predictions of the test period.
        dataset: The dataset of the run.
        scores: Their scores, calibrated if the run is.
        costs: Costs of a false alarm and of a miss; they add a row with the threshold of the least expected cost.
        words: What is scored, and what those with the label are called: `PAIR_WORDS`, or `NODE_WORDS` of a node task.
    """
    score, is_real = scores.numpy(), predictions.label.numpy() > 0
    if not is_real.any() or is_real.all():
        return None
    times = TimeFormatter(dataset.is_dated)
    time = dataset.store.time[predictions.event]
    span = float(time.max() - time.min()) / (DAY if times.is_dated else 1)
    # of a long test only a part of the pairs is stored
    per_day = predictions.total / predictions.events / span if span > 0 else None
    thresholds = sorted({*SHOWN_THRESHOLDS, *(() if costs is None else (round(costs.threshold, 4),))})
    decisions = [evaluate_threshold(score, is_real, threshold) for threshold in thresholds]
    share, (unit, real) = is_real.mean(), words
    text = (
        f"What happens if every {unit} with at least this score is an alert, on {len(score):,} {unit}s of the test "
        f"period, {100 * share:.0f} % of them {real} events. Precision is the share of alerts that are {real}, recall "
        f"the share of {real} events with an alert, lift is precision divided by the share of {real} events. Where "
        f"{real} {unit}s are rarer, precision is lower."
    )
    if (events := int(is_real.sum())) < MIN_EVENTS:
        text += f" There are {events} {real} events only: these figures may be chance."
    if costs is not None:
        text += _describe_costs(decisions, costs, score, is_real, words)
    rate = "alerts per day" if times.is_dated else "alerts per unit of time"
    columns = ("threshold", "precision (%)", "recall (%)", rate, "lift", "cost")
    rows = tuple(_build_row(decision, per_day, costs) for decision in decisions)
    curve = [evaluate_threshold(score, is_real, threshold) for threshold in CURVE_THRESHOLDS]
    chart = LineChart(
        title="Precision and recall by threshold",
        x="threshold",
        y="per cent",
        series={
            "precision": [(own.threshold, 100 * own.precision) for own in curve if own.precision is not None],
            "recall": [(own.threshold, 100 * own.recall) for own in curve],
        },
        x_range=(0, 1),
        y_range=(0, 100),
        note="A higher threshold gives fewer alerts, of which more are real, and misses more events.",
    )
    table = ReportTable("", "", columns, rows).drop_empty_columns()
    return Section("Decisions", text, (table,), (chart,) if events >= MIN_EVENTS else ())


def _build_row(decision: Decision, per_day: float | None, costs: Costs | None) -> tuple[Cell, ...]:
    is_chosen = costs is not None and decision.threshold == round(costs.threshold, 4)
    tone = "best" if is_chosen else ""
    return (
        Cell(f"{decision.threshold:g}" + (" (by costs)" if is_chosen else ""), tone),
        Cell("-" if decision.precision is None else f"{100 * decision.precision:.1f}", tone),
        Cell(f"{100 * decision.recall:.1f}", tone),
        Cell("" if per_day is None else f"{decision.alerts * per_day:,.4g}", tone),
        Cell("-" if decision.lift is None else f"{decision.lift:.2f}", tone),
        Cell("" if costs is None else format_number(decision.compute_cost(costs)), tone),
    )


def _describe_costs(
    decisions: list[Decision], costs: Costs, score: np.ndarray, is_real: np.ndarray, words: tuple[str, str]
) -> str:
    chosen = next(own for own in decisions if own.threshold == round(costs.threshold, 4))
    never, always = (
        evaluate_threshold(score, is_real, limit).compute_cost(costs) for limit in (np.inf, -np.inf)
    )
    unit, real = words
    share, scored = "", f"On these {unit}s"
    if costs.real_share is not None:
        share = f", and {100 * costs.real_share:g} % of the scored {unit}s are {real}"
        scored = f"On these events, with as many other {unit}s as that share says,"
    return (
        f" If a false alarm costs {costs.false_alarm:g} and a miss {costs.miss:g}{share}, alerts pay from a score of "
        f"{chosen.threshold:g} on. {scored} that costs {format_number(chosen.compute_cost(costs))}; no alerts "
        f"cost {format_number(never)}, alerts on every {unit} {format_number(always)}."
    )
