"""The parts that every chart is made of: axes with round tick values, and SVG elements as strings.

An `Axis` maps values to fractions between 0 and 1, a `Projection` maps a pair of values to a position in the picture.
All text that goes into an element is escaped here, so callers pass plain strings. Colors are CSS classes (`c0` to `c7`)
of charts.css.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from dygmamba.data.events.times import UNIX_EPOCH
from dygmamba.report.document import AxisKind

MINUTE, HOUR, DAY = 60, 3_600, 86_400
TICK_SECONDS = (
    *(1, 5, 15, 30),
    *(count * MINUTE for count in (1, 5, 15, 30)),
    *(count * HOUR for count in (1, 3, 6, 12)),
    *(count * DAY for count in (1, 2, 3, 5, 7, 10, 14, 21)),
)
TICK_MONTHS = (1, 2, 3, 6, *(12 * count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)))
MONTH_SECONDS = 30.4375 * DAY
MAX_DATE_STEPS = 4  # intervals between dates on an axis; date labels are wide
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

WIDTH, HEIGHT = 440, 290  # about the width of a phone, so that text is readable there without zooming
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 26, 46  # margins of the plotting area; LEFT grows with long tick labels
COLOR_COUNT, DASH_PATTERNS = 8, ("", "6 3", "2 3")
# Without a browser the width of a text cannot be measured. These are the widths in the widest usual font (DejaVu Sans,
# Verdana) at the size of text on phones (style.css), so that no text is cut off.
CHAR_WIDTH, DIGIT_WIDTH = 8.3, 9.0

Position = tuple[float, float]
Projection = Callable[[float, float], Position]


@dataclass(frozen=True, slots=True)
class Axis:
    """Linear or logarithmic scale; `low` and `high` are log10 of the limits where it is logarithmic."""

    low: float
    high: float
    kind: AxisKind = "number"

    @staticmethod
    def from_values(values: list[float], kind: AxisKind = "number", margin: float = 0.04) -> "Axis":
        """Return an axis that covers all finite values, with a relative margin at both ends."""
        log = kind in ("log", "span")
        valid = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = (math.log10(min(valid)), math.log10(max(valid))) if log else (min(valid), max(valid))
        spread = (high - low) or abs(high) * 0.1 or 1.0  # equal values need a width too
        return Axis(low - margin * spread, high + margin * spread, kind)

    @property
    def is_log(self) -> bool:
        return self.kind in ("log", "span")

    @property
    def start(self) -> float:
        """The value at the beginning of the axis."""
        return 10**self.low if self.is_log else self.low

    def fraction(self, value: float) -> float:
        """Return the position of a value: 0 at the beginning of the axis, 1 at its end."""
        scaled = math.log10(value) if self.is_log else value
        return (scaled - self.low) / (self.high - self.low)

    def format_value(self, value: float) -> str:
        formats = {"date": format_date, "span": format_short_duration}
        return formats.get(self.kind, format_number)(value)

    def ticks(self, data_values: tuple[float, ...] = ()) -> list[tuple[float, str]]:
        """Return round values on the axis with their labels.

        Args:
            data_values: Values of the data. A logarithmic axis with two to nine of them is labeled with exactly these.
        """
        if self.kind == "date":
            return _date_ticks(self.low, self.high)
        if self.kind == "span":
            inside = [
                (value, label) for value, label in DURATION_TICKS.items() if 0 <= self.fraction(value) <= 1
            ]
            if len(inside) >= 2:
                return inside[:: math.ceil(len(inside) / 6)]
        if not self.is_log:
            min_step = 1.0 if self.kind == "count" else 0.0
            return [(value, format_tick(value)) for value in _round_ticks(self.low, self.high, min_step)]
        if 2 <= len(data_values) <= 9:
            # a value need not be round: three digits say where it lies, the hover text says all of them
            return [
                (value, format_tick(value) if value.is_integer() else f"{value:.3g}")
                for value in map(float, data_values)
            ]
        powers = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        powers = powers[:: math.ceil(len(powers) / 7)] if powers else []
        values = powers if len(powers) >= 2 else _power_of_two_ticks(10**self.low, 10**self.high)
        return [(value, format_tick(value)) for value in values]


def format_number(value: float) -> str:
    """Format with six significant digits, large numbers without decimals."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"


