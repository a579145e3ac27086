"""What every command shares: results on stdout, everything else on stderr."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def stdout() -> Console:
    """Where tables go."""
    return Console()


def stderr() -> Console:
    """Where notes and progress go."""
    return Console(stderr=True)


def emit_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def progress() -> Progress:
    """A progress bar on stderr; silent when stderr is not a terminal."""
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
