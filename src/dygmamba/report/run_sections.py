"""Sections of a report that need only the run directory: results, baselines, training, learned decay.

Result rows are plain dictionaries, as `RunDirectory.results` returns them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dygmamba.data.events.times import format_duration
from dygmamba.explain.forgetting import QUANTILES, Forgetting
from dygmamba.report.document import AxisKind, BarChart, Cell, LineChart, Point, ReportTable, Section
from dygmamba.tasks.metric_names import (
    ERROR_SUFFIX,
    SETTING_LABELS,
    find_metric,
    format_metric,
    get_metric_scale,
    get_metric_title,
    get_metric_unit,
    is_rank_metric,
    list_changes,
    list_metrics,
)

Records = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Card:
    """One number in the box at the top of the page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class ReportTask:
    """Parts of a report that differ between tasks."""

    metrics: dict[str, str]  # key in a result row -> heading of the column
    explanation: str  # how to read the metrics
    watched: str  # metric of the validation that selects the best epoch
    caption: str  # of the validation curve
    describe_row: Callable[[dict[str, Any]], tuple[str, str]]
    build_cards: Callable[[Records, str], list[Card]]
    summarize: Callable[[Records, str], str]
    ranked: bool  # whether events are ranked against random pairs
    loss: str = "binary cross-entropy, nats"


def describe_link_row(row: dict[str, Any]) -> tuple[str, str]:
    """Return the title of the table that a result row belongs to, and a note on its size and negatives."""
    title = f"{row['split']}, {SETTING_LABELS[row['setting']]} ({row['setting']})"
    against = f"{row['negatives']} negatives" if "negatives" in row else f"{row.get('candidates')} candidates"
    return title, f"{row['n']:,} events, {against}"


def build_link_cards(results: Records, own: str) -> list[Card]:
    """Show test AP with random negatives, next to the best baseline."""
    cards = []
    for setting, name in (("transductive", "Test AP"), ("inductive", "Test AP, new nodes")):
        scores = _get_test_ap(results, setting)
        others = {model: ap for model, ap in scores.items() if model != own}
        if own in scores:
            best = max(others, key=others.__getitem__, default="")
            note = f"best baseline: {others[best]:.2f} ({best})" if others else "random negatives"
            cards.append(Card(name, f"{scores[own]:.2f}", note))
    return cards


QUERY_COLUMNS_CAVEAT = (
    "It knows the columns of the event in question, which the baselines and other runs do not, so do not compare its "
    "figures with theirs."
)


def summarize_link_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    for row in results:
        protocol = (row["model"], *_get_protocol(row))
        if protocol == (own, "test", "transductive", "random") and row.get("auc_pooled"):
            found = (
                f"The model gives a test event a higher score than a random pair in {100 * row['auc_pooled']:.0f} of "
                "100 cases; random guessing does so in 50."
            )
            return f"{found} {QUERY_COLUMNS_CAVEAT}" if row.get("query_columns") else found
    return ""


REPORT_TASKS = {
    "link": ReportTask(
        metrics={name: get_metric_title(name) for name in list_metrics("pairs")},
        explanation="All values are percentages, computed with one negative pair per event at the same time. AP and "
        "AUC are means over batches of 200 events, as in the literature; “pooled” ranks all pairs together.",
        watched="ap",
        caption="All nodes. The run keeps the weights of the best epoch. Higher is better.",
        describe_row=describe_link_row,
        build_cards=build_link_cards,
        summarize=summarize_link_results,
        ranked=True,
    ),
}


def build_results_section(results: Records, own: str, task: ReportTask) -> Section:
    """Show every result row, the test first, with the best value of each column highlighted."""
    if not results:
        return Section("Results", "There are no results yet: the run is not finished.")
    groups: dict[tuple[str, str], Records] = {}
    for row in sorted(results, key=lambda row: row["split"] != "test"):
        groups.setdefault(task.describe_row(row), []).append(row)
    tables = [_build_results_table(title, note, rows, own, task) for (title, note), rows in groups.items()]
    best = "The best value of a column is blue." if any(len(table.rows) > 1 for table in tables) else ""
    sentences = (task.summarize(results, own), task.explanation, best)
    return Section("Results", " ".join(filter(None, sentences)), tuple(tables))