def format_tick(value: float) -> str:
    """Format a round number for an axis, millions as M."""
    return f"{value / 1e6:,.6g} M" if 1e6 <= abs(value) < 1e12 else format_number(value)


def format_short_duration(seconds: float) -> str:
    """Format a duration in the largest unit that it fills, with three significant digits."""
    unit = max(
        (unit for unit in UNIT_SECONDS if abs(seconds) >= UNIT_SECONDS[unit]),
        key=UNIT_SECONDS.__getitem__,
        default="s",
    )
    return f"{seconds / UNIT_SECONDS[unit]:.3g} {unit}"


def format_date(seconds: float) -> str:
    """Format seconds since 1970 as a UTC date and time; outside years 1 to 9999, as a number of seconds."""
    try:
        return (UNIX_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return f"{format_number(seconds)} s"


def _round_ticks(low: float, high: float, min_step: float = 0.0) -> list[float]:
    step = max((high - low) / 5, min_step)
    power = 10.0 ** math.floor(math.log10(step))
    # 0.999: rounding in the division above must not push a step of exactly 1, 2 or 5 to the next one
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _power_of_two_ticks(low: float, high: float) -> list[float]:
    return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]


def _date_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Choose the finest of seconds, minutes, hours, days, months or years that gives few ticks."""
    width = high - low
    step = next((step for step in TICK_SECONDS if width / step <= MAX_DATE_STEPS), None)
    try:
        if step is None:
            months = next(n for n in TICK_MONTHS if width / (n * MONTH_SECONDS) <= MAX_DATE_STEPS)
            return _month_ticks(low, high, months)
        pattern = "%Y-%m-%d" if step >= DAY else "%m-%d %H:%M" if width > DAY else "%H:%M"
        pattern = "%H:%M:%S" if step < MINUTE else pattern
        steps = range(math.ceil(low / step), math.floor(high / step) + 1)
        return [(n * step, (UNIX_EPOCH + timedelta(seconds=n * step)).strftime(pattern)) for n in steps]
    except (OverflowError, ValueError, StopIteration):  # outside years 1 to 9999
        return [(value, format_tick(value)) for value in _round_ticks(low, high)]


def _month_ticks(low: float, high: float, months: int) -> list[tuple[float, str]]:
    start, ticks = UNIX_EPOCH + timedelta(seconds=low), []
    month = -(-(start.year * 12 + start.month - 1) // months) * months  # months since year 0, rounded up
    while True:
        date = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        value = (date - UNIX_EPOCH).total_seconds()
        if value > high:
            return ticks
        if value >= low:
            ticks.append((value, f"{date.year}" if months % 12 == 0 else date.strftime("%Y-%m")))
        month += months


def measure_left_margin(y: Axis) -> float:
    """Return the margin that holds the longest tick label of the y axis."""
    return max([LEFT, *(8 + DIGIT_WIDTH * len(label) for _, label in y.ticks())])


def make_projection(x: Axis, y: Axis) -> Projection:
    """Return a function from a pair of values to its position in the picture."""
    left = measure_left_margin(y)

    def project(x_value: float, y_value: float) -> Position:
        across = left + x.fraction(x_value) * (WIDTH - left - RIGHT)
        return across, HEIGHT - BOTTOM - y.fraction(y_value) * (HEIGHT - TOP - BOTTOM)

    return project


def draw_axes(x_name: str, y_name: str, x: Axis, y: Axis, data_values: tuple[float, ...] = ()) -> list[str]:
    """Draw both axes with their names, ticks and horizontal grid lines."""
    parts, project, floor, left = [], make_projection(x, y), HEIGHT - BOTTOM, measure_left_margin(y)
    for value, label in y.ticks():
        up = project(x.start, value)[1]
        parts.append(f'<line x1="{left:.0f}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" class="grid"/>')
        parts.append(draw_text(left - 6, up + 4, label, "end"))
    end = 0.0  # of the last label; one that would overlap it is left out
    for value, label in x.ticks(data_values):
        across = project(value, y.start)[0]
        parts.append(
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{floor}" y2="{floor + 4}" class="axis"/>'
        )
        middle, half = _keep_inside(across, label), DIGIT_WIDTH / 2 * len(label)
        if middle - half >= end:
            parts.append(draw_text(middle, floor + 17, label, "middle"))
            end = middle + half
    parts.append(f'<line x1="{left:.0f}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="axis"/>')
    parts.append(draw_text(_keep_inside((left + WIDTH - RIGHT) / 2, x_name), HEIGHT - 8, x_name, "middle"))
    parts.append(draw_text(4, 14, y_name, "start"))
    return parts


def _keep_inside(middle: float, text: str) -> float:
    """Move the middle of a text so that neither end is cut off at the edge of the picture."""
    half = DIGIT_WIDTH / 2 * len(text)
    return min(max(middle, half), max(WIDTH - half, WIDTH / 2))


def draw_polyline(positions: Sequence[Position], css: str, dash: str = "", tooltip: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" class="{css}"{dashed}>{draw_tooltip(tooltip)}</polyline>'


def draw_rect(top_left: Position, bottom_right: Position, css: str, tooltip: str) -> str:
    (left, up), (right, down) = top_left, bottom_right
    size = f'width="{max(right - left, 0.5):.1f}" height="{max(down - up, 0.5):.1f}"'  # always visible
    return f'<rect x="{left:.1f}" y="{up:.1f}" {size} class="{css}">{draw_tooltip(tooltip)}</rect>'


def draw_circle(center: Position, radius: float, css: str, tooltip: str) -> str:
    x, y = center
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{css}">{draw_tooltip(tooltip)}</circle>'


def draw_band(upper: Sequence[Position], lower: Sequence[Position], color: int) -> str:
    """Fill the area between two lines."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon points="{corners}" class="band c{color % COLOR_COUNT}"/>'


