"""What every command shares: results on stdout, everything else on stderr."""

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def stdout() -> "Console":
    """Where tables go."""
    from rich.console import Console

    return Console()


def stderr() -> "Console":
    """Where notes and progress go."""
    from rich.console import Console

    return Console(stderr=True)


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
