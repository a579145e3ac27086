"""Where a value stands on an axis, and which round numbers, dates or durations are written beside it.

What pictures are made of: a frame with its names and round values, lines, bands, words, a legend.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from dygmamba.report.document import AxisKind

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3_600, 86_400
TICK_SECONDS = (
    *(1, 5, 15, 30),
    *(count * MINUTE for count in (1, 5, 15, 30)),
    *(count * HOUR for count in (1, 3, 6, 12)),
    *(count * DAY for count in (1, 2, 3, 5, 7, 10, 14, 21)),
)
TICK_MONTHS = (1, 2, 3, 6, *(12 * count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)))
MONTH_SECONDS = 30.4375 * DAY
MAX_DATE_STEPS = 4  # steps from date to date beside an axis
UNIT_SECONDS = {"s": 1, "min": MINUTE, "h": HOUR, "d": DAY, "y": 31_557_600}
DURATION_TICKS = {
    count * UNIT_SECONDS[unit]: f"{count} {unit}"
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
    kind: AxisKind = "number"

    @staticmethod
    def of(values: list[float], kind: AxisKind = "number", room: float = 0.04) -> "Axis":
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
        return (
            format_date(value)
            if self.kind == "date"
            else format_duration(value)
            if self.kind == "span"
            else format_number(value)
        )

    def ticks(self, places: tuple[float, ...] = ()) -> list[tuple[float, str]]:
        """Round values inside, and what is written beside them; few given places of a logarithmic axis are used."""
        if self.kind == "date":
            return _date_ticks(self.low, self.high)
        if self.kind == "span":
            inside = [(at, said) for at, said in DURATION_TICKS.items() if 0 <= self.share(at) <= 1]
            if len(inside) >= 2:
                return inside[:: math.ceil(len(inside) / 6)]
        if not self.log:
            least = 1.0 if self.kind == "count" else 0.0
            return [(value, format_tick(value)) for value in _round_ticks(self.low, self.high, least)]
        if 2 <= len(places) <= 9:
            return [(value, format_tick(value)) for value in places]
        whole = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        whole = whole[:: math.ceil(len(whole) / 7)] if whole else []
        kept = whole if len(whole) >= 2 else _power_of_two_ticks(10**self.low, 10**self.high)
        return [(value, format_tick(value)) for value in kept]


def format_number(value: float) -> str:
    """Six digits behind the first, whole where it is large."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"


def format_tick(value: float) -> str:
    """A round number for beside an axis: millions are M."""
    return f"{value / 1e6:,.6g} M" if 1e6 <= abs(value) < 1e12 else format_number(value)


def format_duration(seconds: float) -> str:
    """A span in its largest unit, with one digit behind the point."""
    unit = max(
        (unit for unit in UNIT_SECONDS if abs(seconds) >= UNIT_SECONDS[unit]),
        key=UNIT_SECONDS.__getitem__,
        default="s",
    )
    return f"{seconds / UNIT_SECONDS[unit]:.3g} {unit}"


def format_date(seconds: float) -> str:
    """Seconds since 1970 as a date and a time to the minute; as they are beyond the calendar."""
    try:
        return (UNIX_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return f"{format_number(seconds)} s"


def _round_ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    step = max((high - low) / 5, least)
    power = 10.0 ** math.floor(math.log10(step))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _power_of_two_ticks(low: float, high: float) -> list[float]:
    return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]


