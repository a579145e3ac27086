"""What every command shares: results on stdout, everything else on stderr, and nothing that a terminal obeys.

Names, ids, paths and what servers say are other people's words. Whatever is printed goes through here and is text: no
markup, and control characters as escapes (`words.shown`).
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from dygmamba.cli.words import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.table import Table
    from rich.text import Text

    from dygmamba.cli.lines import Lines


def stdout(width: int | None = None) -> "Console":
    """Where tables go."""
    return _console(False, width)


def stderr() -> "Console":
    """Where notes and progress go."""
    return _console(True)


def _console(to_stderr: bool, width: int | None = None) -> "Console":
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Every string, be it a line, a cell or a title, is rendered by this method."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(shown(text), **how)

    return Plain(stderr=to_stderr, width=width, markup=False, emoji=False, highlight=False)


def tell(line: str) -> None:
    """A line on stdout, however long it is."""
    stdout().print(line, soft_wrap=True)


def note(line: str) -> None:
    """A line on stderr, however long it is."""
    stderr().print(line, soft_wrap=True)


def plain_table(*headings: str, title: str | None = None, figures: "tuple[str | Text, ...]" = ()) -> "Table":
    """A table without a frame; `figures` are further headings, of columns that stand right."""
    from rich import box
    from rich.table import Table

    table = Table(*headings, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.pad_edge = table.show_edge = False
    for name in figures:
        table.add_column(name, justify="right")
    return table


def stacked(*lines: str) -> "Text":
    """A heading of several lines."""
    from rich.text import Text

    return Text("\n".join(map(shown, lines)))


def mean_and_spread(values: list[float]) -> str:
    """In per cent: the mean, and the standard deviation where there are several; a dash where there is none."""
    from statistics import mean, stdev

    if not values:
        return "-"
    return f"{100 * mean(values):.2f}" + (f"±{100 * stdev(values):.2f}" if len(values) > 1 else "")


def emit_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def progress() -> "Progress | Lines":
    """A progress bar on stderr; where that is no terminal, a line now and then."""
    console = stderr()
    if not console.is_terminal:
        from dygmamba.cli.lines import Lines

        return Lines(note)
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    return Progress(
        description(), BarColumn(), counted(), TimeRemainingColumn(), console=console, transient=True
    )


def counted() -> "TextColumn":
    """How much is done, of how much where that is known."""
    from rich.progress import Task, TextColumn
    from rich.text import Text

    class Counted(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.completed:,.0f}" + ("" if task.total is None else f"/{task.total:,.0f}"))

    return Counted("")


def description() -> "TextColumn":
    """What a bar stands for, as text."""
    from rich.progress import Task, TextColumn
    from rich.text import Text

    class Description(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(shown(task.description))

    return Description("")