def build_baselines_section(results: Records, own: str, verdict: str = "") -> Section | None:
    """Compare the model with baselines that need no training; None if the run has none."""
    values: dict[str, dict[str, float]] = {}
    for setting, name in SETTING_LABELS.items():
        scores = _get_test_ap(results, setting)
        if own in scores and len(scores) > 1:
            values[name] = dict(sorted(scores.items(), key=lambda pair: -pair[1]))
    if not values:
        return None
    low = 50.0 if all(ap >= 50 for scores in values.values() for ap in scores.values()) else 0.0
    note = "Test with random negatives; random guessing has 50. The colored bar is this run."
    chart = BarChart("AP by model", "AP (%)", values, own, low, note)
    sentences = [_describe_margin(nodes, scores, own) for nodes, scores in values.items()]
    sentences += [f"Verdict: {verdict.rstrip('.')}."] if verdict else []
    return Section("Comparison with baselines", " ".join(sentences), (), (chart,))


def _describe_margin(nodes: str, scores: dict[str, float], own: str) -> str:
    best, ap = max(((name, ap) for name, ap in scores.items() if name != own), key=lambda pair: pair[1])
    margin = scores[own] - ap
    side = "above" if margin >= 0 else "below"
    text = f"On {nodes}, the AP of the model is {abs(margin):.2f} points {side} the best baseline ({best})."
    return text if margin >= 0 else f"{text} The baseline is better and needs no training."


def _build_results_table(title: str, note: str, rows: Records, own: str, task: ReportTask) -> ReportTable:
    ranks = sorted({key for row in rows for key in row if is_rank_metric(key)})
    metrics = task.metrics | {
        key: get_metric_title(key) for key in ranks if any(row.get(key) is not None for row in rows)
    }
    best = {key: find_best_value(key, [row.get(key) for row in rows]) for key in metrics}
    cells = []
    for row in rows:
        name = Cell(f"{row['model']}{' (this run)' if row['model'] == own and len(rows) > 1 else ''}")
        values = (
            _format_metric_cell(row, key, len(rows) > 1 and row.get(key) == best[key], key in ranks)
            for key in metrics
        )
        cells.append((name, *values))
    changes = "; ".join(list_changes(row for row in rows if row["model"] == own))
    note = ". ".join(
        filter(None, (note, f"{changes[:1].upper()}{changes[1:]}", _describe_ranked_events(rows)))
    )
    return ReportTable(title, note, ("model", *metrics.values()), tuple(cells))


def find_best_value(metric: str, values: Iterable[float | None]) -> float | None:
    """Return the best value of a metric: the lowest of an error, else the highest; None without values."""
    known = [value for value in values if value is not None]
    return (min if find_metric(metric).lower_is_better else max)(known, default=None)


def _describe_ranked_events(rows: Records) -> str:
    """Say how many events MRR and Hits@k are computed from; empty if no row has them."""
    row = next((row for row in rows if row.get("ranked")), None)
    if row is None:
        return ""
    events = f"{row['ranked']:,} of the {row['n']:,} events"
    if row["ranked"] == row["n"]:
        events = f"all {row['n']:,} events"
    among = f"among {row['candidates']} random destinations" if row.get("candidates") else "among candidates"
    return f"MRR and Hits@10: ranks of {events} {among}, ± one standard error."


def _get_protocol(row: dict[str, Any]) -> tuple[str | None, ...]:
    return row.get("split"), row.get("setting"), row.get("negatives")


def _get_test_ap(results: Records, setting: str) -> dict[str, float]:
    """Return test AP with random negatives by model, in percent."""
    return {
        row["model"]: 100 * row["ap"]
        for row in results
        if _get_protocol(row) == ("test", setting, "random") and row.get("ap") is not None
    }


def _format_metric_cell(row: dict[str, Any], key: str, best: bool, optional: bool) -> Cell:
    """Format a metric, shares in percent: "none" if it is undefined, empty if an optional one was not computed."""
    if row.get(key) is None:
        return Cell("" if optional else "none")
    return Cell(format_metric(key, row[key], row.get(f"{key}{ERROR_SUFFIX}")), "best" if best else "")


def describe_start(config: dict[str, dict[str, Any]]) -> str:
    """Describe the run that a run started from; empty for one that was trained anew."""
    start, chosen = config["run"].get("start_from"), config.get("chosen", {}).get("start_from")
    if start is None:
        return ""
    return f"Training did not begin anew: it started from {chosen or start}."


