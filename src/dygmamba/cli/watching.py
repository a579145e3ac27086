"""What is seen of a training in a terminal: bars, sentences, and Ctrl-C that saves."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dygmamba.cli.console import note, progress
from dygmamba.cli.words import spoken
from dygmamba.door.evaluation import Meter
from dygmamba.door.training import Watcher
from dygmamba.engine.fit import Fit, Interrupted, Reporter
from dygmamba.engine.walk import Advance
from dygmamba.errors import ConfigError


def say(sentence: str) -> None:
    """On stderr."""
    note(spoken(sentence))


class Bars(Watcher):
    """A bar per stage on stderr; Ctrl-C saves and stops."""

    def __init__(self, tensorboard: bool = False) -> None:
        self.tensorboard = tensorboard

    @contextmanager
    def fitting(self, fit: Fit, name: str, metric: str) -> Iterator[Reporter]:
        """Steps move a bar of that name, epochs write their loss and the metric beside it."""
        with progress() as bar, interrupts() as stop:
            steps, done = fit.steps_per_epoch, fit.progress
            task = bar.add_task(name, total=fit.config.epochs * steps)
            bar.update(task, completed=done.epoch * steps + done.step)
            writer = _tensorboard(fit.run.path) if self.tensorboard else None

            def on_epoch(entry: dict[str, Any]) -> None:
                quality = f"loss {entry['loss']:.4f} val {metric.upper()} {100 * entry[f'val_{metric}']:.2f}"
                bar.update(task, description=f"{name} epoch {entry['epoch']} {quality}")
                if writer is not None:
                    for key in ("loss", "val_ap", "val_auc"):
                        writer.add_scalar(key, entry[key], entry["epoch"])
                    writer.flush()

            def on_step(epoch: int, step: int) -> None:
                bar.update(task, completed=epoch * steps + step + 1)

            yield Reporter(step=on_step, epoch=on_epoch, stop=lambda: bool(stop))

    @contextmanager
    def embedding(self, name: str, total: int | None) -> Iterator[Advance]:
        """A bar for the embeddings of a frozen backbone; Ctrl-C stops between two passes."""
        with progress() as bar, interrupts() as stop:
            task = bar.add_task(name, total=total)

            def advance(count: int) -> None:
                bar.advance(task, count)
                if stop:
                    raise Interrupted("stopped while embedding; go on with: dygmamba train --resume RUN")

            yield advance

    def say(self, sentence: str) -> None:
        """On stderr."""
        say(sentence)


class ExamBars(Meter):
    """A bar per exam."""

    @contextmanager
    def exam(self, name: str) -> Iterator[Advance]:
        """Without an end: how many questions there are is not known before."""
        with progress() as bar:
            task = bar.add_task(name, total=None)
            yield lambda count: bar.advance(task, count)


class interrupts:
    """Ctrl-C and SIGTERM ask the loop to save and stop at the next step instead of breaking it."""

    def __enter__(self) -> list[bool]:
        self._asked: list[bool] = []
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self._before:
            signal.signal(number, lambda *_: self._asked.append(True))
        return self._asked

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _tensorboard(folder: Path) -> Any:
    """TensorBoard's writer into a run folder."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs the package tensorboard; install it with: pip install tensorboard"
        ) from error
    return SummaryWriter(str(folder))
