"""Which clock reads a column of times: as is said, by its type, or by what its first values look like."""

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.clocks import Clock, DateClock, FormatClock, NumberClock
from dygmamba.data.formats.dates import format_like, formatted, order_of
from dygmamba.data.formats.guess import unit_of
from dygmamba.data.formats.sniff import NUMBER
from dygmamba.data.formats.values import Place, is_real, is_text, trimmed
from dygmamba.errors import ConfigError, FileError

LOOK = 100_000  # values that tell how times are written
NO_NUMBERS = {"nan", "inf", "-inf", "infinity", "-infinity"}
COMPACT = {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}  # digits: a date without separators


def choose_clock(
    array: pa.Array,
    unit: str,
    place: Place,
    *,
    form: str | None = None,
    order: str = "",
    guess: bool = False,
) -> Clock:
    """How to read a time column: as is said, by its type, or by what most of its first values look like.

    With `guess`, numbers of the right size are times since 1970; `order` is that of day and month where dates leave it
    open.
    """
    if form is not None:
        if unit not in ("auto", "plain"):
            raise ConfigError(
                "a format is of dates, a unit of numbers; leave out `time_unit` or `time_format`"
            )
        return FormatClock(form)
    texts = (
        [text for text in trimmed(array[:LOOK]).drop_null().to_pylist() if text] if _is_written(array) else []
    )
    if is_text(array.type):
        looks = [NUMBER.fullmatch(text) is not None or text.lower() in NO_NUMBERS for text in texts[:1000]]
        dates = bool(looks) and 2 * sum(looks) < len(looks) + (not looks[0])
    else:
        dates = pa.types.is_temporal(array.type)
    if dates and unit not in ("auto", "plain"):
        raise ConfigError(f"column {place.column!r} of {place.file} holds dates; leave out `time_unit`")
    if dates:
        return DateClock(_order(texts, place, order) if is_text(array.type) else "ymd")
    return _numbers(array, texts, unit) if guess else NumberClock(unit)


def _is_written(array: pa.Array) -> bool:
    return is_text(array.type) or pa.types.is_integer(array.type)


def _order(texts: list[str], place: Place, known: str) -> str:
    order, example = order_of(texts)
    if order is not None or known:
        return order or known
    day, month = (format_like(example, way) for way in ("dmy", "mdy"))
    raise FileError(
        f"{place.file}: column {place.column!r} has dates like {example[:40]!r}, which may begin with the "
        f"day or the month; say which with `time_format='{day}'` or `time_format='{month}'`"
    )


def _numbers(array: pa.Array, texts: list[str], unit: str) -> Clock:
    """Numbers, whose unit shows in their size unless it is given."""
    if unit != "auto":
        return NumberClock(unit)
    if _is_written(array):
        known = [text for text in texts if NUMBER.fullmatch(text)]
        values, whole = [float(text) for text in known], all(text.lstrip("+-").isdigit() for text in known)
        form = COMPACT.get(len(known[0]) if known else 0)
        if (
            form is not None
            and whole
            and formatted(pa.array(known), form) is not None
            and known[0][:2] in ("19", "20")
        ):
            return FormatClock(form, guessed=True)
    elif is_real(array.type):
        values, whole = (
            [v for v in array[:LOOK].cast(pa.float64(), safe=False).to_pylist() if v is not None],
            False,
        )
    else:
        values, whole = [], False
    found = unit_of([value for value in values if np.isfinite(value)], whole)
    return NumberClock(unit) if found is None else NumberClock(found, guessed=True)
