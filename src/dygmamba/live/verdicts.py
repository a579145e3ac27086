"""Verdict on each appended event, and the rule for late events."""

import re
from dataclasses import dataclass
from typing import Literal

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.times import format_duration
from dygmamba.data.readers.times import format_iso_time

Status = Literal["accepted", "duplicate", "late", "invalid"]
ON_LATE = ("refuse", "set-aside")
SECONDS_PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one event.

    Attributes:
        index: Its position in the call.
        status: "accepted", "duplicate" (its id is in the log already), "late" or "invalid".
        sequence: Its number in the log, for a duplicate that of the first one; None if it is not there.
        message: Why it was not accepted; empty if it was.
    """

    index: int
    status: Status
    sequence: int | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The answer to an append: its accepted events are on the disk.

    Attributes:
        sequence: A query with `min_sequence` of this value sees all events of the call that are in the log.
        accepted: How many events were accepted.
        verdicts: One for each event, in their order.
    """

    sequence: int
    accepted: int
    verdicts: list[Verdict]

    @property
    def rejected(self) -> list[Verdict]:
        """The verdicts of events that were not accepted."""
        return [verdict for verdict in self.verdicts if verdict.status != "accepted"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """Rule for late events: the tolerated delay behind the latest event, and what happens beyond it."""

    seconds: float = 0.0  # or units of a stream whose times are plain numbers
    on_late: str = "refuse"
    is_dated: bool = False  # times are seconds since 1970

    def __post_init__(self) -> None:
        if self.on_late not in ON_LATE:
            raise ConfigError(
                f"`on_late` takes {' or '.join(map(repr, ON_LATE))}; got {self.on_late!r}",
                code="invalid-on-late",
            )

    def is_late(self, time: float, latest: float) -> bool:
        return time < latest - self.seconds

    def describe(self, time: float, latest: float) -> str:
        """Say why an event is late."""
        shown, last, span = f"{time:.12g}", f"{latest:.12g}", f"{self.seconds:g}"
        if self.is_dated:
            shown, last, span = format_iso_time(time), format_iso_time(latest), format_duration(self.seconds)
        tolerance = f"more than {span} " if self.seconds else ""
        return f"its time {shown} is {tolerance}before the latest one, {last}"


def parse_lateness(given: str | float) -> float:
    """Return how late events may be, in seconds; it is given as "10m", "1h", "90s", "7d", or as a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", str(given).strip().lower())
    unit = SECONDS_PER_UNIT.get(match[2] or "s") if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"`late` takes a time such as 0s, 10m, 1h or 7d, or a number in the unit of the stream; got '{given}'",
            code="invalid-late",
        )
    return float(match[1]) * unit
