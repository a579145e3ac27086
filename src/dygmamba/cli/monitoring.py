"""Tables and sentences of an evaluation on new events."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.api.formatting import format_date
from dygmamba.cli.console import plain_table
from dygmamba.cli.messages import escape_text

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.monitoring import Monitoring, MonitoringResult

MIN_SHOWN_SHIFT, MAX_SHOWN_COLUMNS = 0.2, 10  # in standard deviations


def make_monitoring_tables(found: "Monitoring") -> "list[Table]":
    """Make the table of figures by period, and one of the columns whose mean moved."""
    figures = (
        "events",
        "a day" if found.is_dated else "a unit",
        "unknown",
        "AP",
        "baseline",
        "AUC",
        "log loss",
        "ECE",
    )
    table = plain_table("period", title="figures on new events, beside the test of the run", figures=figures)
    for row in found.rows:
        table.add_row(
            {"test": "test of the run", "new": "all new events"}.get(row["period"], row["period"]),
            f"{row['events']:,}",
            _format(row["rate"], "{:,.3g}"),
            _format_percent(row["unknown_share"], " %"),
            _format_percent(row["ap"]) + _format_error(row["ap_se"]),
            _format_percent(row["rule_ap"]),
            _format_percent(row["auc"]),
            _format(row["log_loss"], "{:.3f}"),
            _format_percent(row["ece"]),
        )
    shifted = [row for row in found.columns if row["shift"] is None or abs(row["shift"]) >= MIN_SHOWN_SHIFT]
    if not shifted:
        return [table]
    figures = ("mean in training", "mean now", "shift")
    columns = plain_table("column", title="columns whose mean moved, in standard deviations", figures=figures)
    for row in shifted[:MAX_SHOWN_COLUMNS]:
        cells = (f"{row['mean_training']:.4g}", f"{row['mean_new']:.4g}", _format(row["shift"], "{:+.2f}"))
        columns.add_row(escape_text(row["column"]), *cells)
    return [table, columns]


def describe_monitoring(found: "Monitoring") -> list[str]:
    """Return sentences on the new events as a whole."""
    total, test = found.total, next((row for row in found.rows if row["period"] == "test"), None)
    lead = f"{100 * (total['ap'] - total['rule_ap']):+.1f}{_format_error(total['lead_se'])} points"
    rule = f"{total['rule']}, AP {_format_percent(total['rule_ap'])}"
    lines = [f"best baseline on the new events: {rule}; the run against it: {lead}"]
    if found.is_dated:
        lines.append(f"new events from {format_date(total['start'])} to {format_date(total['end'])}")
    if test is not None:
        points = 100 * (total["ap"] - test["ap"])
        lines.append(
            f"AP is {abs(points):.1f} points {'above' if points >= 0 else 'below'} the test of the run"
        )
    if found.earlier:
        lines.append(f"{found.earlier:,} events are not later than the dataset of the run and were left out")
    return lines


def advise_training(found: "MonitoringResult", run: Path) -> str:
    """Name the command that mends a run that crossed a limit; a blend cannot be continued."""
    words = ["dygmamba", "train", found.data, *(["--from", str(run)] if found.can_start_from else [])]
    return f"import '{found.data}' again with the new events in it, then train on it: {shlex.join(words)}"


def _format(value: Any, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _format_error(error: float | None) -> str:
    """Return ± two standard errors in per cent; "" if there are too few events for one."""
    return "" if error is None else f" ± {200 * error:.1f}"


def _format_percent(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{100 * value:.1f}{unit}"
