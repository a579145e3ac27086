"""Verdict on each appended event, and the rules for events that are late or dated ahead."""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.times import format_duration
from dygmamba.data.readers.times import format_iso_time

Status = Literal["accepted", "duplicate", "late", "ahead", "invalid"]
ON_LATE = ("refuse", "set-aside")
DATED_LEAD = 86_400.0  # seconds; more than any time zone, so that local times without one are accepted
OFF = "off"
SECONDS_PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one event.

    Attributes:
        index: Its position in the call.
        status: "accepted", "duplicate" (its id is in the log already), "late", "ahead" or "invalid".
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
    """Rule for late events: the tolerated delay behind the watermark, and what happens beyond it.

    The watermark is the latest time of any event that was not ahead of the clock when it came.
    """

    seconds: float = 0.0  # or units of a stream whose times are plain numbers
    on_late: str = "refuse"
    is_dated: bool = False  # times are seconds since 1970

    def __post_init__(self) -> None:
        check_on_late(self.on_late)

    def is_late(self, time: float, watermark: float) -> bool:
        return time < watermark - self.seconds

    def describe(self, time: float, watermark: float) -> str:
        """Say why an event is late."""
        shown, last, span = f"{time:.12g}", f"{watermark:.12g}", f"{self.seconds:g}"
        if self.is_dated:
            shown, last, span = (
                format_iso_time(time),
                format_iso_time(watermark),
                format_duration(self.seconds),
            )
        tolerance = f"more than {span} " if self.seconds else ""
        return f"its time {shown} is {tolerance}before the latest one, {last}"


@dataclass(frozen=True, slots=True)
class FutureLimit:
    """Rule for events dated ahead, which would make all later ones late: how far ahead an event may be.

    Dates are compared with the clock. While the clock is so far behind the watermark that it says nothing about this
    stream, no event is ahead. Plain numbers are compared with the watermark, which is the latest event then.
    """

    seconds: float | None = None  # or units of a stream whose times are plain numbers; None: no limit
    is_dated: bool = False

    @staticmethod
    def choose(given: float | str | None, is_dated: bool) -> "FutureLimit":
        """Return the rule for a tolerance as `parse_lead` returns it; by default dates have a limit, numbers none.

        Gaps of plain numbers may have any length, so no limit could be chosen that accepts every stream.
        """
        if given is None:
            return FutureLimit(DATED_LEAD if is_dated else None, is_dated)
        return FutureLimit(None if given == OFF else float(given), is_dated)

    def is_ahead(self, time: float, watermark: float, now: float) -> bool:
        if self.seconds is None:
            return False
        if not self.is_dated:
            return time > watermark + self.seconds
        return watermark <= now + self.seconds < time

    def advance(self, watermark: float, time: float, now: float) -> float:
        """Return the watermark after an event: the latest time, but for events ahead of a clock that can be used.

        Whether those have happened is not known, so they make only events late that are more than the limit old. The
        clock itself is no watermark: every event comes a little after its time.
        """
        return max(watermark, self._hold_back(time, watermark, now))

    def find_watermark(self, times: np.ndarray, now: float) -> float:
        """Return the watermark of events that are sorted by time, if the log has none."""
        happened, latest = int(np.searchsorted(times, now, side="right")), float(times[-1])
        held = self._hold_back(latest, latest, now)
        return max(held, float(times[happened - 1])) if happened else held

    def _hold_back(self, time: float, watermark: float, now: float) -> float:
        if self.is_dated and self.seconds is not None and watermark <= now + self.seconds and time > now:
            return now - self.seconds
        return time

    def describe(self, time: float, watermark: float, now: float) -> str:
        """Say why an event is ahead."""
        assert self.seconds is not None
        if self.is_dated:
            shown, span = format_iso_time(time), format_duration(self.seconds)
            return f"its time {shown} is more than {span} ahead of the clock, {format_iso_time(now)}"
        return f"its time {time:.12g} is more than {self.seconds:g} after the latest one, {watermark:.12g}"


@dataclass(frozen=True, slots=True)
class TimeRules:
    """Rules for the times of events: which are late, which are dated ahead, and which of them are set aside."""

    lateness: Lateness
    future: FutureLimit

    def judge(self, index: int, time: float, watermark: float, now: float) -> Verdict | None:
        """Return why an event is not accepted; None if its time is fine."""
        if self.lateness.is_late(time, watermark):
            return Verdict(index, "late", None, self.lateness.describe(time, watermark))
        if self.future.is_ahead(time, watermark, now):
            return Verdict(index, "ahead", None, self.future.describe(time, watermark, now))
        return None

    def keeps(self, verdict: Verdict) -> bool:
        """Return whether an event that was not accepted is set aside."""
        # one that is ahead always is: its time may come
        return verdict.status == "ahead" or self.lateness.on_late == "set-aside"


def check_on_late(given: str) -> str:
    """Return what happens to late events; raise ConfigError for a name that is unknown."""
    if given not in ON_LATE:
        raise ConfigError(
            f"`on_late` takes {' or '.join(map(repr, ON_LATE))}; got {given!r}", code="invalid-on-late"
        )
    return given


def parse_lateness(given: str | float) -> float:
    """Return how late events may be, in seconds; it is given as "10m", "1h", "90s", "7d", or as a number."""
    return _parse_span(given, "late", "0s, 10m, 1h or 7d, or a number in the unit of the stream")


def parse_lead(given: str | float) -> float | str:
    """Return how far ahead events may be dated, in seconds, or "off"."""
    if str(given).strip().lower() == OFF:
        return OFF
    return _parse_span(given, "max_ahead", "10m, 1h or 7d, a number in the unit of the stream, or off")


def _parse_span(given: str | float, name: str, accepted: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", str(given).strip().lower())
    unit = SECONDS_PER_UNIT.get(match[2] or "s") if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"`{name}` takes a time such as {accepted}; got '{given}'",
            code=f"invalid-{name.replace('_', '-')}",
        )
    return float(match[1]) * unit
