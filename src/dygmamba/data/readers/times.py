"""Dates in the usual spellings, rewritten into the one that Arrow reads, whole columns at a time.

Columns of times: numbers, dates in the usual spellings, dates in a format that is given.

Which clock reads a column of times: as is said, by its type, or by what its first values look like.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers.header import NUMBER_PATTERN, detect_time_unit
from dygmamba.data.readers.options import TIME_UNITS
from dygmamba.data.readers.values import (
    ColumnLocation,
    find_first_failure,
    is_real_type,
    is_text_type,
    quote_value,
    strip_whitespace,
    try_cast,
)

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


DAY_SECONDS = 86_400
DATE_ORDERS = {  # what a date begins with, and the same as year-month-day
    "ymd": (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    "dmy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\2-\1"),
    "mdy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\1-\2"),
}
DATE_FIXES = (  # one-digit months, days and hours; what stands between day and hour, before a zone, before a fraction
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d\d)-(\d)(\D|$)", r"\1-0\2\3"),
    (r"^(\d{4}-\d\d-\d\d)(?:, *| +|T)(\d)", r"\1 \2"),
    (r"^(\d{4}-\d\d-\d\d) (\d):", r"\1 0\2:"),
    (r"(:\d\d),(\d)", r"\1.\2"),
    (r" ?(UTC|GMT|Z)$", "Z"),
    (r" ([+-]\d\d:?\d\d)$", r"\1"),
)
ZONE_PATTERN = r":\d.*(Z|[+-]\d\d:?(\d\d)?)$"
AM_PM_PATTERN = r"(?i) ?([ap])\.?m\.?$"
NUMERIC_DATE = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2\d{4}(.*)", re.DOTALL)
FORMAT_FIELDS = {  # what a plain format is made of
    "Y": r"(?P<Y>\d{4})",
    **{part: rf"(?P<{part}>\d{{1,2}})" for part in "mdHMS"},
}


def parse_timestamps(text: pa.Array, zone: str | None) -> np.ndarray | None:
    """Seconds since 1970; nanoseconds only where microseconds do not do, for they reach 1677..2262 only."""
    for unit in ("us", "ns"):
        found = try_cast(text, pa.timestamp(unit, zone))
        if found is not None:
            return ticks_to_seconds(found.cast(pa.int64()), TIME_UNITS[unit])
    return None


def ticks_to_seconds(ticks: pa.Array, per_second: int) -> np.ndarray:
    """Whole seconds and the rest apart: 64-bit ticks would not fit a float64."""
    whole, rest = np.divmod(ticks.to_numpy(zero_copy_only=False), per_second)
    return whole + rest / per_second


def normalize_dates(text: pa.Array, order: str) -> pa.Array:
    """The dates as 2024-05-31 12:00:00.5+02:00, as far as they are dates of that order."""
    for pattern, into in (DATE_ORDERS[order], *DATE_FIXES):
        text = pc.replace_substring_regex(text, pattern, into)
    return text


def split_am_pm(text: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """The text without AM and PM, and what they are: 0, 1, or -1 where there is neither; None where there are none."""
    marked = pc.match_substring_regex(text, AM_PM_PATTERN)
    if not pc.any(marked).as_py():
        return text, None
    late = pc.match_substring_regex(text, r"(?i)p\.?m\.?$").to_numpy(zero_copy_only=False)
    half = np.where(marked.to_numpy(zero_copy_only=False), late.astype(np.int64), -1)
    return pc.replace_substring_regex(text, AM_PM_PATTERN, ""), half


def detect_date_order(texts: list[str]) -> tuple[str | None, str]:
    """In which order most of these dates are written, None where they leave it open; and one of those that do."""
    cut = [found for text in texts if (found := NUMERIC_DATE.fullmatch(text))]
    if 2 * len(cut) <= len(texts):
        return "ymd", ""
    large = {(int(found[1]) > 12, int(found[3]) > 12) for found in cut}
    day_first, month_first = (True, False) in large, (False, True) in large
    if day_first != month_first:
        return ("dmy" if day_first else "mdy"), ""
    open_one = next((found for found in cut if int(found[1]) <= 12 and int(found[3]) <= 12), cut[0])
    return (None if day_first or open_one[2] != "." else "dmy"), open_one[0]


def suggest_time_format(text: str, order: str) -> str:
    """The format that a date of this order seems to have."""
    found = NUMERIC_DATE.fullmatch(text)
    if found is None:
        return "%d.%m.%Y"
    days = found[2].join(("%d", "%m", "%Y") if order == "dmy" else ("%m", "%d", "%Y"))
    clock = re.fullmatch(r"([ T])\d+:\d+(:\d+)?(\.\d+)?( ?[AaPp][Mm])?", found[4])
    if clock is None:
        return days
    hours = "%I:%M" if clock[4] else "%H:%M"
    tail = (":%S" if clock[2] else "") + (".%f" if clock[3] else "")
    return f"{days}{clock[1]}{hours}{tail}" + (clock[4] or "")[:-2] + ("%p" if clock[4] else "")


def parse_formatted_dates(text: pa.Array, form: str) -> np.ndarray | None:
    """Seconds since 1970 of dates in one format, None where one is not; a plain one is read by a pattern."""
    pattern = build_format_pattern(form)
    if pattern is not None:
        if not pc.all(pc.match_substring_regex(text, pattern), min_count=0).as_py():
            return None
        order = re.findall(r"\?P<(\w)>", pattern)
        iso = pc.replace_substring_regex(text, pattern, _iso_replacement(order))
        return parse_timestamps(normalize_dates(iso, "ymd"), None)
    words = text.dictionary_encode()
    try:
        found = [_microseconds(word, form) for word in words.dictionary.to_pylist()]
    except (ValueError, OverflowError):
        return None
    codes = words.indices.to_numpy()
    return ticks_to_seconds(pa.array(np.array(found, np.int64)[codes]), TIME_UNITS["us"])


def build_format_pattern(form: str) -> str | None:
    """A pattern of a format of years, months, days, hours, minutes and seconds in digits; None of any other."""
    pieces = re.split(r"%([A-Za-z%])", form)
    names = pieces[1::2]
    if not {"Y", "m", "d"} <= set(names) <= set(FORMAT_FIELDS) or len(set(names)) < len(names):
        return None
    if ("M" in names and "H" not in names) or ("S" in names and "M" not in names):
        return None
    tight = "" in pieces[2:-1:2]  # digits next to digits
    parts = {name: part.replace("{1,2}", "{2}") if tight else part for name, part in FORMAT_FIELDS.items()}
    return "^" + "".join(parts[p] if k % 2 else re.escape(p) for k, p in enumerate(pieces)) + "$"


def _iso_replacement(order: list[str]) -> str:
    at = {name: rf"\{order.index(name) + 1}" for name in order}
    day = f"{at['Y']}-{at['m']}-{at['d']}"
    return f"{day} " + ":".join(at.get(name, "00") for name in "HMS") if "H" in at else day


def _microseconds(word: str, form: str) -> int:
    moment = datetime.strptime(word, form)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


MISSING_TIME_HINT = "remove the row or give it a time"
MAX_EXACT_INTEGER = 2.0**53  # above it not every integer is a float64


@dataclass(frozen=True, slots=True)
class NumberTimeParser:
    """Times that are numbers: kept as they are, or ticks since 1970 turned into seconds."""

    unit: str
    guessed: bool = False

    @property
    def epoch(self) -> bool:
        """Whether the seconds count from 1970."""
        return self.unit not in ("auto", "plain")

    def words(self) -> dict[str, Any]:
        """What was understood of the times."""
        return {"clock": f"{self.unit} since 1970" if self.epoch else "numbers", "guessed": self.guessed}

    def seconds(self, array: pa.Array, place: ColumnLocation) -> np.ndarray:
        """The times as float64; whole ticks are divided exactly, so a microsecond is never lost."""
        _require_no_nulls(array, place)
        ticks, written = TIME_UNITS[self.unit], array
        if is_text_type(array.type):
            written = strip_whitespace(array)
            found = try_cast(written, *((pa.int64(), pa.float64()) if ticks > 1 else (pa.float64(),)))
            if found is None:
                row = find_first_failure(written, lambda part: try_cast(part, pa.float64()) is not None)
                raise _bad_time_error(place, written, row, "not a number", "write all times alike")
            array = found
        elif not (pa.types.is_integer(array.type) or is_real_type(array.type)):
            raise place.wrong(f"is {array.type}, not a time", "give numbers or dates")
        if ticks > 1 and pa.types.is_integer(array.type):
            return ticks_to_seconds(array.cast(pa.int64()), ticks)
        times = _require_finite(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), place)
        vague = np.abs(times) > MAX_EXACT_INTEGER
        if ticks == 0 and not is_real_type(written.type) and vague.any():
            row = int(vague.argmax())
            raise place.error(
                row, f"is {written[row]}, too large to be exact", "give `time_unit='ns'` or `time_unit='us'`"
            )
        return times / max(ticks, 1)


@dataclass(frozen=True, slots=True)
class DateParser:
    """Times that are dates: text of one order of day, month and year, or Arrow dates; without a zone they are UTC."""

    order: str = "ymd"
    zones: set[str] = field(default_factory=set, compare=False)  # what was met: given, none
    epoch = True

    def words(self) -> dict[str, Any]:
        """What was understood of the times."""
        zone = "mixed" if len(self.zones) > 1 else next(iter(self.zones), "none")
        return {"clock": "dates", "order": self.order, "zone": zone}

    def seconds(self, array: pa.Array, place: ColumnLocation) -> np.ndarray:
        """Seconds since 1970-01-01 UTC as float64, exact to the microsecond."""
        _require_no_nulls(array, place)
        if is_text_type(array.type):
            return self._from_text(strip_whitespace(array), place)
        if pa.types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        elif not pa.types.is_timestamp(array.type):
            raise place.wrong(f"is {array.type}, not a date", "give numbers or dates")
        self.zones.add("none" if array.type.tz is None else "given")
        return ticks_to_seconds(array.cast(pa.int64()), TIME_UNITS[array.type.unit])

    def _from_text(self, written: pa.Array, place: ColumnLocation) -> np.ndarray:
        text = written if self.order == "ymd" else normalize_dates(written, self.order)
        for zone, met in (
            (None, "none"),
            ("UTC", "given"),
        ):  # nearly always all values have a zone, or none has
            found = parse_timestamps(text, zone)
            if found is not None:
                self.zones.add(met)
                return found
        bare, half = split_am_pm(normalize_dates(written, self.order))
        text = normalize_dates(bare, "ymd")
        zoned = pc.match_substring_regex(text, ZONE_PATTERN)
        found = np.empty(len(text), np.float64)
        for zone, met, rows in (("UTC", "given", zoned), (None, "none", pc.invert(zoned))):
            part, where = text.filter(rows), np.flatnonzero(rows.to_numpy(zero_copy_only=False))
            some = parse_timestamps(part, zone)
            if some is None:
                row = int(
                    where[find_first_failure(part, lambda few, z=zone: parse_timestamps(few, z) is not None)]
                )
                do = "write dates like 2024-05-31T12:00:00Z, or give `time_format`"
                raise _bad_time_error(place, written, row, "not a date", do)
            found[where] = some
            self.zones.update({met} if len(where) else ())
        return found if half is None else _apply_am_pm(found, half, place, written)


@dataclass(frozen=True, slots=True)
class FormatParser:
    """Times that are dates in one given format; without a zone in it they are UTC."""

    form: str
    guessed: bool = False
    epoch = True

    def words(self) -> dict[str, Any]:
        """What was understood of the times."""
        zone = "given" if "%z" in self.form else "none"
        return {"clock": "dates", "time_format": self.form, "zone": zone, "guessed": self.guessed}

    def seconds(self, array: pa.Array, place: ColumnLocation) -> np.ndarray:
        """Seconds since 1970-01-01 UTC as float64."""
        _require_no_nulls(array, place)
        if not (is_text_type(array.type) or pa.types.is_integer(array.type)):
            raise place.wrong(f"is {array.type}, no text", "leave out `time_format`")
        text = strip_whitespace(array)
        found = parse_formatted_dates(text, self.form)
        if found is None:
            row = find_first_failure(text, lambda part: parse_formatted_dates(part, self.form) is not None)
            raise _bad_time_error(
                place, text, row, f"not a date like {self.form}", "mend it, or check `time_format`"
            )
        return found


TimeParser = NumberTimeParser | DateParser | FormatParser


def _apply_am_pm(found: np.ndarray, half: np.ndarray, place: ColumnLocation, written: pa.Array) -> np.ndarray:
    """Twelve hours more in the afternoon; 12 AM is midnight."""
    hour = np.floor(found % DAY_SECONDS / 3600)
    wrong = (half >= 0) & ((hour < 1) | (hour > 12))
    if wrong.any():
        raise _bad_time_error(place, written, int(wrong.argmax()), "no hour of half a day", "mend it")
    return (
        found + DAY_SECONDS / 2 * ((half == 1) & (hour < 12)) - DAY_SECONDS / 2 * ((half == 0) & (hour == 12))
    )


def _require_finite(times: np.ndarray, place: ColumnLocation) -> np.ndarray:
    bad = ~np.isfinite(times)
    if bad.any():
        row = int(bad.argmax())
        raise place.error(row, f"is {times[row]}, not a finite time", MISSING_TIME_HINT)
    return times


def _bad_time_error(place: ColumnLocation, text: pa.Array, row: int, what: str, do: str) -> FileError:
    if not text[row].as_py():
        return place.error(row, "is empty", MISSING_TIME_HINT)
    return place.error(row, f"is {quote_value(text, row)}, {what}", do)


def _require_no_nulls(array: pa.Array, place: ColumnLocation) -> None:
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise place.error(row, "is empty", MISSING_TIME_HINT)


TIME_SAMPLE = 100_000  # values that tell how times are written
NON_FINITE_WORDS = {"nan", "inf", "-inf", "infinity", "-infinity"}
COMPACT_FORMATS = {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}  # digits: a date without separators


def choose_time_parser(
    array: pa.Array,
    unit: str,
    place: ColumnLocation,
    *,
    form: str | None = None,
    order: str = "",
    guess: bool = False,
) -> TimeParser:
    """How to read a time column: as is said, by its type, or by what most of its first values look like.

    With `guess`, numbers of the right size are times since 1970; `order` is that of day and month where dates leave it
    open.
    """
    if form is not None:
        if unit not in ("auto", "plain"):
            raise ConfigError(
                "a format is of dates, a unit of numbers; leave out `time_unit` or `time_format`"
            )
        return FormatParser(form)
    texts = (
        [text for text in strip_whitespace(array[:TIME_SAMPLE]).drop_null().to_pylist() if text]
        if _is_text_or_integer(array)
        else []
    )
    if is_text_type(array.type):
        looks = [
            NUMBER_PATTERN.fullmatch(text) is not None or text.lower() in NON_FINITE_WORDS
            for text in texts[:1000]
        ]
        dates = bool(looks) and 2 * sum(looks) < len(looks) + (not looks[0])
    else:
        dates = pa.types.is_temporal(array.type)
    if dates and unit not in ("auto", "plain"):
        raise ConfigError(f"column {place.column!r} of {place.file} holds dates; leave out `time_unit`")
    if dates:
        return DateParser(_require_date_order(texts, place, order) if is_text_type(array.type) else "ymd")
    return _choose_number_parser(array, texts, unit) if guess else NumberTimeParser(unit)


def _is_text_or_integer(array: pa.Array) -> bool:
    return is_text_type(array.type) or pa.types.is_integer(array.type)


def _require_date_order(texts: list[str], place: ColumnLocation, known: str) -> str:
    order, example = detect_date_order(texts)
    if order is not None or known:
        return order or known
    day, month = (suggest_time_format(example, way) for way in ("dmy", "mdy"))
    raise FileError(
        f"{place.file}: column {place.column!r} has dates like {example[:40]!r}, which may begin with the "
        f"day or the month; say which with `time_format='{day}'` or `time_format='{month}'`"
    )


def _choose_number_parser(array: pa.Array, texts: list[str], unit: str) -> TimeParser:
    """Numbers, whose unit shows in their size unless it is given."""
    if unit != "auto":
        return NumberTimeParser(unit)
    if _is_text_or_integer(array):
        known = [text for text in texts if NUMBER_PATTERN.fullmatch(text)]
        values, whole = [float(text) for text in known], all(text.lstrip("+-").isdigit() for text in known)
        form = COMPACT_FORMATS.get(len(known[0]) if known else 0)
        if (
            form is not None
            and whole
            and parse_formatted_dates(pa.array(known), form) is not None
            and known[0][:2] in ("19", "20")
        ):
            return FormatParser(form, guessed=True)
    elif is_real_type(array.type):
        values, whole = (
            [v for v in array[:TIME_SAMPLE].cast(pa.float64(), safe=False).to_pylist() if v is not None],
            False,
        )
    else:
        values, whole = [], False
    found = detect_time_unit([value for value in values if np.isfinite(value)], whole)
    return NumberTimeParser(unit) if found is None else NumberTimeParser(found, guessed=True)
