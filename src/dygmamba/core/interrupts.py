"""Ctrl-C and SIGTERM during training: a step is never left half-done.

A step changes weights, optimizer and random generators, so a run must stop between two steps. The training loop marks
its steps with `defer_interrupts` and the work between them, such as validation, with `allow_interrupts`. Without
installed handlers (`Interrupts`, which the command line uses) both do nothing and Python behaves as always.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_installed: "Interrupts | None" = None


class Interrupts:
    """Context manager that installs the signal handlers.

    A signal raises KeyboardInterrupt at once, except while interrupts are deferred: then the loop finds it with
    `interrupt_requested` and stops after the step. A second Ctrl-C does not wait. A second SIGTERM does, because
    launchers of several processes may send both signals at once.
    """

    def __init__(self, announce: Callable[[str], None] = lambda text: None) -> None:
        self._announce = announce
        self.requested = self.deferred = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        global _installed
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        _installed = self
        return self

    def __exit__(self, *_: object) -> None:
        global _installed
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        _installed = None

    def _handle(self, number: int, _: object) -> None:
        if not self.deferred or (self.requested and number == signal.SIGINT):
            raise KeyboardInterrupt
        if not self.requested:
            self.requested = True
            self._announce("stopping after this step, then saving; press Ctrl-C again to stop at once")


def interrupt_requested() -> bool:
    """Return whether a deferred signal waits for the end of the step."""
    return _installed is not None and _installed.requested


@contextmanager
def defer_interrupts(deferred: bool = True) -> Iterator[None]:
    """Context manager: signals wait until the loop calls `interrupt_requested`."""
    interrupts = _installed
    if interrupts is None:
        yield
        return
    previous, interrupts.deferred = interrupts.deferred, deferred
    try:
        # a signal that came while it had to wait is delivered as soon as it need not wait any longer
        if interrupts.requested and not deferred:
            raise KeyboardInterrupt
        yield
    finally:
        interrupts.deferred = previous


def allow_interrupts() -> Any:
    """Context manager: a signal raises KeyboardInterrupt at once, even within `defer_interrupts`."""
    return defer_interrupts(False)
