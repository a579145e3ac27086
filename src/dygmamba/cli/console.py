"""Output of the commands: results on stdout, everything else on stderr, as text that no terminal interprets.

Names, ids, paths and answers of servers come from others. Everything that is printed goes through here: no markup, and
control characters are escaped (`messages.escape_text`).
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from dygmamba.cli.messages import escape_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def stdout(width: int | None = None) -> "Console":
    """Return the console of results."""
    return _console(False, width)


def stderr() -> "Console":
    """Return the console of notes and progress."""
    return _console(True)


def _console(to_stderr: bool, width: int | None = None) -> "Console":
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Escapes every string: lines, cells and titles are all rendered by this method."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(escape_text(text), **how)

    return Plain(stderr=to_stderr, width=width, markup=False, emoji=False, highlight=False)


def print_line(line: str) -> None:
    """Print a line on stdout without wrapping it."""
    stdout().print(line, soft_wrap=True)


def print_note(line: str) -> None:
    """Print a line on stderr without wrapping it."""
    stderr().print(line, soft_wrap=True)


def plain_table(*headings: str, title: str | None = None, figures: "tuple[str | Text, ...]" = ()) -> "Table":
    """Make a table without a frame; `figures` are headings of right-aligned columns."""
    from rich import box
    from rich.table import Table

    table = Table(*headings, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.pad_edge = table.show_edge = False
    for name in figures:
        table.add_column(name, justify="right")
    return table


def stack_heading(*lines: str) -> "Text":
    """Make a heading of several lines."""
    from rich.text import Text

    return Text("\n".join(map(escape_text, lines)))


def emit_json(value: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")
