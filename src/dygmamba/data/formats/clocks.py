"""Columns of times: numbers, dates in the usual spellings, dates in a format that is given."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats.dates import (
    DAY,
    ZONED,
    divided,
    formatted,
    half_days,
    rewritten,
    timestamps,
)
from dygmamba.data.formats.options import TIME_UNITS
from dygmamba.data.formats.values import (
    Place,
    first_failure,
    is_real,
    is_text,
    parsed,
    quoted,
    trimmed,
)
from dygmamba.errors import FileError

NO_TIME = "remove the row or give it a time"
EXACT = 2.0**53  # above it not every integer is a float64


@dataclass(frozen=True, slots=True)
class NumberClock:
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

    def seconds(self, array: pa.Array, place: Place) -> np.ndarray:
        """The times as float64; whole ticks are divided exactly, so a microsecond is never lost."""
        _no_nulls(array, place)
        ticks, written = TIME_UNITS[self.unit], array
        if is_text(array.type):
            written = trimmed(array)
            found = parsed(written, *((pa.int64(), pa.float64()) if ticks > 1 else (pa.float64(),)))
            if found is None:
                row = first_failure(written, lambda part: parsed(part, pa.float64()) is not None)
                raise _bad_time(place, written, row, "not a number", "write all times alike")
            array = found
        elif not (pa.types.is_integer(array.type) or is_real(array.type)):
            raise place.wrong(f"is {array.type}, not a time", "give numbers or dates")
        if ticks > 1 and pa.types.is_integer(array.type):
            return divided(array.cast(pa.int64()), ticks)
        times = _finite(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), place)
        vague = np.abs(times) > EXACT
        if ticks == 0 and not is_real(written.type) and vague.any():
            row = int(vague.argmax())
            raise place.error(
                row, f"is {written[row]}, too large to be exact", "give `time_unit='ns'` or `time_unit='us'`"
            )
        return times / max(ticks, 1)


@dataclass(frozen=True, slots=True)
class DateClock:
    """Times that are dates: text of one order of day, month and year, or Arrow dates; without a zone they are UTC."""

    order: str = "ymd"
    zones: set[str] = field(default_factory=set, compare=False)  # what was met: given, none
    epoch = True

    def words(self) -> dict[str, Any]:
        """What was understood of the times."""
        zone = "mixed" if len(self.zones) > 1 else next(iter(self.zones), "none")
        return {"clock": "dates", "order": self.order, "zone": zone}

    def seconds(self, array: pa.Array, place: Place) -> np.ndarray:
        """Seconds since 1970-01-01 UTC as float64, exact to the microsecond."""
        _no_nulls(array, place)
        if is_text(array.type):
            return self._from_text(trimmed(array), place)
        if pa.types.is_date(array.type):
            array = array.cast(pa.timestamp("ms"))
        elif not pa.types.is_timestamp(array.type):
            raise place.wrong(f"is {array.type}, not a date", "give numbers or dates")
        self.zones.add("none" if array.type.tz is None else "given")
        return divided(array.cast(pa.int64()), TIME_UNITS[array.type.unit])

    def _from_text(self, written: pa.Array, place: Place) -> np.ndarray:
        text = written if self.order == "ymd" else rewritten(written, self.order)
        for zone, met in (
            (None, "none"),
            ("UTC", "given"),
        ):  # nearly always all values have a zone, or none has
            found = timestamps(text, zone)
            if found is not None:
                self.zones.add(met)
                return found
        bare, half = half_days(rewritten(written, self.order))
        text = rewritten(bare, "ymd")
        zoned = pc.match_substring_regex(text, ZONED)
        found = np.empty(len(text), np.float64)
        for zone, met, rows in (("UTC", "given", zoned), (None, "none", pc.invert(zoned))):
            part, where = text.filter(rows), np.flatnonzero(rows.to_numpy(zero_copy_only=False))
            some = timestamps(part, zone)
            if some is None:
                row = int(where[first_failure(part, lambda few, z=zone: timestamps(few, z) is not None)])
                do = "write dates like 2024-05-31T12:00:00Z, or give `time_format`"
                raise _bad_time(place, written, row, "not a date", do)
            found[where] = some
            self.zones.update({met} if len(where) else ())
        return found if half is None else _whole_days(found, half, place, written)


@dataclass(frozen=True, slots=True)
class FormatClock:
    """Times that are dates in one given format; without a zone in it they are UTC."""

    form: str
    guessed: bool = False
    epoch = True

    def words(self) -> dict[str, Any]:
        """What was understood of the times."""
        zone = "given" if "%z" in self.form else "none"
        return {"clock": "dates", "time_format": self.form, "zone": zone, "guessed": self.guessed}

    def seconds(self, array: pa.Array, place: Place) -> np.ndarray:
        """Seconds since 1970-01-01 UTC as float64."""
        _no_nulls(array, place)
        if not (is_text(array.type) or pa.types.is_integer(array.type)):
            raise place.wrong(f"is {array.type}, no text", "leave out `time_format`")
        text = trimmed(array)
        found = formatted(text, self.form)
        if found is None:
            row = first_failure(text, lambda part: formatted(part, self.form) is not None)
            raise _bad_time(
                place, text, row, f"not a date like {self.form}", "mend it, or check `time_format`"
            )
        return found


Clock = NumberClock | DateClock | FormatClock


def _whole_days(found: np.ndarray, half: np.ndarray, place: Place, written: pa.Array) -> np.ndarray:
    """Twelve hours more in the afternoon; 12 AM is midnight."""
    hour = np.floor(found % DAY / 3600)
    wrong = (half >= 0) & ((hour < 1) | (hour > 12))
    if wrong.any():
        raise _bad_time(place, written, int(wrong.argmax()), "no hour of half a day", "mend it")
    return found + DAY / 2 * ((half == 1) & (hour < 12)) - DAY / 2 * ((half == 0) & (hour == 12))


def _finite(times: np.ndarray, place: Place) -> np.ndarray:
    bad = ~np.isfinite(times)
    if bad.any():
        row = int(bad.argmax())
        raise place.error(row, f"is {times[row]}, not a finite time", NO_TIME)
    return times


def _bad_time(place: Place, text: pa.Array, row: int, what: str, do: str) -> FileError:
    if not text[row].as_py():
        return place.error(row, "is empty", NO_TIME)
    return place.error(row, f"is {quoted(text, row)}, {what}", do)


def _no_nulls(array: pa.Array, place: Place) -> None:
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        raise place.error(row, "is empty", NO_TIME)
