"""What training and its weights look like: loss and validation by epoch, the learned forgetting.

A run's results: in words, at the head of the page, as tables, and beside rules that need no training.

The runs beside a run that differ from it by nothing but their seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from dygmamba.core.errors import DygError
from dygmamba.data.events.statistics import format_duration
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.explain.forgetting import QUANTILES, Forgetting
from dygmamba.report.document import AxisKind, BarChart, Cell, LineChart, Point, ReportTable, Section

Records = list[dict[str, Any]]


def build_training_section(epochs: Records, watched: str, caption: str) -> Section:
    """Loss and the watched validation metric by epoch."""
    if not epochs:
        return Section("Training", "No epoch is finished yet.")
    name = f"validation {watched.upper()}"
    loss = LineChart(
        "Training loss", "epoch", "loss (binary cross-entropy, nats)",
        {"training loss": [(entry["epoch"] + 1, entry["loss"]) for entry in epochs]}, "count",
        note="Mean of an epoch's batches; lower is better.",
    )  # fmt: skip
    quality = LineChart(
        f"Validation {watched.upper()}",
        "epoch",
        f"{name} (%)",
        {name: get_validation_curve(epochs, watched)},
        "count",
        note=caption,
    )
    return Section("Training", "", (), (loss, quality))


def get_validation_curve(epochs: Records, watched: str) -> list[Point]:
    """The watched metric by epoch, in per cent."""
    return [(entry["epoch"] + 1, 100 * entry[f"val_{watched}"]) for entry in epochs]


def build_forgetting_section(found: Forgetting | None, seconds: bool = False) -> Section | None:
    """The return weight that the scores imply, and the retention that the weights hold, each beside the law.

    `seconds`: whether the stream's times are; where the law is known they are.
    """
    if found is None:
        return None
    seconds = seconds or found.law is not None
    kind: AxisKind = "span" if seconds else "log"
    unit = "" if seconds else ", in the unit of the data"
    law: dict[str, list[Point]] = {}
    if found.true:
        law = {f"true law ({found.law})": list(zip(found.span, found.true, strict=True))}
    lines = list(zip(found.span, found.learned, found.error, strict=True))
    charts = [
        LineChart(
            "What the scores say", f"span since the meeting{unit}", "return weight (1 at the smallest span)",
            {"learned": [(a, b) for a, b, _ in lines], **law}, kind,
            bands={"± 2 standard errors": [(a, max(b - 2 * e, 0.0), b + 2 * e) for a, b, e in lines]},
            note="How much a past meeting still counts after this span. In real pasts of the test period one meeting "
            "of the pair is moved to another moment and all else is kept; the weight is exp(logit if met) minus "
            f"exp(logit if never met), up to a factor per past, fitted over {found.probes:,} probes.",
        )
    ]  # fmt: skip
    if kept := found.retention:
        low, *_, high = (f"{level:g}" for level in QUANTILES)
        reach = _format_rounded_duration(found.reach) if seconds else f"{found.reach:.4g}"
        charts.append(
            LineChart(
                "What the weights hold", f"gap between two events{unit}", "share of the state kept (1 = all)",
                {"median channel": list(zip(found.span, kept["0.5"], strict=True)), **law}, kind,
                bands={
                    "10 % to 90 % of the channels": list(zip(found.span, kept[low], kept[high], strict=True))
                },
                y_range=(0.0, 1.03),
                note=f"exp(Δ(s)·A) of Eq. 11 over channels and states, in a past of the median reach ({reach}). "
                "Channels are free to keep what no return depends on, so they need not follow the law one by one.",
            )
        )  # fmt: skip
    return Section("Learned forgetting", _describe_closeness(found), (), tuple(charts))


def _describe_closeness(found: Forgetting) -> str:
    if found.closeness is None:
        return "How fast the model lets a past meeting fade."
    close = found.closeness
    said = (
        "The data came from a known law of forgetting. What the model learned of it, over spans from "
        f"{_format_rounded_duration(found.span[0])} to {_format_rounded_duration(found.span[-1])}: correlation {close.correlation:.3f}, mean gap "
        f"{close.mean_gap:.3f}, largest gap {close.max_gap:.3f}, the weight at the smallest span being 1."
    )
    if close.half_life and close.true_half_life:
        said += (
            f" From there it halves after {_format_rounded_duration(close.half_life)}, by the law after "
            f"{_format_rounded_duration(close.true_half_life)}."
        )
    return said


def _format_rounded_duration(seconds: float) -> str:
    return format_duration(float(f"{seconds:.6g}"))


SETTING_LABELS = {"transductive": "all nodes", "inductive": "new nodes"}


@dataclass(frozen=True, slots=True)
class Card:
    """One figure at the head of the page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class ReportTask:
    """What the page of a task shows: its metrics, how to read them, and what validation watched."""

    metrics: dict[str, str]
    reading: str
    watched: str
    caption: str
    heading: Callable[[dict[str, Any]], tuple[str, str]]
    cards: Callable[[Records, str], list[Card]]
    words: Callable[[Records, str], str]
    ranked: bool  # whether events are asked about beside pairs that were not


