"""The time at which work must end, by a clock that tests can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of a clock, which gives seconds since any fixed moment and never goes back."""

    at: float = inf
    clock: Callable[[], float] = time.monotonic

    @staticmethod
    def after(seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        return Deadline(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.at - self.clock()

    @property
    def is_over(self) -> bool:
        return self.left <= 0


NO_DEADLINE = Deadline()
