"""A search as a page: what was found, how it went on, the score against each setting, every trial."""

from collections.abc import Callable, Iterator
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
from dygmamba.runs.tuning_trials import Choices, Range, TrialRow

FLOOR_FACTOR = (
    4  # a trial so many times further below the best than the middle one is drawn at the lower edge
)
MAX_DRAWN = 400  # trials in a picture: the best of them
BEST_SO_FAR, FINISHED, CUT_OFF, CHOSEN, UNTUNED = (
    "best so far",
    "finished",
    "cut off",
    "chosen",
    "without a search",
)
TIME_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


class TrialAxis(NamedTuple):
    """What a picture has from left to right."""

    title: str
    x: str
    kind: AxisKind
    at: Callable[[TrialRow], float]


def build_tuning_sheet(what: TuningRequest, found: Tuning) -> Document:
    """Everything a search has to say."""
    sections = (
        _result_section(what, found),
        _progress_section(found),
        _settings_section(what, found),
        _trials_section(found),
    )
    return Document(
        f"{found.model} on {found.data}: a search for settings", _describe_search(what, found), sections
    )


def _describe_search(what: TuningRequest, found: Tuning) -> str:
    refused = sum(row["ap"] is None for row in found.trials)
    counted = {
        f"trial{'s' * (len(found.trials) != 1)}": len(found.trials),
        "cut off": found.cut_off - refused,
        "refused": refused,
    }
    fixed = ", ".join(f"{name}={_short(value)}" for name, value in what.begun.items())
    parts = [
        ", ".join(f"{count} {name}" for name, count in counted.items() if count),
        f"seed {what.seed}",
        f"split {what.by.said}",
        "a trial: " + ", ".join(f"{name} {value}" for name, value in what.space.trial.items()),
        f"fixed: {fixed}" if fixed else "",
        what.device.type,
        f"dygmamba {__version__}",
    ]
    return "; ".join(part for part in parts if part)


def _result_section(what: TuningRequest, found: Tuning) -> Section:
    """The chosen settings beside those without a search, what mattered, and how to train with them."""
    usual, share = found.trials[0]["settings"], found.importances
    rows = tuple(
        (
            Cell(name),
            Cell(_short(value), "" if value == usual.get(name) else "best"),
            Cell(_short(usual.get(name, "")), "soft"),
            Cell(f"{share[name]:.0%}" if name in share else ""),
        )
        for name, value in found.settings.items()
    )
    columns = ("setting", "chosen", "as it is", "mattered")
    note = f"trial {found.best['trial']}, validation AP {_percent(found.score)}"
    grid = ReportTable("Chosen settings", note, columns, rows).without_empty()
    strongest = dict(sorted(share.items(), key=lambda one: -one[1]))
    bars = BarChart(
        "What mattered",
        "share (%)",
        {"by setting (PED-ANOVA)": {name: 100 * part for name, part in strongest.items()}},
        next(iter(strongest), ""),
    )
    command = (
        f"dygmamba.train({found.data!r}, preset={str(found.preset)!r})"
        if what.training is None
        else what.training(found.preset)
    )
    text = f"{found.sentence[0].upper()}{found.sentence[1:]}. To train with the chosen settings:"
    return Section("What was found", text, (grid,), (bars,) if strongest else (), command)


def _progress_section(found: Tuning) -> Section:
    """Every trial in the order it was made, and the best until then: by number, and by the time they took."""
    shown = [row for row in found.trials if row["ap"] is not None]
    spent = dict(zip((row["trial"] for row in found.trials), _cumulative_seconds(found.trials), strict=True))
    total = spent[found.trials[-1]["trial"]]
    tick, unit = next((tick, unit) for least, tick, unit in TIME_UNITS if total >= least)
    ways = (
        TrialAxis("Trials one after another", "trial", "count", lambda row: row["trial"]),
        TrialAxis(
            "The same over time", f"{unit} of training", "number", lambda row: spent[row["trial"]] / tick
        ),
    )
    text = "A score is the best average precision on the validation period; of a trial that was cut off, until then."
    return Section(
        "The search", text, (), tuple(_scatter_chart(found, shown, way, over=True) for way in ways)
    )


