"""Monitoring: how a trained link run does on events that came after its dataset, by period and beside baselines.

Each new event is scored against one random pair, as in the test of the run. A score sees all strictly earlier events,
new ones too, but nothing is trained. The row of the test period is computed in the same way, from stored predictions.
Standard errors (`ap_se`, `auc_se`, `log_loss_se`, and `lead_se` of the AP above the best baseline) are those of a
result row: over blocks of events, or over the events; None where there are too few.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.stream import Stream
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.calibration import load_calibration, load_link_calibration
from dygmamba.runs.evaluation import Queries, Row, Scored, evaluate_queries
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.stored_predictions import load_predictions, recompute_predictions
from dygmamba.tasks.link import build_link_set

DAY = 86_400
MONDAY = 4 * DAY  # 1970-01-05 was a Monday
AUTO_ORDER, MAX_PERIODS = ("week", "day", "hour", "month"), 60
MAX_PARTS, MIN_PART_EVENTS = 10, 20  # of a stream whose times are plain numbers


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Figures of a run on new events: the test row, a row of all new events, a row per period, and shifted columns."""

    rows: list[Row]
    columns: list[Row]  # per feature: mean before, mean now, and the shift in standard deviations
    earlier: int  # events of the file that are not later than the dataset, left out
    is_dated: bool

    @property
    def total(self) -> Row:
        """The row of all new events."""
        return next(row for row in self.rows if row["period"] == "new")


def monitor_run(
    predictor: Predictor, events: Any, period: str = "auto", progress: Progress = SILENT
) -> Monitoring:
    """Evaluate a link run on new events.

    Args:
        predictor: The opened run.
        events: File or table of events; those that are not later than the run's dataset are left out.
        period: "hour", "day", "week", "month", "all", or "auto" for one that fits.
        progress: Observer.
    """
    run, (where, more) = predictor.run, predictor.read_events(events)
    # events are sorted by time, so the later ones are the end of the file's stream
    earlier = int((more.store.time <= run.dataset.store.time[-1]).sum())
    if earlier == len(more.store):
        raise ConfigError(
            f"{where} has no event after the last one of '{run.dataset.name}'; give events that came later",
            code="no-new-events",
        )
    dataset = predictor.extend(where, replace(more, store=more.store[earlier:]))
    first_new = len(run.dataset.store)
    stream = _build_stream(run, dataset, first_new)
    queries = Queries(build_link_set(stream.store, stream.split, "test"))
    calibration = load_link_calibration(run.folder, stream)
    with progress.stage("new events", len(queries.pairs.pairs)) as stage:
        scored = evaluate_queries(
            run.scorer, stream, queries, run.rule, run.seed, calibration, advance=stage.advance
        )
    probability = scored.score.double().sigmoid() if calibration is None else scored.probability
    assert probability is not None
    scored = replace(scored, score=probability, probability=probability)
    with progress.stage("baselines"):
        baselines = Baselines.on_cpu(dataset.name, stream, run.rule).score(queries)
    best = max(baselines, key=lambda name: baselines[name].link["ap_pooled"])
    is_dated = dataset.is_dated
    events, store = queries.pairs.events, dataset.store
    known = torch.zeros(store.num_nodes, dtype=torch.bool)
    known[store.src[:first_new]] = known[store.dst[:first_new]] = True
    is_unknown = ~(known[store.src[events]] & known[store.dst[events]])

    def describe(name: str, selected: Tensor) -> Row:
        time, own, rule = (
            store.time[events[selected]],
            scored.select(selected),
            baselines[best].select(selected),
        )
        figures = _compute_figures(own) | {"rule": best, "rule_ap": rule.link["ap_pooled"]}
        figures |= {"lead_se": own.difference(rule).error}
        unknown_share = float(is_unknown[selected].double().mean())
        return _build_row(name, time, len(time), figures, is_dated) | {"unknown_share": unknown_share}

    labels = _assign_periods(store.time[events].numpy(), period, is_dated)
    rows = [*_describe_test(run, is_dated), describe("new", torch.ones(len(events), dtype=torch.bool))]
    if len(names := dict.fromkeys(labels)) > 1:
        rows += [describe(name, torch.from_numpy(labels == name)) for name in names]
    return Monitoring(rows, _compare_columns(run, dataset, first_new), earlier, is_dated)


def _build_stream(run: OpenRun, dataset: Dataset, first_new: int) -> Stream:
    """Return the extended stream: training as it was, all later known events as validation, new events as test."""
    old, store = run.stream.split, dataset.store.without_labels()
    is_new = torch.ones(store.num_nodes, dtype=torch.bool)
    is_new[: len(old.new_nodes)] = old.new_nodes
    val, test = torch.cat([old.val, old.test]), torch.arange(first_new, len(store))
    split = replace(old, val=val, test=test, new_nodes=is_new)
    return Stream(store, split, run.stream.device)


