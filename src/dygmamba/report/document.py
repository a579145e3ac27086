"""Charts, tables and sections as plain values, and tables as Markdown, CSV and LaTeX.

A report is built from these values first; `charts.py` draws the charts and `html.py` renders the page. A test or a
terminal can therefore look at the content without a browser. The command line uses this module: it imports nothing
heavy.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Literal

from dygmamba.core.files.untrusted import escape_formula, escape_latex, escape_markdown, to_one_line
from dygmamba.core.notebook_html import format_table

# "count": whole numbers only; "date": seconds since 1970, shown as dates; "log": logarithmic;
# "span": seconds on a logarithmic axis, shown as durations
AxisKind = Literal["number", "count", "log", "date", "span"]
Point = tuple[float, ...]  # (x, y), or (x, y, half the height of a band)


@dataclass(frozen=True, slots=True)
class LineChart:
    """Named curves over a common axis."""

    title: str
    x: str  # name and unit of the axis
    y: str
    series: dict[str, list[Point]]
    x_kind: AxisKind = "number"
    y_kind: AxisKind = "number"
    level: tuple[str, float] | None = None  # horizontal reference line: its name and value
    bands: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)  # points (x, low, high)
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    diagonal: str = ""  # name of the line x = y; not drawn if empty
    note: str = ""  # caption
    tooltips: dict[str, list[str]] = field(default_factory=dict)  # hover text per curve and point
    dots: tuple[str, ...] = ()  # curves that are drawn as points without a line


@dataclass(frozen=True, slots=True)
class Histogram:
    """Stacked counts per bin: `counts[group][bin]`; `edges` has one entry more than there are bins."""

    title: str
    x: str
    y: str
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]
    x_kind: AxisKind = "number"
    gaps: tuple[tuple[float, float, str], ...] = ()  # shaded stretches: start, end, hover text
    note: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars `values[group][name]`; the bars of the name `own` are highlighted.

    `marks[group][name]` are values that are drawn as dots over a bar, each with its hover text.
    """

    title: str
    x: str
    values: dict[str, dict[str, float]]
    own: str = ""
    low: float = 0.0  # value at which the bars begin
    note: str = ""
    marks: dict[str, dict[str, list[tuple[str, float]]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContributionChart:
    """The terms of a sum as bars from zero: positive ones to the right, negative ones to the left.

    `base` is the term that the others are added to; it is drawn last.
    """

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

# CSS classes of style.css; "words" is a cell of text that may wrap
Tone = Literal["", "best", "good", "bad", "soft", "words"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table cell, and how it is displayed."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of text; the first column names the row.

    A narrow terminal drops the columns `optional`, in this order, until the table fits; it shows at most `most_rows`.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    optional: tuple[str, ...] = ()
    most_rows: int | None = None

    @staticmethod
    def of_rows(
        title: str,
        note: str,
        columns: tuple[str, ...],
        rows: Iterable[Iterable[str | Cell]],
        optional: tuple[str, ...] = (),
    ) -> "ReportTable":
        """Return a table whose cells may be given as text."""
        cells = tuple(tuple(Cell(one) if isinstance(one, str) else one for one in row) for row in rows)
        return ReportTable(title, note, columns, cells, optional)

    def drop_empty_columns(self) -> "ReportTable":
        """Return the table without columns that are empty in every row."""
        return self._select([at for at in range(len(self.columns)) if any(row[at].text for row in self.rows)])

    def drop_column(self, name: str) -> "ReportTable":
        """Return the table without the column of this name."""
        return self._select([at for at, column in enumerate(self.columns) if column != name])

    def _select(self, indices: list[int]) -> "ReportTable":
        rows = tuple(tuple(row[at] for at in indices) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in indices), rows=rows)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: a heading, paragraphs, tables and charts."""

    title: str
    text: str = ""  # a line for each paragraph
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[Chart, ...] = ()
    command: str = ""  # a command line that the reader may want to run next


@dataclass(frozen=True, slots=True)
class Card:
    """One number in the box at the top of a page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a page."""

    title: str
    subtitle: str = ""  # of a study: seeds, protocol, batch size, hardware and command
    sections: tuple[Section, ...] = ()
    cards: tuple[Card, ...] = ()

    def _repr_html_(self) -> str:
        """Return the tables for a notebook; the page has the charts too."""
        tables = [table for section in self.sections for table in section.tables]
        return "".join(
            format_table(table.columns, [[cell.text for cell in row] for row in table.rows], table.title)
            for table in tables
        )


def escape_table(table: ReportTable) -> ReportTable:
    """Return the table for Markdown, with all text shown as it is; names may come from runs of other people."""
    rows = tuple(tuple(replace(cell, text=escape_markdown(cell.text)) for cell in row) for row in table.rows)
    columns = tuple(map(escape_markdown, table.columns))
    title, note = escape_markdown(table.title), escape_markdown(table.note)
    return replace(table, title=title, note=note, columns=columns, rows=rows)


def format_markdown(table: ReportTable) -> str:
    """Format a table as GitHub Markdown, best values in bold."""
    lines = [table.columns, ("---",) * len(table.columns)]
    lines += [
        tuple(f"**{cell.text}**" if cell.tone == "best" else cell.text for cell in row) for row in table.rows
    ]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def format_csv(table: ReportTable) -> str:
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_to_csv_cell(name) for name in table.columns])
    writer.writerows([_to_csv_cell(cell.text) for cell in row] for row in table.rows)
    return text.getvalue()


def _to_csv_cell(text: str) -> str:
    """Return a cell that no spreadsheet runs as a formula; numbers stay numbers."""
    return text if re.match(r"[+-]?\d", text) or text in ("-", "") else escape_formula(text)


def format_latex(table: ReportTable) -> str:
    """Format a table for a paper; it needs the LaTeX package booktabs."""
    body = "".join(" & ".join(_format_latex_cell(cell) for cell in row) + " \\\\\n" for row in table.rows)
    head = " & ".join(escape_latex(name) for name in table.columns)
    caption = f"% {to_one_line(table.title)}: {to_one_line(table.note)}\n"
    return caption + (
        f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _format_latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.tone == "best" else text
