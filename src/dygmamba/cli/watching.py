"""What is seen of a training in a terminal: bars, sentences, and Ctrl-C that saves at every moment."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from dygmamba.cli.console import note, progress, stderr
from dygmamba.cli.words import spoken
from dygmamba.door.evaluation import Meter
from dygmamba.door.pace import Pace
from dygmamba.door.training import Watcher
from dygmamba.engine.fit import Fit, Reporter
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.errors import DygWarning
from dygmamba.process_wide import tell_warnings

if TYPE_CHECKING:
    from rich.progress import Progress

    from dygmamba.cli.lines import Lines


def say(sentence: str) -> None:
    """On stderr."""
    note(spoken(sentence))


class Interrupts:
    """Ctrl-C and SIGTERM: asked for at once in a stage, and while steps are done, between two of them.

    A step changes weights, optimizer and generators, so it is never left half-done; whoever presses Ctrl-C twice does
    not wait. Who starts several processes may tell them to end in both ways at once.
    """

    def __init__(self, say: Callable[[str], None] = note) -> None:
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
        self._bar: Progress | Lines = progress()
        self._interrupts, self._open = Interrupts(), ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._bar)
        self._open.enter_context(self._interrupts)
        return self

    def __exit__(self, *about: Any) -> None:
        self._open.__exit__(*about)

    @contextmanager
    def fitting(self, fit: Fit, name: str, metric: str) -> Iterator[Reporter]:
        """Steps move a bar of that name, epochs write their loss and the metric beside it."""
        steps, done, most, pace = fit.steps_per_epoch, fit.progress, fit.config.epochs, Pace(fit)
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
        console.print(spoken(sentence), soft_wrap=True)


class Unseen(Watcher):
    """Of several processes all but the first: nothing is shown, and Ctrl-C stops them where it stops the first."""

    def __init__(self) -> None:
        self._interrupts = Interrupts(lambda said: None)

    def __enter__(self) -> Self:
        tell_warnings(DygWarning, lambda said: None)
        self._interrupts.__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        self._interrupts.__exit__(*about)

    @contextmanager
    def fitting(self, fit: Fit, name: str, metric: str) -> Iterator[Reporter]:
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

    def trial(self, fit: Fit, name: str) -> AbstractContextManager[Reporter]:
        """Told of its steps and epochs."""
        return self.fitting(fit, name, "ap")

    def _maybe(self, sentence: str | None) -> None:
        return


class ExamBars(Meter):
    """A bar per exam."""

    @contextmanager
    def exam(self, name: str) -> Iterator[Advance]:
        """Without an end: how many questions there are is not known before."""
        with progress() as bar:
            task = bar.add_task(name, total=None)
            yield lambda count: bar.advance(task, count)
