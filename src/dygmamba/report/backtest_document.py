"""Page of a backtest: what it says about retraining, a chart per metric over time, and the table of all periods."""

from dygmamba._version import __version__
from dygmamba.data.events.times import format_duration
from dygmamba.report.document import Cell, Document, LineChart, Point, ReportTable, Section
from dygmamba.runs.backtest import BacktestPlan
from dygmamba.runs.backtest_periods import VALIDATION_SHARE
from dygmamba.runs.backtest_results import FROZEN, METRICS, REFIT, WARM, Backtest
from dygmamba.tasks.metric_names import (
    DEFAULT_CANDIDATES,
    find_metric,
    format_metric,
    get_metric_scale,
    get_metric_title,
)
from dygmamba.tasks.statistics import SIGNIFICANT_ERRORS

MEANINGS = {
    FROZEN: "trained once, at the first origin; later events are its history, but it does not learn from them",
    WARM: "started at every origin from its own weights of the origin before",
    REFIT: "trained anew at every origin",
}


def build_backtest_document(request: BacktestPlan, result: Backtest) -> Document:
    """Build the page of a backtest."""
    sections = (*summarize_backtest(result).sections, _metrics_section(result))
    return Document(
        f"Backtest: {result.model} on {result.data}", _describe_request(request, result), sections
    )


def summarize_backtest(result: Backtest) -> Document:
    """Build what a backtest says about retraining, with the AP of all periods."""
    return Document(f"{result.model} on {result.data}", "", (_findings_section(result),))


def _describe_request(request: BacktestPlan, result: Backtest) -> str:
    def length(value: float) -> str:
        return format_duration(float(f"{value:.4g}")) if result.is_dated else f"{value:.6g}"

    settings = ", ".join(f"{name}={value}" for name, value in request.settings.items())
    parts = [
        f"a period every {length(request.every)} from {result.format_time(request.start)} on",
        f"window {length(request.window)}" if request.window is not None else "all earlier events known",
        f"seed {request.seed}",
        settings,
        request.device.type,
        f"dygmamba {__version__}",
    ]
    return "; ".join(part for part in parts if part)


def _findings_section(result: Backtest) -> Section:
    """The differences between the variants, in words and by period."""
    variants = " ".join(f"{name.capitalize()} is {MEANINGS[name]}." for name in result.variants)
    text = " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in result.sentences)
    begin = {row["period"]: row["begin"] for row in result.rows}
    series: dict[str, list[Point]] = {
        f"{one.better} minus {one.worse}": [
            (begin[period], 100 * difference.value, 100 * SIGNIFICANT_ERRORS * (difference.error or 0.0))
            for period, difference in one.differences.items()
        ]
        for one in result.comparisons
    }
    chart = LineChart(
        "Difference of AP by period",
        "begin of the period",
        "points of AP",
        series,
        "date" if result.is_dated else "number",
        level=("no difference", 0.0),
        note="Bands are two standard errors, over blocks of consecutive events that both variants score.",
    )
    has_gaps = any(series.values())
    lines = "\n".join(filter(None, (text, variants)))
    return Section("When to retrain", lines, (_build_period_table(result),), (chart,) if has_gaps else ())


def _metrics_section(result: Backtest) -> Section:
    """A chart per metric: the variants, and the baseline that is best on average."""
    charts, rule = [], result.best_rule
    for metric in METRICS:
        name, factor = get_metric_title(metric), get_metric_scale(metric)
        lines = {variant: result.list_variant_rows(variant) for variant in result.variants}
        if rule is not None:
            lines[f"baseline {rule}"] = result.list_variant_rows(rule)
        series = {
            label: [
                (
                    row["begin"],
                    factor * row[metric],
                    factor * SIGNIFICANT_ERRORS * (row[f"{metric}_se"] or 0.0),
                )
                for row in rows
                if row[metric] is not None
            ]
            for label, rows in lines.items()
        }
        series = {label: points for label, points in series.items() if points}
        unit, kind = "%" if factor == 100 else "nats", "date" if result.is_dated else "number"
        note = "Bands are two standard errors." + " Lower is better." * find_metric(metric).lower_is_better
        title, axis = f"{name} by period", f"{name} ({unit})"
        charts.append(LineChart(title, "begin of the period", axis, series, kind, note=note))
    text = (
        "Each period is evaluated against one random destination per event (AP, AUC, log loss) and among at most "
        f"{DEFAULT_CANDIDATES} sampled destinations (MRR). The last {100 * VALIDATION_SHARE:.0f} % of the events that "
        "are known at an origin stop and calibrate a training; the others are trained on. The baseline is the best one "
        "on average over all periods, chosen with hindsight."
    )
    return Section("Metrics over time", text, (), tuple(charts))


def _build_period_table(result: Backtest) -> ReportTable:
    """Build a table of all periods, the best variant or baseline of each in bold."""
    rule, rows = result.best_rule, []
    names = [*result.variants, *([] if rule is None else [rule])]
    for number in dict.fromkeys(row["period"] for row in result.rows):
        own = {row["model"]: row for row in result.rows if row["period"] == number}
        first = own[names[0]]
        best = max(own[name]["ap"] for name in names)
        figures = (
            Cell(format_metric("ap", one["ap"], one["ap_se"]), "best" if one["ap"] == best else "")
            for one in (own[name] for name in names)
        )
        rows.append((str(number + 1), result.format_time(first["begin"]), f"{first['events']:,}", *figures))
    columns = ("period", "begin", "events", *result.variants, *([] if rule is None else [f"baseline {rule}"]))
    error = ", ± its standard error" if any(row["ap_se"] for row in result.rows) else ""
    note = f"AP in per cent{error}. periods.csv has all metrics and baselines."
    title = f"{result.model} on {result.data}: AP by period"
    return ReportTable.of_rows(title, note, columns, rows, ("period", "events"))
