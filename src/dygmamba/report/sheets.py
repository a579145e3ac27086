"""Tables as plain values, and as Markdown, CSV and LaTeX; with pictures they make sections (sheet_page.py)."""

import csv
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Literal

from dygmamba.report.figures import Picture

Tone = Literal["", "best", "good", "bad", "soft", "words"]
SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, and how it is meant."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: the first column names the row."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def without_empty(self) -> "Grid":
        """The same without columns in which nothing stands."""
        return self._kept([at for at in range(len(self.columns)) if any(row[at].text for row in self.rows)])

    def without(self, name: str) -> "Grid":
        """The same without the column of this name."""
        return self._kept([at for at, column in enumerate(self.columns) if column != name])

    def _kept(self, kept: list[int]) -> "Grid":
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a sheet: a heading, a sentence, its tables and charts."""

    title: str
    text: str = ""
    grids: tuple[Grid, ...] = ()
    charts: tuple[Picture, ...] = ()
    command: str = ""  # what to type next, where there is something


@dataclass(frozen=True, slots=True)
class Sheet:
    """Everything a study has to say."""

    title: str
    stamp: str  # seeds, rule, batch, hardware, command
    sections: tuple[Section, ...] = field(default_factory=tuple)


def markdown(grid: Grid) -> str:
    """A table as GitHub reads it; the best of a column in bold."""
    lines = [grid.columns, ("---",) * len(grid.columns)]
    lines += [
        tuple(f"**{cell.text}**" if cell.tone == "best" else cell.text for cell in row) for row in grid.rows
    ]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def comma_separated(grid: Grid) -> str:
    """A table as CSV, the text of its cells."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.columns)
    writer.writerows([cell.text for cell in row] for row in grid.rows)
    return text.getvalue()


def latex(grid: Grid) -> str:
    """A table for a paper, with booktabs' rules."""
    body = "".join(" & ".join(_latex_cell(cell) for cell in row) + " \\\\\n" for row in grid.rows)
    head = " & ".join(_plain(name) for name in grid.columns)
    return (
        f"% {grid.title}: {grid.note}\n\\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def _latex_cell(cell: Cell) -> str:
    return rf"\textbf{{{_plain(cell.text)}}}" if cell.tone == "best" else _plain(cell.text)


def _plain(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)
