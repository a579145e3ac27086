"""Dates in the usual spellings, rewritten into the one that Arrow reads, whole columns at a time."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats.options import TIME_UNITS
from dygmamba.data.formats.values import parsed

DAY = 86_400
ORDERS = {  # what a date begins with, and the same as year-month-day
    "ymd": (r"^(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", r"\1-\2-\3"),
    "dmy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\2-\1"),
    "mdy": (r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", r"\3-\1-\2"),
}
TIDY = (  # one-digit months, days and hours; what stands between day and hour, before a zone, before a fraction
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d\d)-(\d)(\D|$)", r"\1-0\2\3"),
    (r"^(\d{4}-\d\d-\d\d)(?:, *| +|T)(\d)", r"\1 \2"),
    (r"^(\d{4}-\d\d-\d\d) (\d):", r"\1 0\2:"),
    (r"(:\d\d),(\d)", r"\1.\2"),
    (r" ?(UTC|GMT|Z)$", "Z"),
    (r" ([+-]\d\d:?\d\d)$", r"\1"),
)
ZONED = r":\d.*(Z|[+-]\d\d:?(\d\d)?)$"
HALF = r"(?i) ?([ap])\.?m\.?$"
FIRST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2\d{4}(.*)", re.DOTALL)
PARTS = {  # what a plain format is made of
    "Y": r"(?P<Y>\d{4})",
    **{part: rf"(?P<{part}>\d{{1,2}})" for part in "mdHMS"},
}


def timestamps(text: pa.Array, zone: str | None) -> np.ndarray | None:
    """Seconds since 1970; nanoseconds only where microseconds do not do, for they reach 1677..2262 only."""
    for unit in ("us", "ns"):
        found = parsed(text, pa.timestamp(unit, zone))
        if found is not None:
            return divided(found.cast(pa.int64()), TIME_UNITS[unit])
    return None


def divided(ticks: pa.Array, per_second: int) -> np.ndarray:
    """Whole seconds and the rest apart: 64-bit ticks would not fit a float64."""
    whole, rest = np.divmod(ticks.to_numpy(zero_copy_only=False), per_second)
    return whole + rest / per_second


def rewritten(text: pa.Array, order: str) -> pa.Array:
    """The dates as 2024-05-31 12:00:00.5+02:00, as far as they are dates of that order."""
    for pattern, into in (ORDERS[order], *TIDY):
        text = pc.replace_substring_regex(text, pattern, into)
    return text


def half_days(text: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """The text without AM and PM, and what they are: 0, 1, or -1 where there is neither; None where there are none."""
    marked = pc.match_substring_regex(text, HALF)
    if not pc.any(marked).as_py():
        return text, None
    late = pc.match_substring_regex(text, r"(?i)p\.?m\.?$").to_numpy(zero_copy_only=False)
    half = np.where(marked.to_numpy(zero_copy_only=False), late.astype(np.int64), -1)
    return pc.replace_substring_regex(text, HALF, ""), half


def order_of(texts: list[str]) -> tuple[str | None, str]:
    """In which order most of these dates are written, None where they leave it open; and one of those that do."""
    cut = [found for text in texts if (found := FIRST.fullmatch(text))]
    if 2 * len(cut) <= len(texts):
        return "ymd", ""
    large = {(int(found[1]) > 12, int(found[3]) > 12) for found in cut}
    day_first, month_first = (True, False) in large, (False, True) in large
    if day_first != month_first:
        return ("dmy" if day_first else "mdy"), ""
    open_one = next((found for found in cut if int(found[1]) <= 12 and int(found[3]) <= 12), cut[0])
    return (None if day_first or open_one[2] != "." else "dmy"), open_one[0]


def format_like(text: str, order: str) -> str:
    """The format that a date of this order seems to have."""
    found = FIRST.fullmatch(text)
    if found is None:
        return "%d.%m.%Y"
    days = found[2].join(("%d", "%m", "%Y") if order == "dmy" else ("%m", "%d", "%Y"))
    clock = re.fullmatch(r"([ T])\d+:\d+(:\d+)?(\.\d+)?( ?[AaPp][Mm])?", found[4])
    if clock is None:
        return days
    hours = "%I:%M" if clock[4] else "%H:%M"
    tail = (":%S" if clock[2] else "") + (".%f" if clock[3] else "")
    return f"{days}{clock[1]}{hours}{tail}" + (clock[4] or "")[:-2] + ("%p" if clock[4] else "")


def formatted(text: pa.Array, form: str) -> np.ndarray | None:
    """Seconds since 1970 of dates in one format, None where one is not; a plain one is read by a pattern."""
    pattern = plain_pattern(form)
    if pattern is not None:
        if not pc.all(pc.match_substring_regex(text, pattern), min_count=0).as_py():
            return None
        order = re.findall(r"\?P<(\w)>", pattern)
        iso = pc.replace_substring_regex(text, pattern, _iso(order))
        return timestamps(rewritten(iso, "ymd"), None)
    words = text.dictionary_encode()
    try:
        found = [_microseconds(word, form) for word in words.dictionary.to_pylist()]
    except (ValueError, OverflowError):
        return None
    codes = words.indices.to_numpy()
    return divided(pa.array(np.array(found, np.int64)[codes]), TIME_UNITS["us"])


def plain_pattern(form: str) -> str | None:
    """A pattern of a format of years, months, days, hours, minutes and seconds in digits; None of any other."""
    pieces = re.split(r"%([A-Za-z%])", form)
    names = pieces[1::2]
    if not {"Y", "m", "d"} <= set(names) <= set(PARTS) or len(set(names)) < len(names):
        return None
    if ("M" in names and "H" not in names) or ("S" in names and "M" not in names):
        return None
    tight = "" in pieces[2:-1:2]  # digits next to digits
    parts = {name: part.replace("{1,2}", "{2}") if tight else part for name, part in PARTS.items()}
    return "^" + "".join(parts[p] if k % 2 else re.escape(p) for k, p in enumerate(pieces)) + "$"


def _iso(order: list[str]) -> str:
    at = {name: rf"\{order.index(name) + 1}" for name in order}
    day = f"{at['Y']}-{at['m']}-{at['d']}"
    return f"{day} " + ":".join(at.get(name, "00") for name in "HMS") if "H" in at else day


def _microseconds(word: str, form: str) -> int:
    moment = datetime.strptime(word, form)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
