"""Progress of long computations: one protocol for terminals, plain lines, notebooks, loggers and Python callers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

Advance = Callable[[int], None]  # called with the number of units done since the previous call
EpochFunction = Callable[[dict[str, Any]], None]
LOGGER = logging.getLogger("dygmamba")
LOGGER.addHandler(logging.NullHandler())  # nothing is printed unless the program configures logging


def no_advance(count: int) -> None:
    """Default of `advance` arguments: report to nobody."""


class Progress:
    """Observer of a computation. This base class ignores everything; override what you want to see.

    Long computations open a stage and report to it:

        with progress.stage("validation", len(pairs)) as stage:
            for batch in batches:
                stage.advance(len(batch))

    Stages nest, and several may be open at once, even in several threads: each one is a `Progress` of its own.
    """

    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> AbstractContextManager["Progress"]:
        """Open a part of the work: `total` units (None if unknown), of which `done` were done before.

        `unit` is "bytes" for downloads, and "seconds" if a plan says how long the work takes; otherwise the units are
        counted.
        """
        return nullcontext(self)  # cheap enough for a call per batch

    def advance(self, count: int = 1) -> None:
        """Report that `count` more units of this stage are done."""

    def epoch(self, entry: dict[str, Any]) -> None:
        """Report a finished epoch: number, loss, validation metrics, seconds."""

    def message(self, text: str) -> None:
        """Report a sentence that a user may want to read."""


SILENT = Progress()


class LoggedProgress(Progress):
    """Log messages (level INFO) and epochs (DEBUG) to the logger "dygmamba"; what Python callers get by default."""

    def epoch(self, entry: dict[str, Any]) -> None:
        LOGGER.debug("epoch %s", entry)

    def message(self, text: str) -> None:
        LOGGER.info("%s", text)


class EpochCallback(LoggedProgress):
    """Call a plain function with the entry of every epoch; messages are logged."""

    def __init__(self, function: EpochFunction) -> None:
        self._function = function

    def epoch(self, entry: dict[str, Any]) -> None:
        self._function(entry)


class ForwardingProgress(Progress):
    """Pass everything on to another progress; the base of those that add something to it.

    A stage of it is a copy of it that passes everything on to the other's stage.
    """

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, *, done: int = 0, unit: str = ""
    ) -> Iterator[Progress]:
        with self._inner.stage(name, total, done=done, unit=unit) as stage:
            child = copy(self)
            child._inner = stage
            yield child

    def advance(self, count: int = 1) -> None:
        self._inner.advance(count)

    def epoch(self, entry: dict[str, Any]) -> None:
        self._inner.epoch(entry)

    def message(self, text: str) -> None:
        self._inner.message(text)


class LabelledProgress(ForwardingProgress):
    """Add labels, such as the seed, to the entry of every epoch."""

    def __init__(self, inner: Progress, **labels: Any) -> None:
        super().__init__(inner)
        self._labels = labels

    def epoch(self, entry: dict[str, Any]) -> None:
        self._inner.epoch({**self._labels, **entry})


def as_progress(given: "Progress | EpochFunction | None") -> Progress:
    """Return the progress that a caller gave: an observer, or a function for epochs; None: the package's logger."""
    if given is None:
        return LoggedProgress()
    return given if isinstance(given, Progress) else EpochCallback(given)
