"""What is seen of a study in a terminal: one table of what runs, its plan, its tables."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dygmamba.cli.console import emit_json, plain_table, stderr, stdout
from dygmamba.cli.watching import say
from dygmamba.cli.words import shown
from dygmamba.data.statistics import rough_duration
from dygmamba.report.sheets import Grid, Sheet
from dygmamba.studies.estimate import guess
from dygmamba.studies.job import Job
from dygmamba.studies.made import Made
from dygmamba.studies.pool import Event, Watch

if TYPE_CHECKING:
    from rich.table import Table

EVERY = 30.0  # seconds between two lines where there is no terminal
SHOWN = 24  # runs in the table at most
UNMEASURED = "not measured"
# columns that a narrow terminal does without, in this order
SPARE = ("AP pooled", "AUC", "re-run, leaks closed", "rank", "seeds", "difference", "published AP")
GAP = 2  # between two columns


class Board:
    """What runs now, and how much is done; told from several threads."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self.running: dict[str, tuple[str, dict[str, Any]]] = {}
        self.began = self.last = time.monotonic()
        self.lock = threading.Lock()

    def told(self, event: Event) -> None:
        """Something happened to a job."""
        with self.lock:
            if event.what in ("started", "epoch"):
                self.running[event.job.key] = (event.job.title, event.more)
            else:
                self.running.pop(event.job.key, None)
                self.done += event.what == "done"
                self.failed += event.what == "failed"

    @property
    def line(self) -> str:
        """Where the study stands."""
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.done} of {runs(self.total)} done{failed}, {len(self.running)} running, "
            f"{time.monotonic() - self.began:.0f} s"
        )

    def __rich__(self) -> "Table":
        """The table that is redrawn."""
        with self.lock:
            table = plain_table("run", title=self.line, figures=("epoch", "loss", "validation AP"))
            for title, more in list(self.running.values())[:SHOWN]:
                figures = (
                    (f"{more['loss']:.4f}", f"{100 * more['val_ap']:.2f}") if "loss" in more else ("", "")
                )
                table.add_row(title, str(more.get("epoch", "")), *figures)
            return table


@contextmanager
def following(total: int) -> Iterator[Watch]:
    """A table that is redrawn; a line now and then where there is no terminal."""
    board, console = Board(total), stderr()
    if console.is_terminal:
        from rich.live import Live

        with Live(board, console=console, refresh_per_second=2, transient=True):
            yield board.told
        return

    def told(event: Event) -> None:
        board.told(event)
        if event.what == "failed":
            say(f"{event.job.title} failed: {event.more['why']}")
        if time.monotonic() - board.last > EVERY:
            board.last = time.monotonic()
            say(board.line)

    yield told


def show_plan(jobs: list[Job], missing: list[Job], device: str, as_json: bool) -> None:
    """Every run of a study that is to be done, with what it may take alone on this kind of device."""
    guesses = {job.key: guess(job, device) for job in missing}
    if as_json:
        rows = [{"run": job.title, "key": job.key, **asdict(guesses[job.key])} for job in missing]
        emit_json({"runs": len(jobs), "missing": rows})
        return
    title = f"{runs(len(jobs))}, {len(missing)} to do"
    table = plain_table("run", title=title, figures=("alone", "MB"))
    for job in missing:
        one = guesses[job.key]
        long = UNMEASURED if one.seconds is None else rough_duration(one.seconds)
        much = UNMEASURED if one.megabytes is None else f"{one.megabytes:,.0f}"
        table.add_row(job.title, long, much)
    stdout().print(table)
    known = [one.seconds for one in guesses.values() if one.seconds is not None]
    unknown = len(guesses) - len(known)
    rest = f", and {runs(unknown)} of models that were not measured"
    say(f"about {rough_duration(sum(known))} one after another{rest if unknown else ''}")


def runs(number: int) -> str:
    """So many of them."""
    return f"{number:,} run" + "s" * (number != 1)


def show_making(made: Made, as_json: bool) -> None:
    """The plan of a study whose stream is still to be made."""
    if as_json:
        emit_json({"runs": None, "missing": None, "makes": str(made)})
    else:
        say(f"first it makes the stream {made}; what there is to run is known then")


def show_sheet(sheet: Sheet) -> None:
    """Its tables, none wider than the terminal."""
    console, spared = stdout(), {}
    for section in sheet.sections:
        for grid in section.grids:
            fitting, without = fitted(grid, console.width)
            console.print(rich_grid(fitting, console.width))
            spared |= dict.fromkeys(without)
    if spared:
        say(f"too wide for this terminal and left out: {', '.join(spared)}")


def fitted(grid: Grid, width: int) -> tuple[Grid, list[str]]:
    """As much of a grid as a terminal has room for, and the columns that were left out."""
    without = []
    for name in SPARE:
        if sum(_narrowest(grid)) + GAP * (len(grid.columns) - 1) <= width:
            break
        if name in grid.columns:
            grid = grid.without(name)
            without.append(name)
    return grid, without


def _narrowest(grid: Grid) -> list[int]:
    """How wide each column must be: headings may break between words, cells may not."""
    cells = [[row[at].text for row in grid.rows] for at in range(len(grid.columns))]
    return [
        max(map(len, [*name.split(), *own]), default=0) for name, own in zip(grid.columns, cells, strict=True)
    ]


def rich_grid(grid: Grid, width: int) -> "Table":
    """A grid for a terminal: headings are on one line where there is room, and cells break where there is none."""
    from rich.text import Text

    tones = {"best": "bold", "good": "green", "bad": "red", "soft": "dim"}
    table = plain_table(grid.columns[0], title=grid.title, figures=grid.columns[1:])
    widths = _narrowest(grid)
    room = width - sum(widths) - GAP * (len(widths) - 1)
    if room >= 0:
        for column, name, own in zip(table.columns, grid.columns, widths, strict=True):
            more = max(0, min(len(name) - own, room))
            column.width, room = own + more, room - more
    for row in grid.rows:
        table.add_row(*(Text(shown(cell.text), style=tones.get(cell.tone, "")) for cell in row))
    return table
