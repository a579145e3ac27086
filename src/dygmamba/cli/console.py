"""Output of the commands: results on stdout, everything else on stderr, as text that no terminal interprets.

Names, ids, paths and answers of servers come from others. Everything that is printed goes through here: no markup, and
control characters are escaped (`messages.escape_text`).
"""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dygmamba.cli.messages import escape_text, translate_message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dygmamba.api.reports import Document, ReportTable

COLUMN_GAP = 2


def stdout() -> "Console":
    """Return the console of results."""
    return _console(False)


def stderr() -> "Console":
    """Return the console of notes and progress."""
    return _console(True)


def _console(to_stderr: bool) -> "Console":
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Escapes every string: lines, cells and titles are all rendered by this method."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(escape_text(text), **how)

    return Plain(stderr=to_stderr, markup=False, emoji=False, highlight=False)


def print_line(line: str) -> None:
    """Print a line on stdout without wrapping it."""
    stdout().print(line, soft_wrap=True)


def print_note(line: str) -> None:
    """Print a line on stderr without wrapping it."""
    stderr().print(line, soft_wrap=True)


def emit_json(value: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_document(document: "Document") -> None:
    """Print the tables and texts of a page; columns that do not fit are named on stderr.

    Charts are left out, and sections that have nothing else.
    """
    dropped, before = {}, ""
    for section in document.sections:
        if section.charts and not section.tables:
            continue
        if before:
            print_line("")
        before = section.text
        for table in section.tables:
            dropped |= dict.fromkeys(_print_table(table, section.title))
        for line in section.text.splitlines():
            print_line(translate_message(line))
        if section.command:
            print_line(f"next: {section.command}")
    if dropped:
        print_note(f"left out, too wide for this terminal: {', '.join(dropped)}")


def _print_table(table: "ReportTable", title: str) -> list[str]:
    """Print a table below its title, or that of its section; returns the columns that do not fit."""
    console = stdout()
    fitting, dropped = _fit_table(_escape_table(table), console.width)
    for line in filter(None, (table.title or title, table.note)):
        print_line(line)
    console.print(_make_rich_table(fitting, console.width))
    if table.most_rows is not None and len(table.rows) > table.most_rows:
        print_line(f"{len(table.rows) - table.most_rows:,} more rows")
    print_line("")
    return dropped


def _escape_table(table: "ReportTable") -> "ReportTable":
    """Escape all cells and headings before their widths are measured."""
    rows = tuple(
        tuple(replace(cell, text=escape_text(translate_message(cell.text))) for cell in row)
        for row in table.rows
    )
    return replace(table, columns=tuple(map(escape_text, table.columns)), rows=rows)


def _fit_table(table: "ReportTable", width: int) -> "tuple[ReportTable, list[str]]":
    """Drop optional columns until a table fits; returns it and the names of the dropped columns."""
    dropped = []
    for name in table.optional:
        if sum(_narrowest_widths(table)) + COLUMN_GAP * (len(table.columns) - 1) <= width:
            break
        if name in table.columns:
            table = table.drop_column(name)
            dropped.append(name)
    return table, dropped


def _narrowest_widths(table: "ReportTable", break_cells: bool = False) -> list[int]:
    """Return how wide each column must be: headings and cells of text break between words, others if `break_cells`."""
    widths = []
    for index, name in enumerate(table.columns):
        parts = name.split()
        for cell in (row[index] for row in table.rows[: table.most_rows]):
            parts += cell.text.split() if break_cells or cell.tone == "words" else [cell.text]
        widths.append(max(map(len, parts), default=0))
    return widths


def _make_rich_table(table: "ReportTable", width: int) -> "Table":
    """Make a terminal table: headings stay on one line if there is room, and cells break if there is none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    styles = {"best": "bold", "good": "green", "bad": "red", "soft": "dim"}
    shown = table.rows[: table.most_rows]
    has_heading = any(table.columns)
    rich_table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=has_heading)
    rich_table.pad_edge = rich_table.show_edge = False
    for index, name in enumerate(table.columns):
        is_text = index == 0 or any(row[index].tone == "words" for row in shown)
        rich_table.add_column(name, justify="left" if is_text else "right")
    widths, gaps = _narrowest_widths(table), COLUMN_GAP * (len(table.columns) - 1)
    if sum(widths) + gaps > width:
        widths = _narrowest_widths(table, break_cells=True)
    room = width - sum(widths) - gaps
    if room >= 0:
        widest = [
            max(map(len, [name, *(row[index].text for row in shown)]))
            for index, name in enumerate(table.columns)
        ]
        # an equal share of the room for each column, and what one does not need for those that need more
        by_need = sorted(range(len(widths)), key=lambda index: widest[index] - widths[index])
        for left, index in zip(range(len(by_need), 0, -1), by_need, strict=True):
            more = max(0, min(widest[index] - widths[index], room // left))
            rich_table.columns[index].width, room = widths[index] + more, room - more
    for row in shown:
        rich_table.add_row(*(Text(cell.text, styles.get(cell.tone, "")) for cell in row))
    return rich_table
