"""Page of a hyperparameter search: the chosen settings, the course of the search, scores by setting, and all trials."""

from collections.abc import Callable
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from dygmamba._version import __version__
from dygmamba.report.document import (
    AxisKind,
    BarChart,
    Cell,
    Document,
    LineChart,
    Point,
    ReportTable,
    Section,
)
from dygmamba.runs.tuning import Tuning, TuningRequest
from dygmamba.runs.tuning_trials import TrialRow
from dygmamba.tasks.metric_names import format_metric

# A chart begins this many times further below the best trial than the median trial is. Worse trials are drawn at its
# lower edge, so that a few failures do not squeeze all others into one line.
FLOOR_FACTOR = 4
SHOWN_TRIALS = 8  # in a terminal
MAX_DRAWN = 400  # trials in a chart; the best of them are drawn
BEST_SO_FAR, FINISHED, CUT_OFF = "best so far", "finished", "cut off"
CHOSEN, UNTUNED = "chosen", "default settings"
TIME_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


class TrialAxis(NamedTuple):
    """Title and x axis of a chart of trials; `to_x` returns the position of a trial."""

    title: str
    label: str
    kind: AxisKind
    to_x: Callable[[TrialRow], float]


def build_tuning_document(request: TuningRequest, tuning: Tuning) -> Document:
    """Build the page of a search."""
    command = f"dygmamba.train({tuning.data!r}, preset={str(tuning.preset)!r})"
    if request.train_command is not None:
        command = request.train_command(tuning.preset)
    result, trials = summarize_tuning(tuning, command).sections
    sections = (result, _progress_section(tuning), _settings_section(request, tuning), trials)
    title = f"Hyperparameter search: {tuning.model} on {tuning.data}"
    return Document(title, _describe_search(request, tuning), sections)


def summarize_tuning(tuning: Tuning, command: str) -> Document:
    """Build the chosen settings with the command that trains with them, and the trials."""
    title = f"{tuning.model} on {tuning.data}: {len(tuning.trials)} trials, {tuning.cut_off} stopped early"
    return Document(title, "", (_result_section(tuning, command), _trials_section(tuning, title)))


def _describe_search(request: TuningRequest, tuning: Tuning) -> str:
    refused = sum(row["ap"] is None for row in tuning.trials)
    counts = {
        f"trial{'s' * (len(tuning.trials) != 1)}": len(tuning.trials),
        "cut off": tuning.cut_off - refused,
        "refused": refused,
    }
    fixed = ", ".join(f"{name}={_format_setting(value)}" for name, value in request.base_settings.items())
    parts = [
        ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        f"seed {request.seed}",
        f"split {request.split.label}",
        "per trial: " + ", ".join(f"{name} {value}" for name, value in request.space.trial.items()),
        f"fixed: {fixed}" if fixed else "",
        request.device.type,
        f"dygmamba {__version__}",
    ]
    return "; ".join(part for part in parts if part)


def _result_section(tuning: Tuning, command: str) -> Section:
    """The chosen settings next to the defaults, their importance, and how to train with them."""
    default, importances = tuning.trials[0]["settings"], tuning.importances
    rows = tuple(
        (
            Cell(name),
            Cell(_format_setting(value), "" if value == default.get(name) else "best"),
            Cell(_format_setting(default.get(name, "")), "soft"),
            Cell(f"{importances[name]:.0%}" if name in importances else ""),
        )
        for name, value in tuning.settings.items()
    )
    columns = ("setting", "chosen", "default", "importance")
    note = f"trial {tuning.best['trial']}, validation AP {format_metric('ap', tuning.score)}"
    table = ReportTable("Chosen settings", note, columns, rows).drop_empty_columns()
    by_importance = dict(sorted(importances.items(), key=lambda pair: -pair[1]))
    chart = BarChart(
        "Importance of the settings",
        "share (%)",
        {"by setting (PED-ANOVA)": {name: 100 * share for name, share in by_importance.items()}},
        next(iter(by_importance), ""),
    )
    text = f"{tuning.sentence[0].upper()}{tuning.sentence[1:]}."
    return Section("Result", text, (table,), (chart,) if by_importance else (), command)


def _progress_section(tuning: Tuning) -> Section:
    """All trials in the order they were run, by number and by time, with the best so far."""
    scored = [row for row in tuning.trials if row["ap"] is not None]
    seconds = list(accumulate(row["seconds"] for row in tuning.trials))
    seconds_until = {row["trial"]: until for row, until in zip(tuning.trials, seconds, strict=True)}
    total = seconds[-1]
    divisor, unit = next((divisor, unit) for minimum, divisor, unit in TIME_UNITS if total >= minimum)
    axes = (
        TrialAxis("Trials in order", "trial", "count", lambda row: row["trial"]),
        TrialAxis(
            "Trials by training time",
            f"{unit} of training",
            "number",
            lambda row: seconds_until[row["trial"]] / divisor,
        ),
    )
    text = (
        "The score of a trial is its best average precision on the validation split. For a trial that was cut off, it "
        "is the best one until then."
    )
    charts = tuple(_scatter_chart(tuning, scored, axis, show_best=True) for axis in axes)
    return Section("Course of the search", text, (), charts)


