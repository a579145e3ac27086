"""What every command shares: results on stdout, everything else on stderr."""

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


def stdout() -> "Console":
    """Where tables go."""
    from rich.console import Console

    return Console()


def stderr() -> "Console":
    """Where notes and progress go."""
    from rich.console import Console

    return Console(stderr=True)


def plain_table(*headings: str, title: str | None = None, figures: tuple[str, ...] = ()) -> "Table":
    """A table without a frame; `figures` are further headings, of columns that stand right."""
    from rich import box
    from rich.table import Table

    table = Table(*headings, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.pad_edge = table.show_edge = False
    for name in figures:
        table.add_column(name, justify="right")
    return table


def mean_and_spread(values: list[float]) -> str:
    """In per cent: the mean, and the standard deviation where there are several; a dash where there is none."""
    from statistics import mean, stdev

    if not values:
        return "-"
    return f"{100 * mean(values):.2f}" + (f"±{100 * stdev(values):.2f}" if len(values) > 1 else "")


def emit_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def progress() -> "Progress":
    """A progress bar on stderr; silent when stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = stderr()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
