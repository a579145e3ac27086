"""Columns of timestamps: numbers, dates in the usual spellings, dates in a given format.

`TimeEvidence` picks a parser by the options, the column's type or its values; the parser turns whole columns into
float64 seconds. Dates are rewritten by regular expressions into the spelling that Arrow parses.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.choices import TIME_UNITS
from dygmamba.data.events.times import to_utc_date
from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed
from dygmamba.data.readers.values import (
    cast_each,
    find_nulls,
    is_real_type,
    is_text_type,
    quote_value,
    strip_whitespace,
    try_cast,
)

TICKS_PER_SECOND = {unit: ticks for unit, ticks in TIME_UNITS.items() if ticks}
DAY_SECONDS = 86_400
DATE_ORDERS = {  # order: how a date begins, and its replacement as year-month-day
    "ymd": (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    "dmy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\2-\1"),
    "mdy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\1-\2"),
}
DATE_FIXES = (
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),  # one-digit month
    (r"^(\d{4}-\d\d)-(\d)(\D|$)", r"\1-0\2\3"),  # one-digit day
    (r"^(\d{4}-\d\d-\d\d)(?:, *| +|T)(\d)", r"\1 \2"),  # one blank between date and time
    (r"^(\d{4}-\d\d-\d\d) (\d):", r"\1 0\2:"),  # one-digit hour
    (r"(:\d\d),(\d)", r"\1.\2"),  # comma before the fraction
    (r" ?(UTC|GMT|Z)$", "Z"),
    (r" ([+-]\d\d:?\d\d)$", r"\1"),  # blank before the zone
)
ZONE_PATTERN = r":\d.*(Z|[+-]\d\d:?(\d\d)?)$"
AM_PM_PATTERN = r"(?i) ?([ap])\.?m\.?$"
FORMAT_FIELDS = {  # the fields of a format that a regular expression can parse
    "Y": r"(?P<Y>\d{4})",
    **{part: rf"(?P<{part}>\d{{1,2}})" for part in "mdHMS"},
}
MAX_EXACT_INTEGER = 2.0**53  # above it not every integer is a float64
MISSING_TIME_HINT = "remove the row or give it a time"


def parse_timestamps(text: pa.Array, zone: str | None) -> np.ndarray | None:
    """Parse ISO dates as seconds since 1970; None if one of them is not a date."""
    # nanoseconds cover 1677 to 2262 only, so they are the second choice
    for unit in ("us", "ns"):
        timestamps = try_cast(text, pa.timestamp(unit, zone))
        if timestamps is not None:
            return ticks_to_seconds(timestamps.cast(pa.int64()), TIME_UNITS[unit])
    return None


def ticks_to_seconds(ticks: pa.Array, per_second: int) -> np.ndarray:
    """Convert integer ticks to float64 seconds.

    Whole seconds and the fraction are converted separately, because a float64 cannot hold every 64-bit integer.
    """
    whole, rest = np.divmod(ticks.to_numpy(zero_copy_only=False), per_second)
    return whole + rest / per_second


def format_iso_time(seconds: float) -> str:
    """Format seconds since 1970 as an ISO date that parses back to the same microsecond.

    Seconds outside the calendar stay a number.
    """
    try:
        return to_utc_date(seconds).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return f"{seconds:.17g}"


def normalize_dates(text: pa.Array, order: str) -> pa.Array:
    """Rewrite dates of this order like 2024-05-31 12:00:00.5+02:00; other text stays as it is."""
    for pattern, replacement in (DATE_ORDERS[order], *DATE_FIXES):
        text = pc.replace_substring_regex(text, pattern, replacement)
    return text


def split_am_pm(text: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Remove AM and PM.

    Returns:
        The text without them; and for each value 0 (AM), 1 (PM) or -1 (neither), or None if no value has AM or PM.
    """
    marked = pc.match_substring_regex(text, AM_PM_PATTERN)
    if not pc.any(marked).as_py():
        return text, None
    is_pm = pc.match_substring_regex(text, r"(?i)p\.?m\.?$").to_numpy(zero_copy_only=False)
    am_pm = np.where(marked.to_numpy(zero_copy_only=False), is_pm.astype(np.int64), -1)
    return pc.replace_substring_regex(text, AM_PM_PATTERN, ""), am_pm


