"""The models tried within a time budget, as a section of the report."""

from typing import Any

from dygmamba.data.events.times import format_rough_duration
from dygmamba.report.document import Cell, ReportTable, Section
from dygmamba.runs.candidates import format_candidate_name
from dygmamba.tasks.metric_names import format_metric

ENDED = {
    "time": "ended by the budget",
    "validation": "ended when validation stopped improving",
    "epochs": "ended after all epochs",
}
CANDIDATE_KEYS = (
    *("model", "preset", "state", "reason", "run", "val_ap", "val_ap_error"),
    *("epochs", "best_epoch", "seconds", "peak_mb", "ended"),
)  # what is shown of each candidate
SIGNIFICANT_ERRORS = 2  # standard errors behind ±


def build_selection_section(selection: dict[str, Any]) -> Section | None:
    """Show what was tried, the figures of each model, and why one was chosen; None for a run that was trained alone."""
    if not selection:
        return None
    text = (
        f"Chosen: {selection['reason']}.\nThe test was not used: only the chosen model was evaluated on it. The other "
        "runs are kept; resume one to evaluate it."
    )
    return Section("Models tried", text, (build_selection_table(selection),))


def build_selection_table(selection: dict[str, Any]) -> ReportTable:
    """Build a table with a row per candidate."""
    rows = [_build_row(candidate, selection["run"]) for candidate in selection["candidates"]]
    columns = ("model", "validation AP", "epochs", "best", "time", "memory", "outcome")
    note = (
        "AP in per cent ± two standard errors over consecutive blocks of the validation period; time of the training; "
        "largest memory of the process (of the GPU, if there is one) during it."
    )
    title = f"models tried within {format_rough_duration(selection['budget'])}"
    return ReportTable.of_rows(title, note, columns, rows, ("best", "memory"))


def _build_row(candidate: dict[str, Any], chosen: str | None) -> tuple[str | Cell, ...]:
    is_chosen = candidate["run"] is not None and candidate["run"] == chosen
    name = format_candidate_name(candidate)
    if candidate["state"] == "skipped":
        return (name, *("",) * 5, Cell(f"skipped: {candidate['reason']}", "words"))
    error, seconds, megabytes = (candidate[key] for key in ("val_ap_error", "seconds", "peak_mb"))
    spread = None if error is None else SIGNIFICANT_ERRORS * error
    outcome = "; ".join(filter(None, ("chosen" * is_chosen, ENDED.get(candidate["ended"] or "", ""))))
    return (
        name,
        Cell(format_metric("ap", candidate["val_ap"], spread), "best" if is_chosen else ""),
        *("" if candidate[key] is None else str(candidate[key]) for key in ("epochs", "best_epoch")),
        "" if seconds is None else format_rough_duration(seconds),
        "" if megabytes is None else f"{megabytes / 1000:.1f} GB",
        Cell(outcome, "words"),
    )
