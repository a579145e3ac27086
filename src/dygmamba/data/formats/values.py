"""Arrow columns as numbers and as times, with the row and the value in every complaint."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats.options import TIME_UNITS
from dygmamba.errors import ConfigError, FileError

MISSING_WORDS = pa.array(["", "na", "n/a", "nan", "null", "none"])
NUMERIC = "leave the column out or turn it into numbers"
NO_TIME = "remove the row or give it a time"
EXACT = 2.0**53  # above it not every integer is a float64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of values stands in its file; data rows are counted from 1, after any header."""

    file: str
    column: str
    first_row: int

    def error(self, row: int, got: str, do: str) -> FileError:
        """The complaint about one value."""
        return FileError(
            f"{self.file}: data row {self.first_row + row + 1}, column {self.column!r} {got}; {do}"
        )


def numbers(array: pa.Array, place: Place, fill: float | None) -> np.ndarray:
    """A feature or label column as finite float32 numbers; booleans count as 0 and 1."""
    found = _float64(array, place)
    missing = np.isnan(found)
    if missing.any():
        if fill is None:
            row = int(missing.argmax())
            raise place.error(row, "has no value", "fill it in, or give `fill=VALUE`")
        found = np.where(missing, fill, found)
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    if not np.isfinite(narrow).all():
        row = int((~np.isfinite(narrow)).argmax())
        raise place.error(row, f"is {found[row]:g}, beyond 32-bit numbers", "rescale or replace it")
    return narrow


def _float64(array: pa.Array, place: Place) -> np.ndarray:
    """The column as float64, NaN where a value is missing."""
    kind = array.type
    if is_text(kind):
        array = _parsed_numbers(_trimmed(array), place)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or _is_real(kind) or pa.types.is_null(kind)):
        raise place.error(0, f"is {kind}, not a number", NUMERIC)
    wide = array.cast(pa.float64(), safe=False)
    return pc.fill_null(wide, float("nan")).to_numpy(zero_copy_only=False)


def _parsed_numbers(text: pa.Array, place: Place) -> pa.Array:
    parsed = _parsed(text, pa.float64())
    if parsed is not None:
        return parsed
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS)
    text = pc.if_else(missing, pa.scalar(None, text.type), text)
    parsed = _parsed(text, pa.float64(), pa.bool_())
    if parsed is not None:
        return parsed.cast(pa.float64())
    row = _first_failure(text, lambda part: _parsed(part, pa.float64()) is not None)
    raise place.error(row, f"is {_shown(text, row)}, not a number", NUMERIC)


@dataclass(frozen=True, slots=True)
class NumberClock:
    """Times that are numbers: kept as they are, or ticks since 1970 turned into seconds."""

    unit: str

    @property
    def epoch(self) -> bool:
        """Whether the seconds count from 1970."""
        return self.unit != "auto"

    def seconds(self, array: pa.Array, place: Place) -> np.ndarray:
        """The times as float64; whole ticks are divided exactly, so a microsecond is never lost."""
        _no_nulls(array, place)
        ticks, written = TIME_UNITS[self.unit], array
        if is_text(array.type):
            written = _trimmed(array)
            array = _parsed(written, *((pa.int64(), pa.float64()) if ticks > 1 else (pa.float64(),)))
            if array is None:
                row = _first_failure(written, lambda part: _parsed(part, pa.float64()) is not None)
                raise _bad_time(place, written, row, "not a number; write all times alike")
        elif not (pa.types.is_integer(array.type) or _is_real(array.type)):
            raise place.error(0, f"is {array.type}, not a time", "give numbers or ISO dates")
        if ticks > 1 and pa.types.is_integer(array.type):
            return _divided(array.cast(pa.int64()), ticks)
        times = _finite(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), place)
        vague = np.abs(times) > EXACT
        if ticks == 0 and not _is_real(written.type) and vague.any():
            row = int(vague.argmax())
            raise place.error(
                row, f"is {written[row]}, too large to be exact", "give `time_unit='ns'` or `time_unit='us'`"
            )
        return times / max(ticks, 1)


