"""The time at which work must end, by a clock that tests can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

Clock = Callable[[], float]  # seconds since any fixed moment; never goes back


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of a clock."""

    at: float = inf
    clock: Clock = time.monotonic

    @staticmethod
    def after(seconds: float, clock: Clock = time.monotonic) -> "Deadline":
        return Deadline(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.at - self.clock()

    @property
    def is_over(self) -> bool:
        return self.left <= 0


NO_DEADLINE = Deadline()
