"""Timestamps and time spans as text, and the one rule for which numbers count as dates.

Free of torch and pyarrow, so that the command line can use it at once.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

# Numbers in this range count as seconds since 1970: the years 1980 to 2100. Earlier ones are more likely counters,
# or times that start at 0. The windows of s, ms, us and ns do not overlap.
EPOCH_RANGE = (315_532_800, 4_102_444_800)
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_EPOCH_SECONDS = 1e11  # the year 5138: a larger number must be milliseconds or finer


def looks_like_epoch_seconds(start: float, end: float) -> bool:
    """Return whether timestamps from `start` to `end` can be seconds since 1970, see `EPOCH_RANGE`."""
    return EPOCH_RANGE[0] <= start <= end < EPOCH_RANGE[1]


def to_utc_date(seconds: float) -> datetime:
    """Return seconds since 1970 as a date and time in UTC; raise ValueError or OverflowError beyond the calendar.

    Unlike `datetime.fromtimestamp`, it takes times before 1970 on Windows too.
    """
    return UNIX_EPOCH + timedelta(seconds=seconds)


def format_date(seconds: float) -> str:
    """Format seconds since 1970 as a date and time in UTC; numbers beyond the calendar stay numbers."""
    try:
        return to_utc_date(seconds).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return f"{seconds:,.12g} s"


def format_duration(seconds: float) -> str:
    """Format a time span in its two largest units, such as '31 d 0 h'."""
    sizes = {"y": 31_557_600, "d": 86_400, "h": 3_600, "min": 60, "s": 1}
    for unit, smaller in pairwise(sizes):
        if seconds >= sizes[unit]:
            whole, rest = divmod(seconds, sizes[unit])
            return f"{whole:.0f} {unit} {rest // sizes[smaller]:.0f} {smaller}"
    return f"{seconds:.6g} s"


def format_rough_duration(seconds: float) -> str:
    """Format an estimated time span in one unit, such as '3 h'."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 1.95 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"
