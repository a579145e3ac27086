"""Sections of a report that need only the run directory: results, baselines, training, what trees use, learned decay.

Result rows are plain dictionaries, as `RunDirectory.results` returns them.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dygmamba.data.events.times import format_duration
from dygmamba.explain.feature_use import FeatureUse
from dygmamba.explain.forgetting import QUANTILES, Forgetting
from dygmamba.history.table_request import EVENT_COLUMN, HISTORY, NODE_COLUMN
from dygmamba.report.document import AxisKind, BarChart, Card, Cell, LineChart, Point, ReportTable, Section
from dygmamba.report.results import (
    MIN_EVENTS,
    PAIR_KEYS,
    build_ranking_tables,
    build_result_tables,
    build_type_table,
    select_typed_rows,
)
from dygmamba.tasks.metric_names import (
    SCOPE_LABELS,
    format_metric,
    get_metric_scale,
    get_metric_title,
    get_metric_unit,
)
from dygmamba.tasks.statistics import Difference

Records = list[dict[str, Any]]
# settings of a training without the columns of a kind
SETTINGS_WITHOUT = {EVENT_COLUMN: ("numeric_columns=0", "event_types=0"), NODE_COLUMN: ("node_columns=0",)}


@dataclass(frozen=True, slots=True)
class ReportTask:
    """Parts of a report that differ between tasks."""

    explanation: str  # how to read the metrics
    watched: str  # metric of the validation that selects the best epoch
    caption: str  # of the validation curve
    build_cards: Callable[[Records, str], list[Card]]
    summarize: Callable[[Records, str], str]
    ranked: bool  # whether events are ranked against random pairs
    loss: str = "binary cross-entropy, nats"


def build_link_cards(results: Records, own: str) -> list[Card]:
    """Show test AP with random negatives, next to the best baseline; of few events it says how many they are."""
    cards = []
    for setting, name in (("transductive", "Test AP"), ("inductive", "Test AP, new nodes")):
        rows = _find_test_rows(results, setting)
        others = {model: row["ap"] for model, row in rows.items() if model != own}
        if own in rows:
            note = "random negatives"
            if others:
                best = max(others, key=others.__getitem__)
                note = f"best baseline: {format_metric('ap', others[best])} ({best})"
            notes = filter(None, (describe_few_events(rows[own]), note))
            cards.append(Card(name, format_metric("ap", rows[own]["ap"]), "; ".join(notes)))
    return cards


def describe_few_events(row: dict[str, Any]) -> str:
    """Say that a figure may be chance; empty for enough events."""
    events = row.get("n", MIN_EVENTS)
    return "" if events >= MIN_EVENTS else f"only {events} event{'s' * (events != 1)}: may be chance"


QUERY_COLUMNS_CAVEAT = (
    "It knows the columns of the event in question, which the baselines and other runs do not, so do not compare its "
    "figures with theirs."
)


def summarize_link_results(results: Records, own: str) -> str:
    """State the result in one sentence; empty if the test has no result."""
    row = _find_test_rows(results, "transductive").get(own, {})
    if row.get("auc_pooled"):
        found = (
            f"The model gives a test event a higher score than a random pair in {100 * row['auc_pooled']:.0f} of 100 "
            "cases; random guessing does so in 50."
        )
        return f"{found} {QUERY_COLUMNS_CAVEAT}" if row.get("query_columns") else found
    return ""


REPORT_TASKS = {
    "link": ReportTask(
        explanation="All values are percentages, computed with one negative pair per event at the same time. AP and "
        "AUC are means over batches of 200 events, as in the literature; “pooled” ranks all pairs together.",
        watched="ap",
        caption="All nodes. The run keeps the weights of the best epoch. Higher is better.",
        build_cards=build_link_cards,
        summarize=summarize_link_results,
        ranked=True,
    )
}


def build_results_section(results: Records, own: str, task: ReportTask) -> Section:
    """Show the results of the run, the test first, with all baselines beside them."""
    mine = sorted((row for row in results if row["model"] == own), key=lambda row: row["split"] != "test")
    if not mine:
        return Section("Results", "There are no results yet: the run is not finished.")
    tables = build_result_tables(mine, [row for row in results if row["model"] != own])
    is_compared = any(len(table.rows) > len(mine) for table in tables)
    best = "The best value of an evaluation is blue." if is_compared else ""
    return Section(
        "Results", " ".join(filter(None, (task.summarize(results, own), task.explanation, best))), tables
    )


def build_query_type_section(results: Records, own: str) -> Section | None:
    """Show the results by query type; None if the results have none, as those of earlier versions."""
    rows = select_typed_rows([row for row in results if row["model"] == own])
    if not rows:
        return None
    others = [row for row in results if row["model"] != own]
    return Section("Results by query type", "", (build_type_table(rows, others),))


def build_ranking_section(ranking: Records, own: str, verdict: dict[str, Any]) -> Section | None:
    """Show the ranks of test events among all destinations; None for a run without them."""
    if not ranking:
        return None
    sentence = verdict.get("sentence", "").rstrip(".")
    text = "A list of ten shows the true destination in as many of 100 cases as Hits@10 says."
    rows = [row for row in ranking if row["model"] == own]
    tables = (*build_ranking_tables(ranking, own), build_type_table(rows, ()))
    return Section(
        "Ranks among all destinations", " ".join(filter(None, (sentence and f"{sentence}.", text))), tables
    )


def build_baselines_section(
    results: Records, own: str, verdict: dict[str, Any] | None = None
) -> Section | None:
    """Compare the model with baselines that need no training; None if the run has none."""
    values: dict[str, dict[str, float]] = {}
    sentences = []
    for setting, name in SCOPE_LABELS.items():
        rows = _find_test_rows(results, setting)
        if own not in rows or len(rows) < 2:
            continue
        if few := describe_few_events(rows[own]):
            sentences.append(f"{name.capitalize()}: {few}, so they are not compared.")
            continue
        values[name] = {
            model: 100 * row["ap"] for model, row in sorted(rows.items(), key=lambda pair: -pair[1]["ap"])
        }
        sentences.append(_describe_margin(name, rows, own, verdict or {}))
    if not sentences:
        return None
    sentence = (verdict or {}).get("sentence", "")
    sentences += [f"Verdict: {sentence.rstrip('.')}."] if sentence else []
    low = 50.0 if all(ap >= 50 for scores in values.values() for ap in scores.values()) else 0.0
    note = "Test with random negatives; random guessing has 50. The colored bar is this run."
    charts = (BarChart("AP by model", "AP (%)", values, own, low, note),) if values else ()
    return Section("Comparison with baselines", " ".join(sentences), (), charts)


def _describe_margin(nodes: str, rows: dict[str, dict[str, Any]], own: str, verdict: dict[str, Any]) -> str:
    """Say how far the model is from the best baseline, ± two standard errors where the verdict is about these two."""
    best = max((model for model in rows if model != own), key=lambda model: rows[model]["ap"])
    margin = rows[own]["ap"] - rows[best]["ap"]
    side = "above" if margin >= 0 else "below"
    spread = verdict.get("spread")
    is_known = spread is not None and all(
        verdict.get(key) == value for key, value in {"rule": best, **_get_protocol(rows[own])}.items()
    )
    points = Difference(abs(margin), spread if is_known else None).format()
    text = f"On {nodes}, the AP of the model is {points} points {side} the best baseline ({best})."
    return text if margin >= 0 else f"{text} The baseline is better and needs no training."


def _get_protocol(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in PAIR_KEYS}


def _find_test_rows(results: Records, setting: str) -> dict[str, dict[str, Any]]:
    """Return the test rows with random negatives by model."""
    protocol = dict(zip(PAIR_KEYS, ("test", setting, "random"), strict=True))
    return {
        row["model"]: row for row in results if _get_protocol(row) == protocol and row.get("ap") is not None
    }


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
    losses = {"training loss": [(entry["epoch"] + 1, entry["loss"]) for entry in epochs]}
    note = "Mean over the batches of an epoch. Lower is better."
    loss = LineChart("Training loss", "epoch", f"loss ({task.loss})", losses, "count", note=note)
    curve, unit = {name: get_validation_curve(epochs, task.watched)}, get_metric_unit(task.watched)
    quality = LineChart(f"Validation {watched}", "epoch", f"{name}{unit}", curve, "count", note=task.caption)
    return Section("Training", start, (), (loss, quality))


def get_validation_curve(epochs: Records, watched: str) -> list[Point]:
    """Return the watched metric by epoch, shares in percent."""
    scale = get_metric_scale(watched)
    return [(entry["epoch"] + 1, scale * entry[f"val_{watched}"]) for entry in epochs]


def build_feature_section(use: FeatureUse | None, model: str, data: str) -> Section | None:
    """Show how much each column, and each kind of count, adds to the logits; None if that was not measured."""
    total = sum(group.size for group in use.groups) if use else 0.0
    if use is None or not total:
        return None
    share = {group: 100 * group.size / total for group in use.groups}
    separation = sum(group.separation for group in use.groups)
    note = (
        "Contribution: mean size of what the features of an input add to the logit together. Real minus random: their "
        "mean contribution to the real events minus that to the random pairs. These add up to the difference of the "
        f"mean logits, {separation:+.3f}; an input below 0 makes the two harder to tell apart."
    )
    names = ("input", "share (%)", "contribution", "real minus random", "kind")
    rows = (
        (group.name, f"{own:.1f}", f"{group.size:.3f}", f"{group.separation:+.3f}", Cell(group.kind, "words"))
        for group, own in share.items()
    )
    bars: dict[str, dict[str, float]] = {}
    for group, own in share.items():
        bars.setdefault(group.kind, {})[group.name] = own
    events = f"{use.events:,} test event{'s' * (use.events != 1)}"
    text = f"Exact Shapley values of the model's inputs, for {events} at even distances and as many random pairs."
    columns = [group for group in use.groups if group.kind != HISTORY]
    return Section(
        "What the model uses",
        f"{text}\n{_describe_columns([share[group] for group in columns])}",
        (ReportTable.of_rows("", note, names, rows),),
        (BarChart("Share of the contributions", "share (%)", bars),),
        _command_without({group.kind for group in columns}, model, data),
    )


def _describe_columns(shares: list[float]) -> str:
    """Say how much the columns of the dataset are used, and how to find out whether they are needed."""
    if not shares:
        return "The model reads no columns: the data has none, or it was trained without them."
    return (
        f"{sum(shares):.1f} % of the contributions come from the columns of your data. That says how much "
        "these trees use them. Trees without them may be just as good, if the history holds the same information. To "
        "know whether the columns help, train without them, with the other settings of this run, and compare the two "
        "runs:"
    )


def _command_without(kinds: set[str], model: str, data: str) -> str:
    """Return the command of a training without these columns; empty if there are none."""
    settings = [setting for kind, own in SETTINGS_WITHOUT.items() if kind in kinds for setting in own]
    parts = [part for setting in settings for part in ("--set", setting)]
    return shlex.join(["dygmamba", "train", data, "--model", model, *parts]) if parts else ""


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
    return Section("Learned decay", describe_closeness(forgetting), (), tuple(charts))


def describe_closeness(forgetting: Forgetting) -> str:
    """Say how close the learned decay is to the law of the data, if that is known."""
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