def describe_link_row(row: dict[str, Any]) -> tuple[str, str]:
    """Which period and nodes a row of link prediction is about, and how it was asked."""
    title = f"{row['split']}, {SETTING_LABELS[row['setting']]} ({row['setting']})"
    against = f"{row['negatives']} negatives" if "negatives" in row else f"{row.get('candidates')} candidates"
    return title, f"{row['n']:,} events, {against}"


def describe_node_row(row: dict[str, Any]) -> tuple[str, str]:
    """Which period a row of node classification is about, and how rare its positives are."""
    return row["split"], f"{row['n']:,} events, {row['positives']:,} of them positive"


def build_link_cards(results: Records, own: str) -> list[Card]:
    """Test AP with random negatives, beside the best of the others."""
    found = []
    for setting, name in (("transductive", "Test AP"), ("inductive", "Test AP, new nodes")):
        scores = _get_test_ap(results, setting)
        others = {model: ap for model, ap in scores.items() if model != own}
        if own in scores:
            best = max(others, key=others.__getitem__, default="")
            note = f"best without training: {others[best]:.2f} ({best})" if others else "random negatives"
            found.append(Card(name, f"{scores[own]:.2f}", note))
    return found


def build_node_cards(results: Records, own: str) -> list[Card]:
    """Test AUC, and the AP beside the share of positives, which a blind guess would have."""
    found = []
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            share = 100 * row["positives"] / row["n"]
            found += [
                Card("Test AUC", f"{100 * row['auc']:.2f}", describe_node_row(row)[1]),
                Card("Test AP", f"{100 * row['ap']:.2f}", f"a blind guess has {share:.2f}"),
            ]
    return found


def summarize_link_results(results: Records, own: str) -> str:
    """The result as one would tell it."""
    for row in results:
        if (row["model"], *_get_protocol(row)) == (own, "test", "transductive", "random") and row.get(
            "auc_pooled"
        ):
            return (
                f"Shown an event of the test and a random pair, the model gives the event the higher score "
                f"{100 * row['auc_pooled']:.0f} times in 100; a blind guess does so 50 times."
            )
    return ""


def summarize_node_results(results: Records, own: str) -> str:
    """The result as one would tell it."""
    for row in results:
        if row["split"] == "test" and row["auc"] is not None:
            return (
                f"Shown an event of state 1 and one of state 0, the model gives the first the higher score "
                f"{100 * row['auc']:.0f} times in 100; a blind guess does so 50 times."
            )
    return ""


REPORT_TASKS = {
    "link": ReportTask(
        metrics={"ap": "AP", "auc": "AUC", "ap_pooled": "AP pooled", "auc_pooled": "AUC pooled"},
        reading="Each event against one negative pair of the same moment, in per cent. AP and AUC are means over "
        "batches of 200 events, the published way; “pooled” ranks all pairs at once.",
        watched="ap",
        caption="All nodes; the weights of the best epoch are kept. Higher is better.",
        heading=describe_link_row,
        cards=build_link_cards,
        words=summarize_link_results,
        ranked=True,
    ),
    "node": ReportTask(
        metrics={"auc": "AUC", "ap": "AP"},
        reading="How well events of state 1 are ranked above the others, over the whole period at once, in per cent. "
        "Where positives are rare, AUC is high long before AP is.",
        watched="auc",
        caption="Over the whole period; the weights of the best epoch are kept. Higher is better.",
        heading=describe_node_row,
        cards=build_node_cards,
        words=summarize_node_results,
        ranked=False,
    ),
}


