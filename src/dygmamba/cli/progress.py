"""Progress of a command on stderr: bars in a terminal, otherwise a line now and then; and a Ctrl-C that saves."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from dygmamba.api.formatting import format_metric, format_rough_duration, get_metric_title, list_metrics
from dygmamba.cli.console import print_note, stderr
from dygmamba.cli.messages import escape_text, translate_message
from dygmamba.core.errors import DygWarning
from dygmamba.core.interrupts import Interrupts
from dygmamba.core.process_settings import collect_garbage_as_usual, is_first_process, redirect_warnings
from dygmamba.core.progress import SILENT, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

FIRST_LINE_SECONDS, LINE_INTERVAL_SECONDS = 3.0, 30.0
MAX_TASKS_PER_LINE = 3


@contextmanager
def show_progress(*, save_on_interrupt: bool = False) -> Iterator[Progress]:
    """Show the progress of a command on stderr.

    With `save_on_interrupt`, Ctrl-C and SIGTERM let a training finish its step and save. Of several processes that
    torchrun started, only the first one shows anything.
    """
    if save_on_interrupt:
        collect_garbage_as_usual()
    with ExitStack() as stack:
        if not is_first_process():
            redirect_warnings(DygWarning, lambda text: None)
            if save_on_interrupt:
                stack.enter_context(Interrupts())
            yield SILENT
            return
        console = stderr()
        bars = stack.enter_context(make_bars(console) if console.is_terminal else LineProgress(print_note))
        if save_on_interrupt:
            stack.enter_context(Interrupts(print_note))
        yield ConsoleProgress(bars)


def print_message(text: str) -> None:
    """Print a message of the library on stderr, in the words of the command line."""
    print_note(translate_message(text))


class ConsoleProgress(Progress):
    """Progress on the console: each open stage is a bar in a terminal, elsewhere a line from time to time."""

    def __init__(self, bars: "Bars | LineProgress", task: "TaskID | None" = None, name: str = "") -> None:
        self._bars, self._task, self._name = bars, task, name

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> Iterator[Progress]:
        task = self._bars.add_task(name, total=total, completed=done, unit=unit)
        try:
            yield ConsoleProgress(self._bars, task, name)
        finally:
            self._bars.remove_task(task)

    def advance(self, count: int = 1) -> None:
        if self._task is not None:
            self._bars.advance(self._task, count)

    def epoch(self, entry: dict[str, Any]) -> None:
        if self._task is not None:
            self._bars.update(self._task, description=f"{self._name}, {describe_epoch(entry)}")

    def message(self, text: str) -> None:
        # through the console of the bars, which then stay below the text
        console = getattr(self._bars, "console", None) or stderr()
        console.print(translate_message(text), soft_wrap=True)


def describe_epoch(entry: dict[str, Any]) -> str:
    """Return an epoch's number, loss and validation metrics in a few words."""
    text = f"epoch {entry['epoch'] + 1}: loss {entry['loss']:.4f}"
    for name in list_metrics(shown="line"):
        value = entry.get(f"val_{name}")
        if value is not None:
            text += f", val {get_metric_title(name)} {format_metric(name, value)}"
    return text


def make_bars(console: "Console") -> "Bars":
    """Make progress bars whose names are printed as text."""
    from rich.filesize import decimal
    from rich.progress import BarColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Description(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(escape_text(task.description))  # names come from files and servers

    class Count(TextColumn):
        def render(self, task: Task) -> Text:
            formats = {"bytes": decimal, "seconds": format_rough_duration}
            write = formats.get(task.fields.get("unit", ""), "{:,}".format)
            end = "" if task.total is None else f"/{write(int(task.total))}"
            return Text(f"{write(int(task.completed))}{end}")

    return Bars(
        Description(""), BarColumn(), Count(""), TimeRemainingColumn(), console=console, transient=True
    )


@dataclass(slots=True)
class ProgressTask:
    """A stage that is under way, with what an estimate of the remaining time needs."""

    description: str
    total: float | None
    completed: float = 0
    start: float = field(default_factory=time.monotonic)
    before: float = 0  # done before `start`
    is_timed: bool = False
    is_planned: bool = False  # units are seconds of a plan

    def reach(self, completed: float) -> None:
        """Set how much is done. The clock starts with the first of it: what comes before has another pace."""
        if not self.is_timed and not self.is_planned and completed > self.completed:
            self.before, self.start, self.is_timed = completed, time.monotonic(), True
        self.completed = completed

    @property
    def line(self) -> str:
        """The state in one line, with the remaining time if it can be estimated."""
        if self.total is None:
            return f"{self.description}: {self.completed:,.0f}" if self.completed else self.description
        done, left = self.completed - self.before, self.total - self.completed
        if self.is_planned:
            pace = (time.monotonic() - self.start) / done if done else 1.0
            return f"{self.description}: about {format_rough_duration(left * pace)} left"
        text = f"{self.description}: {self.completed:,.0f} of {self.total:,.0f}"
        if done <= 0 or left <= 0:
            return text
        return f"{text}, about {format_rough_duration((time.monotonic() - self.start) * left / done)} left"


class LineProgress:
    """Progress for a stderr that is no terminal: a thread prints a line now and then.

    It has the methods of rich's `Progress` that are used.
    """

    def __init__(
        self,
        print_text: Callable[[str], None],
        first: float = FIRST_LINE_SECONDS,
        interval: float = LINE_INTERVAL_SECONDS,
    ) -> None:
        self._print, self._first, self._interval = print_text, first, interval
        self._tasks: dict[int, ProgressTask] = {}
        self._lock, self._numbers = threading.Lock(), 0
        self._end, self._thread = threading.Event(), threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> "LineProgress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def add_task(
        self, description: str, total: float | None = None, completed: float = 0, unit: str = ""
    ) -> "TaskID":
        with self._lock:
            self._numbers += 1
            self._tasks[self._numbers] = ProgressTask(
                description, total, completed, before=completed, is_planned=unit == "seconds"
            )
            return cast("TaskID", self._numbers)

    def update(self, task: "TaskID", *, description: str) -> None:
        self._tasks[task].description = description

    def advance(self, task: "TaskID", count: float = 1) -> None:
        work = self._tasks[task]
        work.reach(work.completed + count)

    def remove_task(self, task: "TaskID") -> None:
        with self._lock:
            del self._tasks[task]

    def _report(self) -> None:
        wait = self._first
        while not self._end.wait(wait):
            wait = self._interval
            with self._lock:
                tasks = list(self._tasks.values())
            if len(tasks) > MAX_TASKS_PER_LINE:  # a study with many workers
                self._print(f"{tasks[0].line}; {len(tasks) - 1} running")
            elif tasks:
                self._print("; ".join(task.line for task in tasks))