def parse_each_timestamp(text: pa.Array, zone: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Parse ISO dates as seconds since 1970; return them, and a mask of those that are no dates."""
    whole = parse_timestamps(text, zone)
    if whole is not None:
        return whole, np.zeros(len(text), bool)
    seconds, bad = np.zeros(len(text)), np.ones(len(text), bool)
    for unit in ("us", "ns"):
        rows = np.flatnonzero(bad)
        timestamps, failed = cast_each(text.take(pa.array(rows)), pa.timestamp(unit, zone))
        ticks = pc.fill_null(timestamps.cast(pa.int64()), 0)
        seconds[rows], bad[rows] = ticks_to_seconds(ticks, TIME_UNITS[unit]), failed
    return seconds, bad


def parse_formatted_dates(text: pa.Array, time_format: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse dates in one format as seconds since 1970; return them, and a mask of those that do not match it."""
    pattern = build_format_pattern(time_format)
    if pattern is not None:
        field_order = re.findall(r"\?P<(\w)>", pattern)
        iso = pc.replace_substring_regex(text, pattern, _iso_replacement(field_order))
        iso = pc.if_else(pc.match_substring_regex(text, pattern), iso, "")
        return parse_each_timestamp(normalize_dates(iso, "ymd"), None)
    # strptime is slow: parse each distinct date once
    distinct = text.dictionary_encode()
    words = distinct.dictionary.to_pylist()
    ticks, failed = np.zeros(len(words), np.int64), np.zeros(len(words), bool)
    for k, word in enumerate(words):
        try:
            ticks[k] = _parse_microseconds(word, time_format)
        except (ValueError, OverflowError):
            failed[k] = True
    codes = distinct.indices.to_numpy()
    return ticks_to_seconds(pa.array(ticks[codes]), TIME_UNITS["us"]), failed[codes]


def build_format_pattern(time_format: str) -> str | None:
    """Build a regular expression for a format of Y, m, d, H, M and S; None for any other format."""
    pieces = re.split(r"%([A-Za-z%])", time_format)
    names = pieces[1::2]
    if not {"Y", "m", "d"} <= set(names) <= set(FORMAT_FIELDS) or len(set(names)) < len(names):
        return None
    if ("M" in names and "H" not in names) or ("S" in names and "M" not in names):
        return None
    # fields without a separator between them, as in %Y%m%d, must have their full width
    adjacent = "" in pieces[2:-1:2]
    fields = {
        name: part.replace("{1,2}", "{2}") if adjacent else part for name, part in FORMAT_FIELDS.items()
    }
    return "^" + "".join(fields[p] if k % 2 else re.escape(p) for k, p in enumerate(pieces)) + "$"


def _iso_replacement(field_order: list[str]) -> str:
    group = {name: rf"\{field_order.index(name) + 1}" for name in field_order}
    day = f"{group['Y']}-{group['m']}-{group['d']}"
    return f"{day} " + ":".join(group.get(name, "00") for name in "HMS") if "H" in group else day


def _parse_microseconds(word: str, time_format: str) -> int:
    moment = datetime.strptime(word, time_format)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NumberTimeParser:
    """Timestamps that are numbers: kept as they are, or ticks since 1970 converted to seconds."""

    unit: str
    guessed: bool = False

    @property
    def is_unix_time(self) -> bool:
        """Whether the parsed seconds count from 1970."""
        return self.unit not in ("auto", "plain")

    def describe(self) -> dict[str, Any]:
        """Return how times were understood, as fields of `Origin`."""
        clock = f"{self.unit} since 1970" if self.is_unix_time else "numbers"
        return {"clock": clock, "guessed": self.guessed}

    def parse(self, array: pa.Array, location: ColumnLocation) -> Parsed:
        """Parse the times as float64; integer ticks are divided exactly, so that no microsecond is lost."""
        ticks, kind, written, unreadable = TIME_UNITS[self.unit], array.type, array, find_nulls(array)
        if is_text_type(array.type):
            written = strip_whitespace(array)
            targets = (pa.int64(), pa.float64()) if ticks > 1 else (pa.float64(),)
            numbers = try_cast(written, *targets)
            if numbers is None:
                _, failed = cast_each(written, pa.float64())
                unreadable = unreadable | failed
                numbers = try_cast(
                    pc.if_else(pa.array(unreadable), pa.scalar(None, written.type), written), *targets
                )
                assert numbers is not None
            array = numbers
        elif not (pa.types.is_integer(kind) or is_real_type(kind) or pa.types.is_null(kind)):
            raise location.bad_column(
                f"has type {kind}, not a time", "give numbers or dates", "column-not-times"
            )
        if ticks > 1 and pa.types.is_integer(array.type):
            times = ticks_to_seconds(pc.fill_null(array.cast(pa.int64()), 0), ticks)
            return Parsed(times, unreadable, partial(self._explain, written, times, unreadable))
        times = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        bad = ~np.isfinite(times)
        if ticks == 0 and not is_real_type(written.type):
            bad |= np.abs(times) > MAX_EXACT_INTEGER
        return Parsed(times / max(ticks, 1), bad, partial(self._explain, written, times, unreadable))

    @staticmethod
    def _explain(written: pa.Array, times: np.ndarray, unreadable: np.ndarray, row: int) -> tuple[str, str]:
        if unreadable[row]:
            return _explain_bad_time(written, row, "not a number", "write all times alike")
        if not np.isfinite(times[row]):
            return f"is {times[row]}, not a finite time", MISSING_TIME_HINT
        return (
            f"is {written[row]}, too large for an exact 64-bit float",
            "if it counts nanoseconds since 1970, give `time_unit='ns'` (or 'us' for microseconds)",
        )


@dataclass(frozen=True, slots=True)
class DateParser:
    """Timestamps that are dates: text in one order of day, month and year, or Arrow dates; UTC without a zone."""

    order: str = "ymd"
    zones: set[str] = field(default_factory=set, compare=False)  # kinds met so far: "given", "none"
    is_unix_time = True

    def describe(self) -> dict[str, Any]:
        zone = "mixed" if len(self.zones) > 1 else next(iter(self.zones), "none")
        return {"clock": "dates", "order": self.order, "zone": zone}

    def parse(self, array: pa.Array, location: ColumnLocation) -> Parsed:
        """Parse dates as seconds since 1970-01-01 UTC in float64, exact to the microsecond."""
        if is_text_type(array.type):
            return self._parse_text(pc.fill_null(strip_whitespace(array), ""))
        if pa.types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        elif not pa.types.is_timestamp(array.type):
            raise location.bad_column(
                f"has type {array.type}, not a date", "give numbers or dates", "column-not-times"
            )
        self.zones.add("none" if array.type.tz is None else "given")
        seconds = ticks_to_seconds(pc.fill_null(array.cast(pa.int64()), 0), TIME_UNITS[array.type.unit])
        return Parsed(seconds, find_nulls(array), lambda _: ("is empty", MISSING_TIME_HINT))

    def _parse_text(self, written: pa.Array) -> Parsed:
        def explain(row: int) -> tuple[str, str]:
            if wrong_hour[row]:
                problem, advice = "but an hour with AM or PM is 1 to 12", "correct it"
            else:
                problem, advice = "not a date", "write dates like 2024-05-31T12:00:00Z, or give `time_format`"
            return _explain_bad_time(written, row, problem, advice)

        text = written if self.order == "ymd" else normalize_dates(written, self.order)
        bad, wrong_hour = np.zeros(len(text), bool), np.zeros(len(text), bool)
        # nearly always all values have a zone or none has, in a spelling that Arrow parses directly
        for zone, kind in ((None, "none"), ("UTC", "given")):
            seconds = parse_timestamps(text, zone)
            if seconds is not None:
                self.zones.add(kind)
                return Parsed(seconds, bad, explain)
        bare, am_pm = split_am_pm(normalize_dates(written, self.order))
        text = normalize_dates(bare, "ymd")
        zoned = pc.match_substring_regex(text, ZONE_PATTERN)
        seconds = np.zeros(len(text), np.float64)
        for zone, kind, mask in (("UTC", "given", zoned), (None, "none", pc.invert(zoned))):
            rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            seconds[rows], bad[rows] = parse_each_timestamp(text.filter(mask), zone)
            self.zones.update({kind} if not bad[rows].all() else ())
        if am_pm is not None:
            seconds, wrong_hour = _apply_am_pm(seconds, np.where(bad, -1, am_pm))
        return Parsed(seconds, bad | wrong_hour, explain)


@dataclass(frozen=True, slots=True)
class FormatParser:
    """Timestamps that are dates in one strptime format; UTC without a zone in it."""

    time_format: str
    guessed: bool = False
    is_unix_time = True

    def describe(self) -> dict[str, Any]:
        zone = "given" if "%z" in self.time_format else "none"
        return {"clock": "dates", "time_format": self.time_format, "zone": zone, "guessed": self.guessed}

    def parse(self, array: pa.Array, location: ColumnLocation) -> Parsed:
        """Parse dates as seconds since 1970-01-01 UTC in float64."""
        if not (is_text_type(array.type) or pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            raise location.bad_column(
                f"has type {array.type}, not text", "leave out `time_format`", "option-not-applicable"
            )
        text = pc.fill_null(strip_whitespace(array), "")
        problem, advice = f"not a date like {self.time_format}", "correct it, or check `time_format`"
        seconds, bad = parse_formatted_dates(text, self.time_format)
        return Parsed(seconds, bad, lambda row: _explain_bad_time(text, row, problem, advice))


TimeParser = NumberTimeParser | DateParser | FormatParser


def _apply_am_pm(seconds: np.ndarray, am_pm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add twelve hours in the afternoon, 12 AM is midnight; and return a mask of hours that AM and PM do not have."""
    hour = np.floor(seconds % DAY_SECONDS / 3600)
    wrong = (am_pm >= 0) & ((hour < 1) | (hour > 12))
    return (
        seconds
        + DAY_SECONDS / 2 * ((am_pm == 1) & (hour < 12))
        - DAY_SECONDS / 2 * ((am_pm == 0) & (hour == 12)),
        wrong,
    )


def _explain_bad_time(text: pa.Array, row: int, problem: str, advice: str) -> tuple[str, str]:
    if not text[row].as_py():
        return "is empty", MISSING_TIME_HINT
    return f"is {quote_value(text, row)}, {problem}", advice
