"""How a run does on new events: figures by period beside the test, and columns whose mean moved."""

from typing import Any

from dygmamba.data.events.times import format_date
from dygmamba.report.document import Document, ReportTable, Section
from dygmamba.report.results import MIN_EVENTS
from dygmamba.runs.monitoring import Monitoring
from dygmamba.tasks.metric_names import format_metric, get_metric_title

FIGURES = ("ap", "auc", "log_loss", "ece")
PERIOD_TITLES = {"test": "test of the run", "new": "all new events"}
MIN_SHOWN_SHIFT, MAX_SHOWN_COLUMNS = 0.2, 10  # in standard deviations


def build_monitoring_document(found: Monitoring) -> Document:
    """Build the tables of a monitoring, and what they say about the new events as a whole."""
    tables = [_build_period_table(found)]
    shifted = [row for row in found.columns if row["shift"] is None or abs(row["shift"]) >= MIN_SHOWN_SHIFT]
    if shifted:
        tables.append(_build_column_table(shifted[:MAX_SHOWN_COLUMNS]))
    section = Section("New events", "\n".join(_describe_total(found)), tuple(tables))
    return Document("Figures on new events", "", (section,))


def _build_period_table(found: Monitoring) -> ReportTable:
    columns = ("period", "events", f"a {'day' if found.is_dated else 'unit'}", "unknown")
    columns += (*map(get_metric_title, FIGURES), "AP of the baseline")
    rows = (
        (
            str(PERIOD_TITLES.get(row["period"], row["period"])),
            f"{row['events']:,}",
            _format(row["rate"], "{:,.3g}"),
            _format_share(row["unknown_share"]),
            _format_with_error(row["ap"], row["ap_se"]),
            *(format_metric(name, row[name]) for name in FIGURES[1:]),
            format_metric("ap", row["rule_ap"]),
        )
        for row in found.rows
    )
    note = (
        "Unknown: events with an id that the dataset of the run does not have. AP and AUC are over all pairs of a "
        "period at once, AP ± two standard errors."
    )
    if any(row["events"] < MIN_EVENTS for row in found.rows):
        note += f" Figures of fewer than {MIN_EVENTS} events say little."
    return ReportTable.of_rows("figures on new events, beside the test of the run", note, columns, rows)


def _build_column_table(shifted: list[dict[str, Any]]) -> ReportTable:
    rows = (
        (
            row["column"],
            f"{row['mean_training']:.4g}",
            f"{row['mean_new']:.4g}",
            _format(row["shift"], "{:+.2f}"),
        )
        for row in shifted
    )
    columns = ("column", "mean in training", "mean now", "shift")
    return ReportTable.of_rows(
        "columns whose mean moved", "Shifts are in standard deviations.", columns, rows
    )


def _describe_total(found: Monitoring) -> list[str]:
    """Return sentences on the new events as a whole."""
    total, test = found.total, next((row for row in found.rows if row["period"] == "test"), None)
    lead = _format_with_error(total["ap"] - total["rule_ap"], total["lead_se"])
    lines = [
        f"best baseline on the new events: {total['rule']}, AP {format_metric('ap', total['rule_ap'])}; "
        f"the AP of the run minus that of the baseline: {lead}"
    ]
    if found.is_dated:
        lines.append(f"new events from {format_date(total['start'])} to {format_date(total['end'])}")
    if test is not None:
        difference = total["ap"] - test["ap"]
        side = "above" if difference >= 0 else "below"
        lines.append(f"AP is {format_metric('ap', abs(difference))} points {side} the test of the run")
    if found.earlier:
        lines.append(f"{found.earlier:,} events are not later than the dataset of the run and were left out")
    return lines


def _format_with_error(ap: float, error: float | None) -> str:
    """Format an AP ± two standard errors; without them if there are too few events."""
    return format_metric("ap", ap, None if error is None else 2 * error)


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _format(value: Any, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)
