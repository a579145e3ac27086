"""What is seen of a training in a terminal: bars, sentences, and Ctrl-C that saves at every moment.

Progress where no terminal can show a bar: a line soon after the start, then one every half minute.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from dygmamba.api.evaluation import Meter
from dygmamba.api.pipeline import Watcher
from dygmamba.api.time_estimate import TimeEstimate
from dygmamba.cli.console import open_progress, print_note, stderr
from dygmamba.cli.messages import translate_message
from dygmamba.core.errors import DygWarning
from dygmamba.core.process_settings import redirect_warnings
from dygmamba.engine.fit import Reporter, Trainer
from dygmamba.engine.scoring import Advance, unwatched

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_message(sentence: str) -> None:
    """On stderr."""
    print_note(translate_message(sentence))


class Interrupts:
    """Ctrl-C and SIGTERM: asked for at once in a stage, and while steps are done, between two of them.

    A step changes weights, optimizer and generators, so it is never left half-done; whoever presses Ctrl-C twice does
    not wait. Who starts several processes may tell them to end in both ways at once.
    """

    def __init__(self, say: Callable[[str], None] = print_note) -> None:
        self.say = say
        self.asked = self.holding = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: object) -> None:
        if not self.holding or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self.asked:
            self.asked = True
            self.say("stopping after this step, then saving; once more to stop at once")

    @contextmanager
    def hold(self, holding: bool) -> Iterator[None]:
        """Inside, a signal waits for a good moment, or does not; one that waited is heard where it need not wait."""
        before, self.holding = self.holding, holding
        try:
            if self.asked and not holding:
                raise KeyboardInterrupt
            yield
        finally:
            self.holding = before


class Bars(Watcher):
    """A bar per stage on stderr, or lines where that is no terminal; used in a `with`, Ctrl-C saves and stops."""

    def __init__(self) -> None:
        self._bar: Progress | LineProgress = open_progress()
        self._interrupts, self._open = Interrupts(), ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._bar)
        self._open.enter_context(self._interrupts)
        return self

    def __exit__(self, *about: Any) -> None:
        self._open.__exit__(*about)

    @contextmanager
    def fitting(self, fit: Trainer, name: str, metric: str) -> Iterator[Reporter]:
        """Steps move a bar of that name, epochs write their loss and the metric beside it."""
        steps, done, most, pace = fit.steps_per_epoch, fit.progress, fit.config.epochs, TimeEstimate(fit)
        began = f"{name} on {fit.stream.device}"
        bar, reached = self._bar, done.epoch * steps + done.step
        task = bar.add_task(f"{began} epoch {done.epoch + 1}/{most}", total=most * steps, completed=reached)
        quality = ""

        def on_epoch(entry: dict[str, Any]) -> None:
            nonlocal quality
            found = entry.get(f"val_{metric}")
            quality = f" loss {entry['loss']:.4f}" + (
                "" if found is None else f" val {metric.upper()} {100 * found:.2f}"
            )
            self._maybe(pace.epoch(entry["seconds"]))

        def on_step(epoch: int, step: int) -> None:
            bar.update(
                task,
                completed=epoch * steps + step + 1,
                description=f"{began} epoch {epoch + 1}/{most}{quality}",
            )
            self._maybe(pace.step())

        try:
            with self._interrupts.hold(True):
                yield Reporter(
                    step=on_step, epoch=on_epoch, stop=lambda: self._interrupts.asked, stage=self.stage
                )
        finally:
            bar.remove_task(task)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Advance]:
        """A bar of its own; Ctrl-C is heard at once."""
        task = self._bar.add_task(name, total=total)
        with self._interrupts.hold(False):
            yield lambda count: self._bar.advance(task, count)
        self._bar.remove_task(task)

    def _maybe(self, sentence: str | None) -> None:
        if sentence:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """On stderr, above the bars."""
        console = getattr(self._bar, "console", None) or stderr()
        console.print(translate_message(sentence), soft_wrap=True)


class Unseen(Watcher):
    """Of several processes all but the first: nothing is shown, and Ctrl-C stops them where it stops the first."""

    def __init__(self) -> None:
        self._interrupts = Interrupts(lambda said: None)

    def __enter__(self) -> Self:
        redirect_warnings(DygWarning, lambda said: None)
        self._interrupts.__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        self._interrupts.__exit__(*about)

    @contextmanager
    def fitting(self, fit: Trainer, name: str, metric: str) -> Iterator[Reporter]:
        """Asked whether to stop."""
        with self._interrupts.hold(True):
            yield Reporter(stop=lambda: self._interrupts.asked, stage=self.stage)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Advance]:
        """Ctrl-C is heard at once."""
        with self._interrupts.hold(False):
            yield unwatched


class Trials(Bars):
    """A bar per trial of a search; how long one takes says nothing of the search, so no sentence does."""

    def trial(self, fit: Trainer, name: str) -> AbstractContextManager[Reporter]:
        """Told of its steps and epochs."""
        return self.fitting(fit, name, "ap")

    def _maybe(self, sentence: str | None) -> None:
        return


class ExamBars(Meter):
    """A bar per exam."""

    @contextmanager
    def evaluation_set(self, name: str) -> Iterator[Advance]:
        """Without an end: how many questions there are is not known before."""
        with open_progress() as bar:
            task = bar.add_task(name, total=None)
            yield lambda count: bar.advance(task, count)


T = TypeVar("T")
FIRST_LINE_SECONDS, LINE_INTERVAL_SECONDS = 3.0, 30.0  # seconds


@dataclass(slots=True)
class ProgressTask:
    """Something under way: how much of it is done, since when, and how much was done then."""

    description: str
    total: float | None
    completed: float = 0
    began: float = field(default_factory=time.monotonic)
    before: float = 0
    paced: bool = False

    def reach(self, completed: float) -> None:
        """So much is done; the clock starts with the first of it, for what comes before is of another pace."""
        if not self.paced and completed > self.completed:
            self.before, self.began, self.paced = completed, time.monotonic(), True
        self.completed = completed

    @property
    def line(self) -> str:
        """What there is to say of it now."""
        if self.total is None:
            return f"{self.description}: {self.completed:,.0f}" if self.completed else self.description
        said = f"{self.description}: {self.completed:,.0f} of {self.total:,.0f}"
        done, left = self.completed - self.before, self.total - self.completed
        if done <= 0 or left <= 0:
            return said
        from dygmamba.data.events.statistics import format_rough_duration

        return f"{said}, about {format_rough_duration((time.monotonic() - self.began) * left / done)} left"


class LineProgress:
    """The part of rich's Progress that is used here; a thread of its own tells of the latest work."""

    def __init__(
        self,
        say: Callable[[str], None],
        first: float = FIRST_LINE_SECONDS,
        every: float = LINE_INTERVAL_SECONDS,
    ) -> None:
        self._say, self._first, self._every = say, first, every
        self._works: dict[int, ProgressTask] = {}
        self._end, self._thread = threading.Event(), threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "LineProgress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def add_task(self, description: str, total: float | None = None, completed: float = 0) -> "TaskID":
        """Something more is under way."""
        number = max(self._works, default=-1) + 1
        self._works[number] = ProgressTask(description, total, completed, before=completed)
        return cast("TaskID", number)

    def update(
        self, task: "TaskID", *, description: str | None = None, completed: float | None = None
    ) -> None:
        """What is known of it now."""
        work = self._works[task]
        work.description = work.description if description is None else description
        if completed is not None:
            work.reach(completed)

    def advance(self, task: "TaskID", count: float = 1) -> None:
        """So much more is done."""
        work = self._works[task]
        work.reach(work.completed + count)

    def remove_task(self, task: "TaskID") -> None:
        """It is done."""
        del self._works[task]

    def track(self, steps: Iterable[T], total: float | None = None) -> Iterator[T]:
        """The steps, each counted when it is done."""
        task = self.add_task("working", total)
        for step in steps:
            yield step
            self.advance(task)
        self.remove_task(task)

    def _tell(self) -> None:
        wait = self._first
        while not self._end.wait(wait):
            wait = self._every
            if works := list(self._works.values()):
                self._say("; ".join(work.line for work in works))
