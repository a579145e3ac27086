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
class TimeRules:
    """Rules for the times of events: which are late, which are dated ahead, and which of them are set aside.

    The watermark is the latest time of any event that was not ahead of the clock when it came: an event dated ahead
    would make all later ones late. Dates are compared with the clock. While the clock is so far behind the watermark
    that it says nothing about this stream, no event is ahead. Plain numbers are compared with the watermark.

    Attributes:
        late: Tolerated delay behind the watermark, in seconds, or units of a stream whose times are plain numbers.
        on_late: What happens to an event that is later.
        max_ahead: How far ahead an event may be; None: no limit.
        is_dated: Whether times are seconds since 1970.
    """

    late: float = 0.0
    on_late: str = "refuse"
    max_ahead: float | None = None
    is_dated: bool = False

    def __post_init__(self) -> None:
        check_on_late(self.on_late)

    def judge(self, index: int, time: float, watermark: float, now: float) -> Verdict | None:
        """Return why an event is not accepted; None if its time is fine."""
        if time < watermark - self.late:
            return Verdict(index, "late", None, self.describe_late(time, watermark))
        if self.is_ahead(time, watermark, now):
            return Verdict(index, "ahead", None, self._describe_ahead(time, watermark, now))
        return None

    def keeps(self, verdict: Verdict) -> bool:
        """Return whether an event that was not accepted is set aside."""
        # one that is ahead always is: its time may come
        return verdict.status == "ahead" or self.on_late == "set-aside"

    def is_ahead(self, time: float, watermark: float, now: float) -> bool:
        if self.max_ahead is None:
            return False
        if not self.is_dated:
            return time > watermark + self.max_ahead
        return watermark <= now + self.max_ahead < time

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
        if self.is_dated and self.max_ahead is not None and watermark <= now + self.max_ahead and time > now:
            return now - self.max_ahead
        return time

    def describe_late(self, time: float, watermark: float) -> str:
        """Say why an event is late."""
        shown, last, span = f"{time:.12g}", f"{watermark:.12g}", f"{self.late:g}"
        if self.is_dated:
            shown, last, span = format_iso_time(time), format_iso_time(watermark), format_duration(self.late)
        tolerance = f"more than {span} " if self.late else ""
        return f"its time {shown} is {tolerance}before the latest one, {last}"

    def _describe_ahead(self, time: float, watermark: float, now: float) -> str:
        assert self.max_ahead is not None
        if self.is_dated:
            shown, span = format_iso_time(time), format_duration(self.max_ahead)
            return f"its time {shown} is more than {span} ahead of the clock, {format_iso_time(now)}"
        return f"its time {time:.12g} is more than {self.max_ahead:g} after the latest one, {watermark:.12g}"


def choose_max_ahead(given: float | str | None, is_dated: bool) -> float | None:
    """Return how far ahead events may be, given what `parse_lead` returns; by default dates have a limit, numbers none.

    Gaps of plain numbers may have any length, so no limit could be chosen that accepts every stream.
    """
    if given is None:
        return DATED_LEAD if is_dated else None
    return None if given == OFF else float(given)


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