def build_results_section(results: Records, own: str, task: ReportTask) -> Section:
    """Every row, the test first, the best figure of each column marked."""
    if not results:
        return Section("Results", "There are no results yet: the run is not finished.")
    groups: dict[tuple[str, str], Records] = {}
    for row in sorted(results, key=lambda row: row["split"] != "test"):
        groups.setdefault(task.heading(row), []).append(row)
    tables = [_build_results_table(title, note, rows, own, task) for (title, note), rows in groups.items()]
    best = "The best of a column is blue." if any(len(grid.rows) > 1 for grid in tables) else ""
    words = (task.words(results, own), task.reading, best)
    return Section("Results", " ".join(filter(None, words)), tuple(tables))


def build_baselines_section(results: Records, own: str, verdict: str = "") -> Section | None:
    """The model beside rules that need no training, and the verdict on it; nothing where none was asked."""
    values: dict[str, dict[str, float]] = {}
    for setting, name in SETTING_LABELS.items():
        scores = _get_test_ap(results, setting)
        if own in scores and len(scores) > 1:
            values[name] = dict(sorted(scores.items(), key=lambda pair: -pair[1]))
    if not values:
        return None
    low = 50.0 if all(ap >= 50 for own_ in values.values() for ap in own_.values()) else 0.0
    note = "Test against random pairs; a blind guess has 50. The coloured bar is this run."
    chart = BarChart("AP by model", "AP (%)", values, own, low, note)
    said = [_describe_margin(kind, scores, own) for kind, scores in values.items()]
    said += [f"Verdict: {verdict.rstrip('.')}."] if verdict else []
    return Section("Against simple rules", " ".join(said), (), (chart,))


def _describe_margin(kind: str, scores: dict[str, float], own: str) -> str:
    best, ap = max(((name, ap) for name, ap in scores.items() if name != own), key=lambda pair: pair[1])
    gap = scores[own] - ap
    side = "above" if gap >= 0 else "below"
    said = f"With {kind}, the model is {abs(gap):.2f} points {side} the best simple rule ({best})."
    return said if gap >= 0 else f"{said} The rule is cheaper and better there."


def _build_results_table(title: str, note: str, rows: Records, own: str, task: ReportTask) -> ReportTable:
    ranks = sorted({key for row in rows for key in row if key == "mrr" or key.startswith("hits@")})
    named = {key: key.upper() if key == "mrr" else key.capitalize() for key in ranks}
    metrics = task.metrics | {
        key: named[key] for key in ranks if any(row.get(key) is not None for row in rows)
    }
    best = {key: max(row.get(key) or 0.0 for row in rows) for key in metrics}
    cells = []
    for row in rows:
        first = Cell(f"{row['model']}{' (this run)' if row['model'] == own and len(rows) > 1 else ''}")
        shown = (
            _format_metric_cell(row, key, len(rows) > 1 and row.get(key) == best[key], key in ranks)
            for key in metrics
        )
        cells.append((first, *shown))
    return ReportTable(title, note, ("model", *metrics.values()), tuple(cells))


def _get_protocol(row: dict[str, Any]) -> tuple[str | None, ...]:
    return row.get("split"), row.get("setting"), row.get("negatives")


def _get_test_ap(results: Records, setting: str) -> dict[str, float]:
    """Test AP against random pairs by model, in per cent."""
    return {
        row["model"]: 100 * row["ap"]
        for row in results
        if _get_protocol(row) == ("test", setting, "random") and row.get("ap") is not None
    }