def _settings_section(request: TuningRequest, tuning: Tuning) -> Section:
    """The score of every trial by each setting, the most important setting first."""
    scored = [row for row in tuning.trials if row["ap"] is not None]
    drawn = sorted(scored, key=lambda row: -row["ap"])[:MAX_DRAWN]
    parts, importances = request.space.parts, tuning.importances
    charts = []
    for name in sorted(tuning.settings, key=lambda name: -importances.get(name, 0.0)):
        rows = [row for row in drawn if name in row["settings"]]
        charts.append(_scatter_chart(tuning, rows, _setting_axis(name, parts.get(name), rows)))
    text = (
        "Each point is a trial. Trials differ in all settings at once, so a chart shows where good values lie, not the "
        "effect of a setting alone."
    )
    text += f" The best {MAX_DRAWN} of {len(scored):,} trials are drawn." if len(scored) > MAX_DRAWN else ""
    return Section("Score by setting", text, (), tuple(charts))


def _setting_axis(name: str, part: Any, rows: list[TrialRow]) -> TrialAxis:
    """Return the axis of a setting: its scale in the search, or numbered values if they are not numbers."""
    title, values = f"Validation AP by {name}", [row["settings"][name] for row in rows]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        is_log = getattr(part, "log", max(values) >= 4 * min(values))
        linear: AxisKind = "count" if all(isinstance(value, int) for value in values) else "number"
        kind = "log" if is_log and min(values) > 0 else linear
        return TrialAxis(title, name, kind, lambda row: row["settings"][name])
    names = sorted({str(value) for value in values})
    legend = ", ".join(f"{number} {value}" for number, value in enumerate(names))
    return TrialAxis(title, f"{name}: {legend}", "count", lambda row: names.index(str(row["settings"][name])))


def _scatter_chart(
    tuning: Tuning, rows: list[TrialRow], axis: TrialAxis, show_best: bool = False
) -> LineChart:
    """Draw trials as points; with `show_best` also the best score so far as a line."""
    floor, to_x = _chart_floor(tuning), axis.to_x
    groups = {
        FINISHED: [row for row in rows if row["state"] == "done"],
        CUT_OFF: [row for row in rows if row["state"] != "done"],
        UNTUNED: [row for row in rows if row["trial"] == 1],
        CHOSEN: [row for row in rows if row["trial"] == tuning.best["trial"]],
    }
    if not tuning.cut_off:
        del groups[CUT_OFF]
    series: dict[str, list[Point]] = {
        name: [(to_x(row), 100 * max(row["ap"], floor)) for row in group] for name, group in groups.items()
    }
    series |= {BEST_SO_FAR: _best_so_far(rows, to_x)} if show_best else {}
    tooltips = {
        name: [
            f"trial {row['trial']}, {name}: {to_x(row):.4g}, {format_metric('ap', row['ap'])}"
            for row in group
        ]
        for name, group in groups.items()
    }
    below = sum(row["ap"] < floor for row in rows)
    note = f"{below} far below the others, drawn at the lower edge." if below else ""
    return LineChart(
        axis.title, axis.label, "AP (%)", series, axis.kind, tooltips=tooltips, dots=tuple(groups), note=note
    )


def _best_so_far(rows: list[TrialRow], to_x: Callable[[TrialRow], float]) -> list[Point]:
    """Return the best finished score up to each trial."""
    best = accumulate((row["ap"] if row["state"] == "done" else 0.0 for row in rows), max)
    return [(to_x(row), 100 * value) for row, value in zip(rows, best, strict=True) if value]


def _chart_floor(tuning: Tuning) -> float:
    scores = [row["ap"] for row in tuning.trials if row["ap"] is not None]
    return tuning.score - FLOOR_FACTOR * max(tuning.score - median(scores), 1e-3)


def _trials_section(tuning: Tuning, title: str) -> Section:
    """A table of all trials."""
    names = list(tuning.settings)
    order = sorted(tuning.trials, key=lambda row: (row["state"] != "done", -(row["ap"] or 0.0), row["trial"]))
    rows = tuple(
        (
            Cell(str(row["trial"])),
            Cell(
                "" if row["ap"] is None else format_metric("ap", row["ap"]), "best" if row is order[0] else ""
            ),
            Cell("refused" if row["ap"] is None else row["state"], "" if row["state"] == "done" else "soft"),
            Cell(str(row["epochs"])),
            Cell(f"{row['seconds']:.0f}"),
            *(Cell(_format_setting(row["settings"].get(name, ""))) for name in names),
            Cell(row["why"] or "", "words"),
        )
        for row in order
    )
    columns = ("trial", "AP", "state", "epochs", "seconds", *names, "reason")
    note = "Finished trials by descending AP, then those that were cut off; trial 1 has the default settings."
    unimportant_first = sorted(names, key=lambda name: tuning.importances.get(name, 0.0))
    table = ReportTable(title, note, columns, rows, ("reason", *unimportant_first, "state"), SHOWN_TRIALS)
    return Section("All trials", "", (table.drop_empty_columns(),))


def _format_setting(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
