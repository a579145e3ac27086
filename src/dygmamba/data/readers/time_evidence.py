"""How the times of a column are written: numbers of which unit, or dates in which order.

Dates like 03/04/2024 are ambiguous one by one, and so is the unit of a number: all values of a column decide.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.choices import TIME_UNITS
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.times import EPOCH_RANGE
from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed
from dygmamba.data.readers.times import (
    TICKS_PER_SECOND,
    DateParser,
    FormatParser,
    NumberTimeParser,
    TimeParser,
    parse_formatted_dates,
)
from dygmamba.data.readers.values import (
    PLAIN_NUMBERS,
    cast_each,
    is_real_type,
    is_text_type,
    strip_whitespace,
    try_cast,
)

COMPACT_FORMATS = {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}  # number of digits: a date without separators
NON_FINITE_WORDS = ("nan", "inf", "-inf", "infinity", "-infinity")
MONTHS = 12
# Arrow's regular expressions have no back references: whether both separators are the same is checked afterwards
NUMERIC_DATE_PARTS = r"^(?P<one>\d{1,2})(?P<mark>[-/.])(?P<two>\d{1,2})(?P<again>[-/.])\d{4}"
NUMERIC_DATE = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2\d{4}(.*)", re.DOTALL)
# lower and upper end of `EPOCH_RANGE` in each unit
UNIT_BOUNDS = [np.array([[bound * ticks] for ticks in TICKS_PER_SECOND.values()]) for bound in EPOCH_RANGE]


@dataclass(slots=True)
class TimeEvidence:
    """Evidence of how the times of a column are written, from the values seen so far."""

    kind: pa.DataType | None = None
    values: int = 0  # that are not empty
    numbers: int = 0  # of these, numbers
    starts_with_number: bool = False
    dates: int = 0  # like 31/12/2024 or 12/31/2024
    examples: dict[str, str] = field(default_factory=dict)  # dates by what they show: dmy, mdy, either, any
    finite: int = 0  # numbers that are finite
    below: np.ndarray = field(default_factory=lambda: np.zeros(len(TICKS_PER_SECOND), np.int64))
    above: np.ndarray = field(default_factory=lambda: np.zeros(len(TICKS_PER_SECOND), np.int64))
    is_whole: bool = True
    compact: str | None = None  # the format of `COMPACT_FORMATS` that all numbers have; "" if there is none

    def add(self, array: pa.Array) -> None:
        """Look at more values."""
        self.kind = self.kind or array.type
        if is_text_type(array.type):
            text = strip_whitespace(array).drop_null()
            text = text.filter(pc.not_equal(text, ""))
            self._add_text(text)
        elif pa.types.is_integer(array.type) or is_real_type(array.type):
            self.is_whole &= pa.types.is_integer(array.type)
            numbers = array.drop_null()
            self._add_numbers(numbers.cast(pa.float64(), safe=False), numbers)

    def add_parsed(self, array: pa.Array, parser: "TimeParser", parsed: Parsed) -> None:
        """Look at more values that were parsed already: where none is bad, that says nearly all."""
        is_fraction = is_text_type(array.type) and self.is_whole and parser_ticks(parser) > 1
        if (
            parsed.bad.any()
            or (isinstance(parser, DateParser) and parser.order != "ymd")
            or (is_fraction and pc.any(pc.match_substring(array, ".")).as_py())
        ):
            self.add(array)
            return
        self.values += len(array)
        if isinstance(parser, NumberTimeParser):
            self.numbers += len(array)
            self._count_units(parsed.values * max(parser_ticks(parser), 1))
        elif isinstance(parser, FormatParser):
            self.numbers += len(array)

    def _add_text(self, text: pa.Array) -> None:
        if not len(text):
            return
        floats = try_cast(text, pa.float64())
        if floats is None:
            is_number = pc.match_substring_regex(text, PLAIN_NUMBERS)
            words = pc.is_in(pc.utf8_lower(text), value_set=pa.array(NON_FINITE_WORDS))
            starts_with_number = is_number[0].as_py() or words[0].as_py()
            self._add_dates(text.filter(pc.invert(pc.or_(is_number, words))))
            self.numbers += pc.sum(words).as_py()
            numbers = text.filter(is_number)
            floats = cast_each(numbers, pa.float64())[0]
        else:
            starts_with_number, numbers = True, text
        self.starts_with_number |= starts_with_number and not self.values
        self.values += len(text)
        if self.is_whole and len(numbers) and try_cast(numbers, pa.int64()) is None:
            self.is_whole = bool(pc.all(pc.match_substring_regex(numbers, r"^[+-]*\d+$")).as_py())
        self._add_numbers(floats, numbers)

    def _add_numbers(self, floats: pa.Array, written: pa.Array) -> None:
        self.numbers += len(written)
        self._count_units(floats.to_numpy(zero_copy_only=False))
        if not len(written) or self.compact == "" or is_real_type(written.type):
            return
        first = str(written[0])
        compact = COMPACT_FORMATS.get(len(first)) if first[:2] in ("19", "20") else None
        compact = self.compact or compact or ""
        is_dated = compact and not parse_formatted_dates(strip_whitespace(written), compact)[1].any()
        self.compact = compact if is_dated and self.is_whole else ""

    def _count_units(self, numbers: np.ndarray) -> None:
        numbers = numbers[np.isfinite(numbers)]
        self.finite += len(numbers)
        below, above = _count_beyond_epochs(numbers)
        self.below += below
        self.above += above

    def _add_dates(self, text: pa.Array) -> None:
        """Count dates with a day and a month before the year, and keep the first that shows an order."""
        parts = pc.extract_regex(text, NUMERIC_DATE_PARTS)
        is_date = pc.equal(pc.struct_field(parts, "mark"), pc.struct_field(parts, "again"))
        text, parts = text.filter(is_date), parts.filter(is_date)  # neither has rows where that is null
        self.dates += len(text)
        if not len(text):
            return
        one, two = (
            pc.struct_field(parts, k).cast(pa.int64()).to_numpy(zero_copy_only=False) > MONTHS
            for k in ("one", "two")
        )
        shown = {"dmy": one & ~two, "mdy": ~one & two, "either": ~one & ~two, "any": one | ~one}
        for what, rows in shown.items():
            if rows.any():
                self.examples.setdefault(what, text[int(rows.argmax())].as_py())

    def choose(
        self,
        unit: str,
        location: ColumnLocation,
        *,
        time_format: str | None = None,
        order: str = "",
        guess: bool = False,
    ) -> TimeParser:
        """Choose how to parse the column.

        Args:
            unit: one of `TIME_UNITS`, for numbers.
            location: for error messages.
            time_format: strptime format of dates; if given, the values do not matter.
            order: dmy or mdy, used where dates are ambiguous.
            guess: treat numbers that would be dates in `EPOCH_RANGE` as seconds, ms, us or ns since 1970.
        """
        if time_format is not None:
            if unit not in ("auto", "plain"):
                raise ConfigError(
                    "`time_format` is for date strings, `time_unit` for numbers; give only one of them",
                    code="conflicting-time-options",
                )
            return FormatParser(time_format)
        is_text = self.kind is not None and is_text_type(self.kind)
        # the majority decides, and at a tie the first value
        is_dates = self.kind is not None and pa.types.is_temporal(self.kind)
        is_dates = is_dates or (is_text and 2 * self.numbers < self.values + (not self.starts_with_number))
        is_dates = is_dates and (not is_text or self.values > 0)
        if is_dates and unit not in ("auto", "plain"):
            raise ConfigError(
                f"column {location.column!r} of {location.file} holds dates; leave out `time_unit`",
                code="conflicting-time-options",
            )
        if is_dates:
            return DateParser(self._choose_date_order(location, order) if is_text else "ymd")
        if not guess or unit != "auto":
            return NumberTimeParser(unit)
        if self.compact:
            return FormatParser(self.compact, guessed=True)
        detected = _choose_unit(self.finite, self.below, self.above, self.is_whole)
        return NumberTimeParser(unit) if detected is None else NumberTimeParser(detected, guessed=True)

    def _choose_date_order(self, location: ColumnLocation, fallback: str) -> str:
        if 2 * self.dates <= self.values:
            return "ymd"
        day_first, month_first = (self.examples.get(order) for order in ("dmy", "mdy"))
        if (day_first is None) != (month_first is None):
            return "mdy" if day_first is None else "dmy"
        example = self.examples.get("either", self.examples["any"])
        if day_first is None and example.lstrip("0123456789").startswith("."):
            return "dmy"  # with points as separators the day comes first
        if fallback:
            return fallback
        if day_first and month_first:
            raise FileError(
                f"{location.file}: column {location.column!r} has dates with the day first ({day_first[:40]!r}) and "
                f"with the month first ({month_first[:40]!r}); write them alike, best as 2024-01-31",
                code="mixed-date-order",
            )
        day, month = (suggest_time_format(example, order) for order in ("dmy", "mdy"))
        raise FileError(
            f"{location.file}: column {location.column!r} has dates like {example[:40]!r}, which may begin with the "
            f"day or the month; say which with `time_format='{day}'` or `time_format='{month}'`",
            code="ambiguous-date-order",
        )


def suggest_time_format(text: str, order: str) -> str:
    """Suggest a strptime format for a date of this order, for a message."""
    match = NUMERIC_DATE.fullmatch(text)
    if match is None:
        return "%d.%m.%Y"
    days = match[2].join(("%d", "%m", "%Y") if order == "dmy" else ("%m", "%d", "%Y"))
    time = re.fullmatch(r"([ T])\d+:\d+(:\d+)?(\.\d+)?( ?[AaPp][Mm])?", match[4])
    if time is None:
        return days
    hours = "%I:%M" if time[4] else "%H:%M"
    tail = (":%S" if time[2] else "") + (".%f" if time[3] else "")
    return f"{days}{time[1]}{hours}{tail}" + (time[4] or "")[:-2] + ("%p" if time[4] else "")


def parser_ticks(parser: TimeParser) -> int:
    """Return ticks per second of a parser of numbers; 0 for numbers that are no ticks, and for dates."""
    return TIME_UNITS[parser.unit] if isinstance(parser, NumberTimeParser) else 0


def choose_time_parser(array: pa.Array, unit: str, location: ColumnLocation, **options: Any) -> TimeParser:
    """Choose how to parse a column by all its values; the arguments are those of `TimeEvidence.choose`."""
    evidence = TimeEvidence()
    if options.get("time_format") is None:
        evidence.add(array)
    return evidence.choose(unit, location, **options)


def detect_time_unit(values: Sequence[float] | np.ndarray, whole: bool) -> str | None:
    """Detect the unit in which the middle 90 % of these numbers are in `EPOCH_RANGE`; None if there is none.

    Only whole numbers can be milliseconds or finer.
    """
    return _choose_unit(len(values), *_count_beyond_epochs(np.asarray(values, np.float64)), whole)


def _count_beyond_epochs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the numbers below and above `EPOCH_RANGE` in each unit."""
    return (values < UNIT_BOUNDS[0]).sum(axis=1), (values >= UNIT_BOUNDS[1]).sum(axis=1)


def _choose_unit(count: int, below: np.ndarray, above: np.ndarray, whole: bool) -> str | None:
    for k, (unit, ticks) in enumerate(TICKS_PER_SECOND.items()):
        if count and max(below[k], above[k]) <= count // 20 and (whole or ticks == 1):
            return unit
    return None