def _compute_figures(scored: Scored) -> Row:
    """Return AP and AUC over all pairs at once, the log loss and the calibration error, with standard errors."""
    figures = scored.row(("ap_pooled", "auc_pooled", "log_loss", "ece", "ap_se", "auc_se", "log_loss_se"))
    return {name.removesuffix("_pooled"): value for name, value in figures.items()}


def _build_row(name: str, time: Tensor, events: int, figures: Row, is_dated: bool) -> Row:
    span = {"period": name, "start": float(time[0]), "end": float(time[-1]), "events": events}
    return span | figures | {"rate": _compute_rate(time, is_dated)}


def _compute_rate(time: Tensor, is_dated: bool) -> float | None:
    """Return events per day, or per unit of time; None without a span."""
    span = float(time[-1] - time[0])
    return (len(time) - 1) / span * (DAY if is_dated else 1) if span > 0 else None


def _describe_test(run: OpenRun, is_dated: bool) -> list[Row]:
    """Return the row of the test period; no row for a run that was trained on every event."""
    if not len(run.stream.split.test):
        return []
    predictions = load_predictions(run.folder) or recompute_predictions(run)
    store, calibration = run.stream.store, load_calibration(run.folder)
    new_ends = None if calibration is None else predictions.find_new_ends(store, run.stream.split)
    score = predictions.score(calibration, new_ends)
    key = {"split": "test", "setting": "transductive", "negatives": "random"}
    rules = [row for row in run.folder.rules() if all(row.get(name) == value for name, value in key.items())]
    best = max(rules, key=lambda row: row["ap_pooled"], default={})
    figures = _compute_figures(Scored(Queries(predictions.build_pairs(store)), score, score))
    figures |= {"rule": best.get("model"), "rule_ap": best.get("ap_pooled"), "lead_se": None}
    time = store.time[run.stream.split.test]
    return [_build_row("test", time, predictions.total, figures, is_dated) | {"unknown_share": None}]


def _assign_periods(time: np.ndarray, period: str, is_dated: bool) -> np.ndarray:
    """Return the name of the period of each event."""
    if period == "all":
        return np.full(len(time), "new")
    if not is_dated:
        if period != "auto":
            raise ConfigError(
                f"period '{period}' needs times that are dates, but those of this dataset are plain numbers; leave it "
                "out",
                code="period-without-dates",
            )
        parts = max(1, min(MAX_PARTS, len(time) // MIN_PART_EVENTS))
        width = (time[-1] - time[0]) / parts or 1.0
        part = np.minimum(((time - time[0]) // width).astype(np.int64), parts - 1)
        return np.array([f"from {time[0] + number * width:.6g}" for number in part])
    chosen = period if period != "auto" else next(
        (name for name in AUTO_ORDER if 2 <= len(np.unique(_name_periods(time, name))) <= MAX_PERIODS), "month"
    )  # fmt: skip
    return _name_periods(time, chosen)


def _name_periods(time: np.ndarray, period: str) -> np.ndarray:
    """Return the beginning of the hour, day, week (its Monday) or month (UTC) of each time, as text."""
    if period == "month":
        return time.astype(np.int64).astype("datetime64[s]").astype("datetime64[M]").astype(str)
    size = {"hour": 3_600, "day": DAY, "week": 7 * DAY}[period]
    start = (np.floor((time - MONDAY) / size) * size + MONDAY).astype(np.int64).astype("datetime64[s]")
    return start.astype("datetime64[h]" if period == "hour" else "datetime64[D]").astype(str)


def _compare_columns(run: OpenRun, dataset: Dataset, first_new: int) -> list[Row]:
    """Compare the mean of each edge feature in the training events and in the new ones, largest shift first."""
    edge = dataset.store.features.edge.double()
    before, now = edge[run.stream.split.train], edge[first_new:]
    names = run.dataset.origin.features or tuple(f"feature {at}" for at in range(edge.shape[1]))
    rows = []
    for at in range(edge.shape[1]):
        mean, new_mean, spread = (
            float(before[:, at].mean()),
            float(now[:, at].mean()),
            float(before[:, at].std()),
        )
        shift = (new_mean - mean) / spread if spread > 0 else (0.0 if new_mean == mean else None)
        name = names[at] if at < len(names) else f"feature {at}"
        rows.append({"column": name, "mean_training": mean, "mean_new": new_mean, "shift": shift})
    return sorted(
        rows, key=lambda row: float("inf") if row["shift"] is None else abs(row["shift"]), reverse=True
    )
