"""Where a value stands on an axis, and which round numbers, dates or durations are written beside it."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dygmamba.report.figures import Kind

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3_600, 86_400
STEPS = (
    *(1, 5, 15, 30),
    *(count * MINUTE for count in (1, 5, 15, 30)),
    *(count * HOUR for count in (1, 3, 6, 12)),
    *(count * DAY for count in (1, 2, 3, 5, 7, 10, 14, 21)),
)
MONTHS = (1, 2, 3, 6, *(12 * count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)))
MONTH = 30.4375 * DAY
MOST = 4  # steps from date to date beside an axis
UNITS = {"s": 1, "min": MINUTE, "h": HOUR, "d": DAY, "y": 31_557_600}
SPANS = {
    count * UNITS[unit]: f"{count} {unit}"
    for unit, counts in {
        "s": (1, 10),
        "min": (1, 5, 15),
        "h": (1, 3, 8),
        "d": (1, 3, 10, 30, 100),
        "y": (1, 3, 10, 30, 100),
    }.items()
    for count in counts
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to shares of the way from 0 to 1; `low` and `high` are logarithms where the axis is of them."""

    low: float
    high: float
    kind: Kind = "number"

    @staticmethod
    def of(values: list[float], kind: Kind = "number", room: float = 0.04) -> "Axis":
        """Wide enough for all, with some room."""
        log = kind in ("log", "span")
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = (math.log10(min(kept)), math.log10(max(kept))) if log else (min(kept), max(kept))
        spread = (high - low) or abs(high) * 0.1 or 1.0
        return Axis(low - room * spread, high + room * spread, kind)

    @property
    def log(self) -> bool:
        """Whether it is one of logarithms."""
        return self.kind in ("log", "span")

    @property
    def first(self) -> float:
        """The value at its beginning."""
        return 10**self.low if self.log else self.low

    def share(self, value: float) -> float:
        """Where a value stands."""
        at = math.log10(value) if self.log else value
        return (at - self.low) / (self.high - self.low)

    def shown(self, value: float) -> str:
        """A value in words."""
        return moment(value) if self.kind == "date" else span(value) if self.kind == "span" else number(value)

    def ticks(self, places: tuple[float, ...] = ()) -> list[tuple[float, str]]:
        """Round values inside, and what is written beside them; few given places of a logarithmic axis are used."""
        if self.kind == "date":
            return _dates(self.low, self.high)
        if self.kind == "span":
            inside = [(at, said) for at, said in SPANS.items() if 0 <= self.share(at) <= 1]
            if len(inside) >= 2:
                return inside[:: math.ceil(len(inside) / 6)]
        if not self.log:
            least = 1.0 if self.kind == "count" else 0.0
            return [(value, short(value)) for value in _round(self.low, self.high, least)]
        if 2 <= len(places) <= 9:
            return [(value, short(value)) for value in places]
        whole = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        whole = whole[:: math.ceil(len(whole) / 7)] if whole else []
        kept = whole if len(whole) >= 2 else _doublings(10**self.low, 10**self.high)
        return [(value, short(value)) for value in kept]


def number(value: float) -> str:
    """Six digits behind the first, whole where it is large."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"


def short(value: float) -> str:
    """A round number for beside an axis: millions are M."""
    return f"{value / 1e6:,.6g} M" if 1e6 <= abs(value) < 1e12 else number(value)


def span(seconds: float) -> str:
    """A span in its largest unit, with one digit behind the point."""
    unit = max((unit for unit in UNITS if abs(seconds) >= UNITS[unit]), key=UNITS.__getitem__, default="s")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def moment(seconds: float) -> str:
    """Seconds since 1970 as a date and a time to the minute; as they are beyond the calendar."""
    try:
        return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return f"{number(seconds)} s"


def _round(low: float, high: float, least: float = 0.0) -> list[float]:
    step = max((high - low) / 5, least)
    power = 10.0 ** math.floor(math.log10(step))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _doublings(low: float, high: float) -> list[float]:
    return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]


def _dates(low: float, high: float) -> list[tuple[float, str]]:
    """Whole minutes, hours, days, months or years, whichever are few; numbers beyond the calendar."""
    wide = high - low
    step = next((step for step in STEPS if wide / step <= MOST), None)
    try:
        if step is None:
            return _months(low, high, next(months for months in MONTHS if wide / (months * MONTH) <= MOST))
        form = "%Y-%m-%d" if step >= DAY else "%m-%d %H:%M" if wide > DAY else "%H:%M"
        form = "%H:%M:%S" if step < MINUTE else form
        places = range(math.ceil(low / step), math.floor(high / step) + 1)
        return [(at * step, (EPOCH + timedelta(seconds=at * step)).strftime(form)) for at in places]
    except (OverflowError, ValueError, StopIteration):
        return [(value, short(value)) for value in _round(low, high)]


def _months(low: float, high: float, months: int) -> list[tuple[float, str]]:
    start, found = EPOCH + timedelta(seconds=low), []
    place = -(-(start.year * 12 + start.month - 1) // months) * months
    while True:
        at = datetime(place // 12, place % 12 + 1, 1, tzinfo=UTC)
        value = (at - EPOCH).total_seconds()
        if value > high:
            return found
        if value >= low:
            found.append((value, f"{at.year}" if months % 12 == 0 else at.strftime("%Y-%m")))
        place += months
