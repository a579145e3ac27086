"""Report sections of node tasks: two states, classes or numbers."""

from dataclasses import replace
from functools import partial
from typing import Any

from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.document import Card
from dygmamba.report.run_sections import REPORT_TASKS, Records, ReportTask, describe_few_events
from dygmamba.tasks.metric_names import (
    CONSTANT_PREFIX,
    CONSTANT_TITLES,
    NODE_METRICS,
    find_metric,
    format_metric,
    get_metric_title,
)

RANKING_LOSS = "softmax cross-entropy, nats"
# by target: a metric, a sentence about it, and one about the best constant prediction
SUMMARIES = {
    "binary": (
        "auc",
        "The model gives a test event of state 1 a higher score than one of state 0 in {} of 100 cases; random "
        "guessing does so in 50",
        "",
    ),
    "classes": (
        "accuracy",
        "The model predicts the class of {} of 100 test events",
        "always the most frequent class of the training period has {}",
    ),
    "regression": (
        "mae",
        "Predictions of test events are off by {} on average, in the unit of the labels",
        "always the median of training by {}",
    ),
}
BEST_EPOCH = "Over the whole period. The run keeps the weights of the best epoch."


def find_report_task(run: RunDirectory) -> ReportTask:
    """Return what the report of a run shows; a node run without a target is from before there were others."""
    if run.task == "node":
        return NODE_REPORTS[run.config()["run"].get("target", "binary")]
    task, settings = REPORT_TASKS["link"], run.config().get("train", {})
    if settings.get("best_metric") == "mrr":
        task = replace(task, watched="mrr")
    return replace(task, loss=RANKING_LOSS) if settings.get("loss") == "ranking" else task


def build_node_cards(results: Records, own: str) -> list[Card]:
    """Show the metrics of the test, each with what a constant prediction reaches, or with the size of the test."""
    cards = []
    for row in (row for row in results if row["split"] == "test"):
        for name in NODE_METRICS[row.get("target", "binary")]:
            if row.get(name) is not None:
                notes = (describe_few_events(row), _describe_reference(row, name) or _describe_size(row))
                value, note = format_metric(name, row[name]), "; ".join(filter(None, notes))
                cards.append(Card(f"Test {get_metric_title(name)}", value, note))
    return cards


def _describe_reference(row: dict[str, Any], name: str) -> str:
    """Return what random guessing or the best constant prediction reaches; empty if that says nothing."""
    target = row.get("target", "binary")
    if (target, name) == ("binary", "ap"):
        return f"random guessing: {format_metric(name, row['positives'] / row['n'])}"
    value = row.get(f"{CONSTANT_PREFIX}{name}")
    what = {"mae": "median of training", "rmse": "mean of training"}.get(
        name, CONSTANT_TITLES.get(target, "")
    )
    return "" if value is None else f"always the {what}: {format_metric(name, value)}"


def _describe_size(row: dict[str, Any]) -> str:
    parts = [f"{row['n']:,} events"]
    parts += [f"{row['positives']:,} of them positive"] if "positives" in row else []
    parts += [f"{row['classes']:,} classes in training"] if "classes" in row else []
    return ", ".join(parts)


def summarize_node_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    for row in results:
        metric, sentence, beside = SUMMARIES[row.get("target", "binary")]
        if row["split"] == "test" and row.get(metric) is not None:
            constant = row.get(f"{CONSTANT_PREFIX}{metric}")
            found = sentence.format(_format_plain(metric, row[metric]))
            found += "" if constant is None else f"; {beside.format(_format_plain(metric, constant))}"
            return f"{found}."
    return ""


def _format_plain(metric: str, value: float) -> str:
    """Format a share as a number of 100, another metric in its unit."""
    return f"{100 * value:.0f}" if find_metric(metric).is_share else format_metric(metric, value)


_make_task = partial(ReportTask, build_cards=build_node_cards, summarize=summarize_node_results, ranked=False)
NODE_REPORTS = {
    "binary": _make_task(
        explanation="All values are percentages and say how well events of state 1 are ranked above the others, over "
        "the whole period at once. If positives are rare, AUC can be high although AP is low.",
        watched="auc",
        caption=f"{BEST_EPOCH} Higher is better.",
    ),
    "classes": _make_task(
        explanation="All values are percentages, over the whole period at once. Macro-F1 is the mean over classes of "
        "the harmonic mean of precision and recall, so rare classes count as much as frequent ones.",
        watched="macro_f1",
        caption=f"{BEST_EPOCH} Higher is better.",
        loss="cross-entropy, nats",
    ),
    "regression": _make_task(
        explanation="Mean absolute error and root of the mean squared error over the whole period, in the unit of the "
        "labels. Lower is better.",
        watched="mae",
        caption=f"{BEST_EPOCH} Lower is better.",
        loss="squared error in standard deviations of the training labels",
    ),
}