def _settings_section(what: TuningRequest, found: Tuning) -> Section:
    """The score of every trial against each setting, those that mattered most first."""
    scored = [row for row in found.trials if row["ap"] is not None]
    shown = sorted(scored, key=lambda row: -row["ap"])[:MAX_DRAWN]
    parts, share = what.space.parts, found.importances
    charts = []
    for name in sorted(found.settings, key=lambda name: -share.get(name, 0.0)):
        own = [row for row in shown if name in row["settings"]]
        charts.append(_scatter_chart(found, own, _setting_axis(name, parts.get(name), own)))
    text = "Each point is a trial. Trials differ in all settings at once: a picture shows where good ones lie, not why."
    text += f" The best {MAX_DRAWN} of {len(scored):,} are drawn." if len(scored) > MAX_DRAWN else ""
    return Section("Against each setting", text, (), tuple(charts))


def _setting_axis(name: str, part: Range | Choices | None, rows: list[TrialRow]) -> TrialAxis:
    """The axis of a setting: as it was searched, or its values one beside another where they are no numbers."""
    title, values = f"Validation AP against {name}", [row["settings"][name] for row in rows]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        wide = part.log if isinstance(part, Range) else max(values) >= 4 * min(values)
        whole: AxisKind = "count" if all(isinstance(value, int) for value in values) else "number"
        kind = "log" if wide and min(values) > 0 else whole
        return TrialAxis(title, name, kind, lambda row: row["settings"][name])
    place = sorted({str(value) for value in values})
    named = ", ".join(f"{number} {value}" for number, value in enumerate(place))
    return TrialAxis(title, f"{name}: {named}", "count", lambda row: place.index(str(row["settings"][name])))


def _scatter_chart(found: Tuning, rows: list[TrialRow], across: TrialAxis, over: bool = False) -> LineChart:
    """Points of trials; `over`, the best until each of them as a line."""
    floor, at = _chart_floor(found), across.at
    groups = {
        FINISHED: [row for row in rows if row["state"] == "done"],
        CUT_OFF: [row for row in rows if row["state"] != "done"],
        UNTUNED: [row for row in rows if row["trial"] == 1],
        CHOSEN: [row for row in rows if row["trial"] == found.best["trial"]],
    }
    if not found.cut_off:
        del groups[CUT_OFF]
    series: dict[str, list[Point]] = {
        name: [(at(row), 100 * max(row["ap"], floor)) for row in own] for name, own in groups.items()
    }
    series |= {BEST_SO_FAR: _best_so_far(rows, at)} if over else {}
    about = {
        name: [f"trial {row['trial']}, {name}: {at(row):.4g}, {_percent(row['ap'])}" for row in own]
        for name, own in groups.items()
    }
    below = sum(row["ap"] < floor for row in rows)
    note = f"{below} far below the others, at the lower edge." if below else ""
    return LineChart(
        across.title, across.x, "AP (%)", series, across.kind, about=about, dots=tuple(groups), note=note
    )


def _cumulative_seconds(rows: list[TrialRow]) -> Iterator[float]:
    """The seconds of training until the end of each trial."""
    return accumulate(row["seconds"] for row in rows)


def _best_so_far(rows: list[TrialRow], at: Callable[[TrialRow], float]) -> list[Point]:
    """The best finished trial until each."""
    best = accumulate((row["ap"] if row["state"] == "done" else 0.0 for row in rows), max)
    return [(at(row), 100 * value) for row, value in zip(rows, best, strict=True) if value]


def _chart_floor(found: Tuning) -> float:
    """Where a picture begins, so that a few failures do not press all others into one line."""
    scores = [row["ap"] for row in found.trials if row["ap"] is not None]
    return found.score - FLOOR_FACTOR * max(found.score - median(scores), 1e-3)


def _trials_section(found: Tuning) -> Section:
    """A table of all, the best on top."""
    names = list(found.settings)
    order = sorted(found.trials, key=lambda row: (row["state"] != "done", -(row["ap"] or 0.0), row["trial"]))
    rows = tuple(
        (
            Cell(str(row["trial"])),
            Cell("" if row["ap"] is None else _percent(row["ap"]), "best" if row is order[0] else ""),
            Cell("refused" if row["ap"] is None else row["state"], "" if row["state"] == "done" else "soft"),
            Cell(str(row["epochs"])),
            Cell(f"{row['seconds']:.0f}"),
            *(Cell(_short(row["settings"].get(name, ""))) for name in names),
            Cell(row["why"] or "", "words"),
        )
        for row in order
    )
    columns = ("trial", "AP", "state", "epochs", "seconds", *names, "why")
    note = "Finished ones from the best down, then those that were cut off; trial 1 is the model without a search."
    return Section("All trials", "", (ReportTable("Trials", note, columns, rows).without_empty(),))


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