def _date_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Whole minutes, hours, days, months or years, whichever are few; numbers beyond the calendar."""
    wide = high - low
    step = next((step for step in TICK_SECONDS if wide / step <= MAX_DATE_STEPS), None)
    try:
        if step is None:
            return _month_ticks(
                low,
                high,
                next(months for months in TICK_MONTHS if wide / (months * MONTH_SECONDS) <= MAX_DATE_STEPS),
            )
        form = "%Y-%m-%d" if step >= DAY else "%m-%d %H:%M" if wide > DAY else "%H:%M"
        form = "%H:%M:%S" if step < MINUTE else form
        places = range(math.ceil(low / step), math.floor(high / step) + 1)
        return [(at * step, (UNIX_EPOCH + timedelta(seconds=at * step)).strftime(form)) for at in places]
    except (OverflowError, ValueError, StopIteration):
        return [(value, format_tick(value)) for value in _round_ticks(low, high)]


def _month_ticks(low: float, high: float, months: int) -> list[tuple[float, str]]:
    start, found = UNIX_EPOCH + timedelta(seconds=low), []
    place = -(-(start.year * 12 + start.month - 1) // months) * months
    while True:
        at = datetime(place // 12, place % 12 + 1, 1, tzinfo=UTC)
        value = (at - UNIX_EPOCH).total_seconds()
        if value > high:
            return found
        if value >= low:
            found.append((value, f"{at.year}" if months % 12 == 0 else at.strftime("%Y-%m")))
        place += months


WIDTH, HEIGHT = 440, 290  # a telephone shows them nearly 1:1
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 26, 46
COLOR_COUNT, DASH_PATTERNS = 8, ("", "6 3", "2 3")
CHAR_WIDTH = 6.6  # about as wide as one is

Position = tuple[float, float]
Projection = Callable[[float, float], Position]


def make_projection(x: Axis, y: Axis) -> Projection:
    """From values to places in the picture."""

    def at(a: float, b: float) -> Position:
        across = LEFT + x.share(a) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y.share(b) * (HEIGHT - TOP - BOTTOM)

    return at


def draw_axes(x_name: str, y_name: str, x: Axis, y: Axis, places: tuple[float, ...] = ()) -> list[str]:
    """What is measured, in which unit, and round values of it."""
    parts, at, floor = [], make_projection(x, y), HEIGHT - BOTTOM
    for tick, said in y.ticks():
        up = at(x.first, tick)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" class="grid"/>')
        parts.append(draw_text(LEFT - 6, up + 4, said, "end"))
    for tick, said in x.ticks(places):
        across, half = at(tick, y.first)[0], CHAR_WIDTH / 2 * len(said)
        parts.append(
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{floor}" y2="{floor + 4}" class="axis"/>'
        )
        inside = min(max(across, half), WIDTH - half)  # a long label at an edge is moved
        parts.append(draw_text(inside, floor + 17, said, "middle"))
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="axis"/>')
    parts.append(draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    parts.append(draw_text(4, 14, y_name, "start"))
    return parts


def draw_polyline(places: Sequence[Position], kind: str, dash: str = "", said: str = "") -> str:
    """A line through these places."""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" class="{kind}"{dashed}>{draw_tooltip(said)}</polyline>'


def draw_rect(corner: Position, opposite: Position, kind: str, said: str) -> str:
    """A rectangle between two corners, the first of them above and to the left."""
    (left, up), (right, down) = corner, opposite
    size = f'width="{max(right - left, 0.5):.1f}" height="{max(down - up, 0.5):.1f}"'
    return f'<rect x="{left:.1f}" y="{up:.1f}" {size} class="{kind}">{draw_tooltip(said)}</rect>'


def draw_circle(place: Position, size: float, kind: str, said: str) -> str:
    """A point of a curve."""
    return f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{size}" class="{kind}">{draw_tooltip(said)}</circle>'


def draw_dots(places: Sequence[Position], said: Sequence[str], number: int) -> list[str]:
    """All points of a curve without a line, in the colour of this number."""
    tone = f"dot c{number % COLOR_COUNT}"
    return [draw_circle(place, 3.2, tone, words) for place, words in zip(places, said, strict=True)]


def draw_band(upper: Sequence[Position], lower: Sequence[Position], number: int) -> str:
    """What lies between two lines, in the colour of this number."""
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
    return f'<polygon points="{corners}" class="band c{number % COLOR_COUNT}"/>'


def draw_text(x: float, y: float, said: str, anchor: str, kind: str = "") -> str:
    """Words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(said)}</text>'


def draw_tooltip(said: str) -> str:
    """What a pointer that rests on a mark shows."""
    return f"<title>{escape(said)}</title>" if said else ""


def wrap_svg(parts: Sequence[str], name: str, height: float = HEIGHT) -> str:
    """A picture as part of a page."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}" class="chart">'
    return head + "".join(parts) + "</svg>"


def get_dash(number: int) -> str:
    """How the line of this number is dashed: colours come round again."""
    return DASH_PATTERNS[number // COLOR_COUNT % len(DASH_PATTERNS)]


def draw_legend(
    lines: Sequence[str],
    bands: Sequence[str] = (),
    across: str = "",
    thick: bool = False,
    dots: Sequence[str] = (),
) -> str:
    """What each colour is, bands and the dashed line across behind the lines; nothing where there is one thing only."""
    kind = "line thick" if thick else "line"
    marks = [
        (
            draw_circle((11, 4), 3.5, f"dot c{number % COLOR_COUNT}", "")
            if name in dots
            else draw_polyline(((0, 4), (22, 4)), f"{kind} c{number % COLOR_COUNT}", get_dash(number)),
            name,
        )
        for number, name in enumerate(lines)
    ]
    marks += [(draw_rect((0, 0), (22, 8), f"band c{number}", ""), name) for number, name in enumerate(bands)]
    marks += [(draw_polyline(((0, 4), (22, 4)), "level"), across)] if across else []
    if len(marks) < 2:
        return ""
    rows = (
        f'<li><svg viewBox="0 0 22 8" class="key">{mark}</svg>{escape(name)}</li>' for mark, name in marks
    )
    return f'<ul class="legend">{"".join(rows)}</ul>'


def interpolate_color(share: float) -> str:
    """From white to the first colour."""
    light, dark = (247, 250, 252), (0, 84, 140)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(light, dark, strict=True))
