"""What is seen of a study in a terminal: one table of what runs, its plan, its tables."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dygmamba.cli.console import emit_json, plain_table, stderr, stdout
from dygmamba.cli.messages import escape_text
from dygmamba.cli.progress import print_message
from dygmamba.data.events.statistics import format_rough_duration
from dygmamba.lab.job import Job
from dygmamba.lab.pool import JobCallback, JobEvent
from dygmamba.lab.reproduction import estimate_cost
from dygmamba.lab.studies import GeneratedDataset
from dygmamba.report.document import Document, ReportTable

if TYPE_CHECKING:
    from rich.table import Table

LINE_INTERVAL = 30.0  # seconds between two lines where there is no terminal
SHOWN_RUNS = 24  # runs in the table at most
UNMEASURED = "not measured"
# columns that a narrow terminal does without, in this order
OPTIONAL_COLUMNS = ("AP pooled", "AUC", "re-run, leaks closed", "rank", "seeds", "difference", "published AP")
COLUMN_GAP = 2  # between two columns


class StudyBoard:
    """What runs now, and how much is done; told from several threads."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self.running: dict[str, tuple[str, dict[str, Any]]] = {}
        self.began = self.last = time.monotonic()
        self.lock = threading.Lock()

    def told(self, event: JobEvent) -> None:
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
            f"{self.done} of {count_runs(self.total)} done{failed}, {len(self.running)} running, "
            f"{time.monotonic() - self.began:.0f} s"
        )

    def __rich__(self) -> "Table":
        """The table that is redrawn."""
        with self.lock:
            table = plain_table("run", title=self.line, figures=("epoch", "loss", "validation AP"))
            for title, more in list(self.running.values())[:SHOWN_RUNS]:
                figures = (
                    (f"{more['loss']:.4f}", f"{100 * more['val_ap']:.2f}") if "loss" in more else ("", "")
                )
                table.add_row(title, str(more.get("epoch", "")), *figures)
            return table


@contextmanager
def follow_study(total: int) -> Iterator[JobCallback]:
    """A table that is redrawn; a line now and then where there is no terminal."""
    board, console = StudyBoard(total), stderr()
    if console.is_terminal:
        from rich.live import Live

        with Live(board, console=console, refresh_per_second=2, transient=True):
            yield board.told
        return

    def told(event: JobEvent) -> None:
        board.told(event)
        if event.what == "failed":
            print_message(f"{event.job.title} failed: {event.more['why']}")
        if time.monotonic() - board.last > LINE_INTERVAL:
            board.last = time.monotonic()
            print_message(board.line)

    yield told


def show_plan(jobs: list[Job], missing: list[Job], device: str, as_json: bool) -> None:
    """Every run of a study that is to be done, with what it may take alone on this kind of device."""
    guesses = {job.key: estimate_cost(job, device) for job in missing}
    if as_json:
        rows = [{"run": job.title, "key": job.key, **asdict(guesses[job.key])} for job in missing]
        emit_json({"runs": len(jobs), "missing": rows})
        return
    title = f"{count_runs(len(jobs))}, {len(missing)} to do"
    table = plain_table("run", title=title, figures=("alone", "MB"))
    for job in missing:
        one = guesses[job.key]
        long = UNMEASURED if one.seconds is None else format_rough_duration(one.seconds)
        much = UNMEASURED if one.megabytes is None else f"{one.megabytes:,.0f}"
        table.add_row(job.title, long, much)
    stdout().print(table)
    known = [one.seconds for one in guesses.values() if one.seconds is not None]
    unknown = len(guesses) - len(known)
    rest = f", and {count_runs(unknown)} of models that were not measured"
    print_message(f"about {format_rough_duration(sum(known))} one after another{rest if unknown else ''}")


def count_runs(number: int) -> str:
    """So many of them."""
    return f"{number:,} run" + "s" * (number != 1)


def show_data_plan(made: GeneratedDataset, as_json: bool) -> None:
    """The plan of a study whose stream is still to be made."""
    if as_json:
        emit_json({"runs": None, "missing": None, "makes": str(made)})
    else:
        print_message(f"first it makes the stream {made}; what there is to run is known then")


def show_sheet(sheet: Document) -> None:
    """Its tables, none wider than the terminal."""
    console, spared = stdout(), {}
    for section in sheet.sections:
        for grid in section.tables:
            fitting, without = fit_grid(grid, console.width)
            console.print(make_rich_grid(fitting, console.width))
            spared |= dict.fromkeys(without)
    if spared:
        print_message(f"too wide for this terminal and left out: {', '.join(spared)}")


def fit_grid(grid: ReportTable, width: int) -> tuple[ReportTable, list[str]]:
    """As much of a grid as a terminal has room for, and the columns that were left out."""
    without = []
    for name in OPTIONAL_COLUMNS:
        if sum(_narrowest_widths(grid)) + COLUMN_GAP * (len(grid.columns) - 1) <= width:
            break
        if name in grid.columns:
            grid = grid.without(name)
            without.append(name)
    return grid, without


def _narrowest_widths(grid: ReportTable) -> list[int]:
    """How wide each column must be: headings may break between words, cells may not."""
    cells = [[row[at].text for row in grid.rows] for at in range(len(grid.columns))]
    return [
        max(map(len, [*name.split(), *own]), default=0) for name, own in zip(grid.columns, cells, strict=True)
    ]


def make_rich_grid(grid: ReportTable, width: int) -> "Table":
    """A grid for a terminal: headings are on one line where there is room, and cells break where there is none."""
    from rich.text import Text

    tones = {"best": "bold", "good": "green", "bad": "red", "soft": "dim"}
    table = plain_table(grid.columns[0], title=grid.title, figures=grid.columns[1:])
    widths = _narrowest_widths(grid)
    room = width - sum(widths) - COLUMN_GAP * (len(widths) - 1)
    if room >= 0:
        for column, name, own in zip(table.columns, grid.columns, widths, strict=True):
            more = max(0, min(len(name) - own, room))
            column.width, room = own + more, room - more
    for row in grid.rows:
        table.add_row(*(Text(escape_text(cell.text), style=tones.get(cell.tone, "")) for cell in row))
    return table
