"""The clock of the machine, in one object so that tests can move it, also backwards."""

import time


class Clock:
    """Wall-clock time and a clock for durations."""

    def now(self) -> float:
        """Seconds since 1970; the system may set it back."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since any fixed moment; never goes back."""
        return time.monotonic()


SYSTEM_CLOCK = Clock()