def _format_metric_cell(row: dict[str, Any], key: str, best: bool, optional: bool) -> Cell:
    """In per cent; a metric that does not exist is none, a rank that was not asked for is left empty."""
    if row.get(key) is None:
        return Cell("" if optional else "none")
    return Cell(f"{100 * row[key]:.2f}", "best" if best else "")


MAX_SEED_RUNS = 20  # runs in the table
SEED_METRICS = {
    "test AP (%)": ("ap", "transductive"),
    "test AP, new nodes (%)": ("ap", "inductive"),
    "test AUC (%)": ("auc", "transductive"),
}


@dataclass(frozen=True, slots=True)
class SeedRun:
    """A run, its seed, its epochs and its own results."""

    name: str
    seed: int
    epochs: list[dict[str, Any]]
    results: list[dict[str, Any]]

    def figure(self, metric: str, setting: str) -> float | None:
        """Of the test against random pairs, or of a test without pairs."""
        for row in self.results:
            asked = (row.get("split"), row.get("setting", setting), row.get("negatives", "random"))
            if asked == ("test", setting, "random") and row.get(metric) is not None:
                return 100 * row[metric]
        return None


def find_seed_runs(run: RunDirectory) -> list[SeedRun]:
    """This run and those beside it with the same data, model and settings, by seed; what cannot be read is left out."""
    own, found = _get_comparison_key(run), []
    for path in sorted(run.path.absolute().parent.iterdir()):
        other = RunDirectory(path)
        try:
            if not (path / "config.toml").is_file() or _get_comparison_key(other) != own:
                continue
            about, results = other.config()["run"], other.results()
            mine = [row for row in results if row.get("model") == about["model"]]
            found.append(SeedRun(path.name, int(about["seed"]), other.metrics(), mine))
        except (DygError, KeyError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda twin: (twin.seed, twin.name))[:MAX_SEED_RUNS]


def build_seeds_section(run: RunDirectory, watched: str) -> Section | None:
    """What came of each seed, and how far they are apart; nothing where there is one."""
    found = find_seed_runs(run)
    if len(found) < 2:
        return None
    named = [
        name for name, asked in SEED_METRICS.items() if any(twin.figure(*asked) is not None for twin in found)
    ]
    rows = [
        (
            Cell(f"{twin.seed}{' (this run)' if twin.name == run.path.absolute().name else ''}"),
            *(Cell(_format_optional(twin.figure(*SEED_METRICS[name]))) for name in named),
            Cell(f"{len(twin.epochs)}"),
            Cell(twin.name, "words"),
        )
        for twin in found
    ]
    spread = tuple(Cell(_format_mean_std(collect_metric(found, name)), "best") for name in named)
    grid = ReportTable(
        "", "The last row is the mean over the runs ± their standard deviation.",
        ("seed", *named, "epochs", "folder"), (*rows, (Cell("all"), *spread, Cell(""), Cell(""))),
    )  # fmt: skip
    try:
        alone = len({twin.seed for twin in found}) == len(found)
        names = (f"seed {twin.seed}" if alone else f"seed {twin.seed}, {twin.name}" for twin in found)
        curves = {
            name: get_validation_curve(twin.epochs, watched) for name, twin in zip(names, found, strict=True)
        }
    except (KeyError, TypeError):
        curves = {}
    chart = LineChart(
        f"Validation {watched.upper()} by seed", "epoch", f"validation {watched.upper()} (%)", curves, "count",
        note="Curves that lie close say that the result does not hang on chance.",
    )  # fmt: skip
    text = "Runs on the same data with the same settings that differ by their seed only."
    return Section("Seeds side by side", text, (grid,), (chart,))


def collect_metric(found: list[SeedRun], name: str) -> list[float]:
    """A measure of all that have it."""
    return [value for twin in found if (value := twin.figure(*SEED_METRICS[name])) is not None]


def _get_comparison_key(run: RunDirectory) -> tuple[Any, ...]:
    """What twins share."""
    sections = run.config()
    about = {key: value for key, value in sections["run"].items() if key not in ("seed", "backbone")}
    return about, sections.get("train"), sections.get("model")


def _format_optional(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _format_mean_std(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