@dataclass(frozen=True, slots=True)
class DateClock:
    """Times that are dates: ISO 8601 text or Arrow dates; without a zone they are UTC."""

    epoch = True

    def seconds(self, array: pa.Array, place: Place) -> np.ndarray:
        """Seconds since 1970-01-01 UTC as float64, exact to the microsecond."""
        _no_nulls(array, place)
        if is_text(array.type):
            return self._from_text(_trimmed(array), place)
        if pa.types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        elif not pa.types.is_timestamp(array.type):
            raise place.error(0, f"is {array.type}, not a date", "give numbers or ISO dates")
        return _divided(array.cast(pa.int64()), TIME_UNITS[array.type.unit])

    def _from_text(self, text: pa.Array, place: Place) -> np.ndarray:
        for zone in (None, "UTC"):  # nearly always all values have a zone, or none has
            parsed = _timestamps(text, zone)
            if parsed is not None:
                return parsed
        text = pc.replace_substring_regex(text, r" ?(UTC|GMT)$", "Z")
        zoned = pc.match_substring_regex(text, r":\d.*(Z|[+-]\d\d:?(\d\d)?)$")
        found = np.empty(len(text), np.float64)
        for zone, rows in (("UTC", zoned), (None, pc.invert(zoned))):
            part, where = text.filter(rows), np.flatnonzero(rows.to_numpy(zero_copy_only=False))
            parsed = _timestamps(part, zone)
            if parsed is None:
                row = int(where[_first_failure(part, lambda some, z=zone: _timestamps(some, z) is not None)])
                raise _bad_time(place, text, row, "not a date; write dates like 2024-05-31T12:00:00Z")
            found[where] = parsed
        return found


Clock = NumberClock | DateClock


def choose_clock(array: pa.Array, unit: str, place: Place) -> Clock:
    """How to read a time column: by its type, or by the first value if it is text."""
    if is_text(array.type):
        dates = _parsed(_trimmed(array[:1]), pa.float64()) is None
    else:
        dates = pa.types.is_temporal(array.type)
    if dates and unit != "auto":
        raise ConfigError(f"column {place.column!r} of {place.file} holds dates; leave out `time_unit`")
    return DateClock() if dates else NumberClock(unit)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _timestamps(text: pa.Array, zone: str | None) -> np.ndarray | None:
    """Seconds since 1970; nanoseconds only where microseconds do not do, for they reach 1677..2262 only."""
    for unit in ("us", "ns"):
        parsed = _parsed(text, pa.timestamp(unit, zone))
        if parsed is not None:
            return _divided(parsed.cast(pa.int64()), TIME_UNITS[unit])
    return None


def _divided(ticks: pa.Array, per_second: int) -> np.ndarray:
    """Whole seconds and the rest apart: 64-bit ticks would not fit a float64."""
    whole, rest = np.divmod(ticks.to_numpy(zero_copy_only=False), per_second)
    return whole + rest / per_second


def _finite(times: np.ndarray, place: Place) -> np.ndarray:
    bad = ~np.isfinite(times)
    if bad.any():
        row = int(bad.argmax())
        raise place.error(row, f"is {times[row]}, not a finite time", NO_TIME)
    return times


def _bad_time(place: Place, text: pa.Array, row: int, verdict: str) -> FileError:
    if not text[row].as_py():
        return place.error(row, "is empty", NO_TIME)
    what, do = verdict.split("; ")
    return place.error(row, f"is {_shown(text, row)}, {what}", do)


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(array.cast(pa.string()))


def _no_nulls(array: pa.Array, place: Place) -> None:
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise place.error(row, "is empty", NO_TIME)


def _is_real(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _parsed(array: pa.Array, *targets: pa.DataType) -> pa.Array | None:
    """The values as the first of these types that all of them fit."""
    for target in targets:
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            continue
    return None


def _first_failure(array: pa.Array, parses: Callable[[pa.Array], bool]) -> int:
    """The first value that does not parse, by halving: the longest good prefix ends before it."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parses(array[low:middle]) else (low, middle)
    return low


def _shown(text: pa.Array, row: int) -> str:
    return repr(text[row].as_py()[:60])
