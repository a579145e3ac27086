"""Report sections of node tasks: two states, classes or numbers."""

from dataclasses import replace
from typing import Any

from dygmamba.engine.run_directory import RunDirectory
from dygmamba.report.run_sections import REPORT_TASKS, Card, Records, ReportTask
from dygmamba.tasks.metric_names import (
    CONSTANT_PREFIX,
    CONSTANT_TITLES,
    NODE_METRICS,
    format_metric,
    get_metric_title,
)

RANKING_LOSS = "softmax cross-entropy, nats"
BEST_EPOCH = "Over the whole period. The run keeps the weights of the best epoch."


def find_report_task(run: RunDirectory) -> ReportTask:
    """Return what the report of a run shows; a node run without a target is from before there were others."""
    if run.task == "node":
        return NODE_REPORTS[run.config()["run"].get("target", "binary")]
    task, settings = REPORT_TASKS["link"], run.config().get("train", {})
    if settings.get("best_metric") == "mrr":
        task = replace(task, watched="mrr")
    return replace(task, loss=RANKING_LOSS) if settings.get("loss") == "ranking" else task


def describe_binary_row(row: dict[str, Any]) -> tuple[str, str]:
    """Return the title of the table that a result row belongs to, and a note on its size and positives."""
    return row["split"], f"{row['n']:,} events, {row['positives']:,} of them positive"


def describe_class_row(row: dict[str, Any]) -> tuple[str, str]:
    """Return the title of the table that a result row belongs to, and a note on its size and classes."""
    return row["split"], f"{row['n']:,} events, {row['classes']:,} classes in training"


def describe_number_row(row: dict[str, Any]) -> tuple[str, str]:
    """Return the title of the table that a result row belongs to, and a note on its size."""
    return row["split"], f"{row['n']:,} events"


def build_binary_cards(results: Records, own: str) -> list[Card]:
    """Show test AUC, and test AP next to the share of positives, which is the AP of random guessing."""
    cards = []
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            share = 100 * row["positives"] / row["n"]
            cards += [
                Card("Test AUC", f"{100 * row['auc']:.2f}", describe_binary_row(row)[1]),
                Card("Test AP", f"{100 * row['ap']:.2f}", f"random guessing: {share:.2f}"),
            ]
    return cards


def build_class_cards(results: Records, own: str) -> list[Card]:
    """Show test macro-F1 and accuracy."""
    return _build_cards(results, "classes", describe_class_row)


def build_number_cards(results: Records, own: str) -> list[Card]:
    """Show the errors of the test."""
    return _build_cards(results, "regression", describe_number_row)


def _build_cards(results: Records, kind: str, describe_row: Any) -> list[Card]:
    """Show the metrics of the test, each with that of the best constant prediction where the run has it."""
    return [
        Card(
            f"Test {get_metric_title(name)}",
            format_metric(name, row[name]),
            _describe_constant(row, kind, name) or describe_row(row)[1],
        )
        for row in results
        if row["split"] == "test"
        for name in NODE_METRICS[kind]
        if row.get(name) is not None
    ]


def _describe_constant(row: dict[str, Any], kind: str, name: str) -> str:
    value = row.get(f"{CONSTANT_PREFIX}{name}")
    what = {"mae": "median of training", "rmse": "mean of training"}.get(name, CONSTANT_TITLES[kind])
    return "" if value is None else f"always the {what}: {format_metric(name, value)}"


def summarize_binary_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            return (
                f"The model gives a test event of state 1 a higher score than one of state 0 in {100 * row['auc']:.0f} "
                "of 100 cases; random guessing does so in 50."
            )
    return ""


def summarize_class_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    for row in results:
        if row["split"] == "test" and row["accuracy"] is not None:
            found = f"The model predicts the class of {100 * row['accuracy']:.0f} of 100 test events"
            constant = row.get(f"{CONSTANT_PREFIX}accuracy")
            if constant is None:
                return f"{found}."
            return f"{found}; always the most frequent class of the training period has {100 * constant:.0f}."
    return ""


def summarize_number_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    for row in results:
        if row["split"] == "test" and row["mae"] is not None:
            found = f"Predictions of test events are off by {row['mae']:.4g} on average, in the unit of the labels"
            constant = row.get(f"{CONSTANT_PREFIX}mae")
            return (
                f"{found}."
                if constant is None
                else f"{found}; always the median of training by {constant:.4g}."
            )
    return ""


NODE_REPORTS = {
    "binary": ReportTask(
        explanation="All values are percentages and say how well events of state 1 are ranked above the others, over "
        "the whole period at once. If positives are rare, AUC can be high although AP is low.",
        watched="auc",
        caption=f"{BEST_EPOCH} Higher is better.",
        build_cards=build_binary_cards,
        summarize=summarize_binary_results,
        ranked=False,
    ),
    "classes": ReportTask(
        explanation="All values are percentages, over the whole period at once. Macro-F1 is the mean over classes of "
        "the harmonic mean of precision and recall, so rare classes count as much as frequent ones.",
        watched="macro_f1",
        caption=f"{BEST_EPOCH} Higher is better.",
        build_cards=build_class_cards,
        summarize=summarize_class_results,
        ranked=False,
        loss="cross-entropy, nats",
    ),
    "regression": ReportTask(
        explanation="Mean absolute error and root of the mean squared error over the whole period, in the unit of the "
        "labels. Lower is better.",
        watched="mae",
        caption=f"{BEST_EPOCH} Lower is better.",
        build_cards=build_number_cards,
        summarize=summarize_number_results,
        ranked=False,
        loss="squared error in standard deviations of the training labels",
    ),
}