def build_training_section(epochs: Records, task: ReportTask, start: str = "") -> Section:
    """Plot the training loss and the watched validation metric by epoch; `start` says where the weights come from."""
    if not epochs:
        return Section("Training", f"No epoch is finished yet. {start}".strip())
    watched = get_metric_title(task.watched)
    name = f"validation {watched}"
    loss = LineChart(
        title="Training loss",
        x="epoch",
        y=f"loss ({task.loss})",
        series={"training loss": [(entry["epoch"] + 1, entry["loss"]) for entry in epochs]},
        x_kind="count",
        note="Mean over the batches of an epoch. Lower is better.",
    )
    quality = LineChart(
        title=f"Validation {watched}",
        x="epoch",
        y=f"{name}{get_metric_unit(task.watched)}",
        series={name: get_validation_curve(epochs, task.watched)},
        x_kind="count",
        note=task.caption,
    )
    return Section("Training", start, (), (loss, quality))


def get_validation_curve(epochs: Records, watched: str) -> list[Point]:
    """Return the watched metric by epoch, shares in percent."""
    scale = get_metric_scale(watched)
    return [(entry["epoch"] + 1, scale * entry[f"val_{watched}"]) for entry in epochs]


def build_forgetting_section(forgetting: Forgetting | None, seconds: bool = False) -> Section | None:
    """Plot how an event's influence decays with its age, by the scores and by the weights of the model.

    Args:
        forgetting: The measured curves; None if they were not measured.
        seconds: Whether the times of the stream are in seconds; they are if its law of decay is known.
    """
    if forgetting is None:
        return None
    seconds = seconds or forgetting.law is not None
    kind: AxisKind = "span" if seconds else "log"
    unit = "" if seconds else ", in the unit of the data"
    law: dict[str, list[Point]] = {}
    if forgetting.true:
        law = {f"true law ({forgetting.law})": list(zip(forgetting.span, forgetting.true, strict=True))}
    points = list(zip(forgetting.span, forgetting.learned, forgetting.error, strict=True))
    charts = [
        LineChart(
            title="Forgetting in the scores",
            x=f"age of the event{unit}",
            y="return weight (1 at the smallest age)",
            series={"learned": [(age, weight) for age, weight, _ in points], **law},
            x_kind=kind,
            bands={
                "± 2 standard errors": [
                    (age, max(weight - 2 * error, 0.0), weight + 2 * error) for age, weight, error in points
                ]
            },
            note="How much an earlier event of the pair still counts at this age. In histories of the test period, "
            "one event of the pair is moved to another time and everything else is kept. The weight is "
            "exp(logit with the event) minus exp(logit without it), up to a factor per history, fitted over "
            f"{forgetting.probes:,} probes.",
        )
    ]
    if retention := forgetting.retention:
        low, *_, high = (f"{level:g}" for level in QUANTILES)
        reach = _format_rounded(forgetting.reach) if seconds else f"{forgetting.reach:.4g}"
        charts.append(
            LineChart(
                title="Forgetting in the weights",
                x=f"time gap between two events{unit}",
                y="share of the state that remains",
                series={"median channel": list(zip(forgetting.span, retention["0.5"], strict=True)), **law},
                x_kind=kind,
                bands={
                    "10 % to 90 % of the channels": list(
                        zip(forgetting.span, retention[low], retention[high], strict=True)
                    )
                },
                y_range=(0.0, 1.03),
                note=f"exp(Δ(s)·A) of Eq. 11 over channels and states, for a history of median duration ({reach}). A "
                "channel may store what no repeated event depends on, so single channels need not follow the law.",
            )
        )
    return Section("Learned decay", _describe_closeness(forgetting), (), tuple(charts))


def _describe_closeness(forgetting: Forgetting) -> str:
    if forgetting.closeness is None:
        return "How fast an earlier event loses its influence on the scores of the model."
    close = forgetting.closeness
    youngest, oldest = _format_rounded(forgetting.span[0]), _format_rounded(forgetting.span[-1])
    text = (
        f"The stream was generated with a known law of decay. For ages from {youngest} to {oldest}, the learned "
        f"weight has a correlation of {close.correlation:.3f} with it; the mean difference is {close.mean_gap:.3f} and "
        f"the largest {close.max_gap:.3f}, where the weight at the smallest age is 1."
    )
    if close.half_life and close.true_half_life:
        text += (
            f" The learned half-life is {_format_rounded(close.half_life)}, the true one "
            f"{_format_rounded(close.true_half_life)}."
        )
    return text


def _format_rounded(seconds: float) -> str:
    return format_duration(float(f"{seconds:.6g}"))
