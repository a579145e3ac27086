"""Pictures as plain values, whatever draws them (charts.py).

Tables as plain values, and as Markdown, CSV and LaTeX; with pictures they make sections (sheet_page.py).
"""

import csv
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Literal

# whole numbers only; seconds since 1970 as dates; seconds on a logarithmic axis as durations
AxisKind = Literal["number", "count", "log", "date", "span"]
Point = tuple[float, ...]  # (x, y), or (x, y, spread)


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over one axis; `level` is a line across with a name, a band is named, of points (x, low, high).

    `note` is the sentence under the picture; `about` says of each point of a curve what a pointer resting on it shows.
    The curves in `dots` are points without a line.
    """

    title: str
    x: str
    y: str
    series: dict[str, list[Point]]
    x_kind: AxisKind = "number"
    y_kind: AxisKind = "number"
    level: tuple[str, float] | None = None
    bands: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    diagonal: str = ""  # what the line of equal x and y is called, where there is one
    note: str = ""
    about: dict[str, list[str]] = field(default_factory=dict)
    dots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per slice of an axis, by kind: `counts[kind][slice]` stand on one another; `edges` has one more.

    `gaps` are stretches in which nothing is, shaded.
    """

    title: str
    x: str
    y: str
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]
    x_kind: AxisKind = "number"
    gaps: tuple[tuple[float, float, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """A bar to the right per name and kind: `values[kind][name]`; the name `own` stands out."""

    title: str
    x: str
    values: dict[str, dict[str, float]]
    own: str = ""
    low: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class ContributionChart:
    """Parts of a sum, a bar from zero each: right for what adds, left for what takes; `base` is their beginning."""

    title: str
    parts: tuple[tuple[str, float], ...]
    base: tuple[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix of numbers between `low` and `high`."""

    title: str
    x: str
    y: str
    values: tuple[tuple[float, ...], ...]
    low: float = -1.0
    high: float = 1.0
    note: str = ""


Chart = LineChart | Histogram | BarChart | ContributionChart | HeatMap


Tone = Literal["", "best", "good", "bad", "soft", "words"]
LATEX_ESCAPES = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, and how it is meant."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table: the first column names the row."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def without_empty(self) -> "ReportTable":
        """The same without columns in which nothing stands."""
        return self._kept([at for at in range(len(self.columns)) if any(row[at].text for row in self.rows)])

    def without(self, name: str) -> "ReportTable":
        """The same without the column of this name."""
        return self._kept([at for at, column in enumerate(self.columns) if column != name])

    def _kept(self, kept: list[int]) -> "ReportTable":
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a sheet: a heading, a sentence, its tables and charts."""

    title: str
    text: str = ""
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[Chart, ...] = ()
    command: str = ""  # what to type next, where there is something


@dataclass(frozen=True, slots=True)
class Document:
    """Everything a study has to say."""

    title: str
    stamp: str  # seeds, rule, batch, hardware, command
    sections: tuple[Section, ...] = field(default_factory=tuple)


def format_markdown(grid: ReportTable) -> str:
    """A table as GitHub reads it; the best of a column in bold."""
    lines = [grid.columns, ("---",) * len(grid.columns)]
    lines += [
        tuple(f"**{cell.text}**" if cell.tone == "best" else cell.text for cell in row) for row in grid.rows
    ]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def format_csv(grid: ReportTable) -> str:
    """A table as CSV, the text of its cells."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.columns)
    writer.writerows([cell.text for cell in row] for row in grid.rows)
    return text.getvalue()


def format_latex(grid: ReportTable) -> str:
    """A table for a paper, with booktabs' rules."""
    body = "".join(" & ".join(_format_latex_cell(cell) for cell in row) + " \\\\\n" for row in grid.rows)
    head = " & ".join(_escape_latex(name) for name in grid.columns)
    return (
        f"% {grid.title}: {grid.note}\n\\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _format_latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_escape_latex(cell.text)}}}" if cell.tone == "best" else _escape_latex(cell.text)


def _escape_latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(letter, letter) for letter in text)
