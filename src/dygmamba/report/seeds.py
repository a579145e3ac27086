"""The runs beside a run that differ from it by nothing but their seed."""

from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from dygmamba.engine.folder import RunFolder
from dygmamba.errors import DygError
from dygmamba.report.curves import validation
from dygmamba.report.figures import Lines
from dygmamba.report.sheets import Cell, Grid, Section

MOST = 20  # runs in the table
MEASURED = {
    "test AP (%)": ("ap", "transductive"),
    "test AP, new nodes (%)": ("ap", "inductive"),
    "test AUC (%)": ("auc", "transductive"),
}


@dataclass(frozen=True, slots=True)
class Twin:
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


def twins(run: RunFolder) -> list[Twin]:
    """This run and those beside it with the same data, model and settings, by seed; what cannot be read is left out."""
    own, found = _likeness(run), []
    for path in sorted(run.path.absolute().parent.iterdir()):
        other = RunFolder(path)
        try:
            if not (path / "config.toml").is_file() or _likeness(other) != own:
                continue
            about, results = other.config()["run"], other.results()
            mine = [row for row in results if row.get("model") == about["model"]]
            found.append(Twin(path.name, int(about["seed"]), other.metrics(), mine))
        except (DygError, KeyError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda twin: (twin.seed, twin.name))[:MOST]


def seeds_section(run: RunFolder, watched: str) -> Section | None:
    """What came of each seed, and how far they are apart; nothing where there is one."""
    found = twins(run)
    if len(found) < 2:
        return None
    named = [
        name for name, asked in MEASURED.items() if any(twin.figure(*asked) is not None for twin in found)
    ]
    rows = [
        (
            Cell(f"{twin.seed}{' (this run)' if twin.name == run.path.absolute().name else ''}"),
            *(Cell(_shown(twin.figure(*MEASURED[name]))) for name in named),
            Cell(f"{len(twin.epochs)}"),
            Cell(twin.name, "words"),
        )
        for twin in found
    ]
    spread = tuple(Cell(_spread(twins_figures(found, name)), "best") for name in named)
    grid = Grid(
        "", "The last row is the mean over the runs ± their standard deviation.",
        ("seed", *named, "epochs", "folder"), (*rows, (Cell("all"), *spread, Cell(""), Cell(""))),
    )  # fmt: skip
    try:
        alone = len({twin.seed for twin in found}) == len(found)
        names = (f"seed {twin.seed}" if alone else f"seed {twin.seed}, {twin.name}" for twin in found)
        curves = {name: validation(twin.epochs, watched) for name, twin in zip(names, found, strict=True)}
    except (KeyError, TypeError):
        curves = {}
    chart = Lines(
        f"Validation {watched.upper()} by seed", "epoch", f"validation {watched.upper()} (%)", curves, "count",
        note="Curves that lie close say that the result does not hang on chance.",
    )  # fmt: skip
    text = "Runs on the same data with the same settings that differ by their seed only."
    return Section("Seeds side by side", text, (grid,), (chart,))


def twins_figures(found: list[Twin], name: str) -> list[float]:
    """A measure of all that have it."""
    return [value for twin in found if (value := twin.figure(*MEASURED[name])) is not None]


def _likeness(run: RunFolder) -> tuple[Any, ...]:
    """What twins share."""
    sections = run.config()
    about = {key: value for key, value in sections["run"].items() if key not in ("seed", "backbone")}
    return about, sections.get("train"), sections.get("model")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