def draw_text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    named = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def draw_tooltip(text: str) -> str:
    """Return the element whose text a browser shows when the pointer rests on its parent."""
    return f"<title>{escape(text)}</title>" if text else ""


def wrap_svg(parts: Sequence[str], name: str, height: float = HEIGHT) -> str:
    """Join the parts of a chart into one SVG element for a page."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}" class="chart">'
    return head + "".join(parts) + "</svg>"


def get_dash(line: int) -> str:
    """Return the dash pattern of the line with this number: from the ninth line on, colors repeat."""
    return DASH_PATTERNS[line // COLOR_COUNT % len(DASH_PATTERNS)]


def draw_legend(
    lines: Sequence[str],
    bands: Sequence[str] = (),
    dashed: str = "",
    thick: bool = False,
    dots: Sequence[str] = (),
) -> str:
    """Draw the legend of a chart as an HTML list; empty if the chart shows one thing only.

    Args:
        lines: Names of the lines or bars, in the order of their colors.
        bands: Names of the bands.
        dashed: Name of the dashed reference line.
        thick: Whether `lines` are bars.
        dots: Those of `lines` that are drawn as dots.
    """
    kind = "line thick" if thick else "line"
    entries = [
        (
            draw_circle((11, 4), 3.5, f"dot c{number % COLOR_COUNT}", "")
            if name in dots
            else draw_polyline(((0, 4), (22, 4)), f"{kind} c{number % COLOR_COUNT}", get_dash(number)),
            name,
        )
        for number, name in enumerate(lines)
    ]
    entries += [
        (draw_rect((0, 0), (22, 8), f"band c{number}", ""), name) for number, name in enumerate(bands)
    ]
    entries += [(draw_polyline(((0, 4), (22, 4)), "level"), dashed)] if dashed else []
    if len(entries) < 2:
        return ""
    rows = (
        f'<li><svg viewBox="0 0 22 8" class="key">{mark}</svg>{escape(name)}</li>' for mark, name in entries
    )
    return f'<ul class="legend">{"".join(rows)}</ul>'


def interpolate_color(fraction: float) -> str:
    """Return the color at a fraction of the way from nearly white to dark blue."""
    light, dark = (247, 250, 252), (0, 84, 140)
    return "#" + "".join(f"{round(a + fraction * (b - a)):02x}" for a, b in zip(light, dark, strict=True))
