"""Charts as SVG: no script, no package, sharp on paper, in the page's own colours on a dark screen."""

import math
from dataclasses import dataclass
from html import escape

from dygmamba.report.sheets import Heat, Lines

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 20, 46
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#6b7280")
DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to shares of the way from 0 to 1."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(values: list[float], log: bool, room: float = 0.04) -> "Axis":
        """Wide enough for all, with some room."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = (math.log10(min(kept)), math.log10(max(kept))) if log else (min(kept), max(kept))
        spread = (high - low) or abs(high) * 0.1 or 1.0
        return Axis(low - room * spread, high + room * spread, log)

    def share(self, value: float) -> float:
        """Where a value stands."""
        at = math.log10(value) if self.log else value
        return (at - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round numbers inside."""
        if self.log:
            whole = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
            if len(whole) >= 2:
                return whole
            return _doublings(10**self.low, 10**self.high)
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step) + 1)]


def line_chart(chart: Lines) -> str:
    """Curves with a band of their spread where they have one, and a legend under the picture."""
    points = [point for line in chart.series.values() for point in line]
    if not points:
        return ""
    heights = [y + sign * (spread[0] if spread else 0) for _, y, *spread in points for sign in (-1, 1)]
    if chart.level is not None:
        heights.append(chart.level[1])
    x, y = Axis.of([point[0] for point in points], chart.log_x), Axis.of(heights, chart.log_y)

    def at(a: float, b: float) -> str:
        across = LEFT + x.share(a) * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{HEIGHT - BOTTOM - y.share(b) * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = _frame(chart.x, chart.y, x, y, sorted({point[0] for point in points}))
    for number, line in enumerate(chart.series.values()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        if line and len(line[0]) > 2:
            upper, lower = ([(a, b + sign * s) for a, b, s in line] for sign in (1, -1))
            if not chart.log_y or all(b > 0 for _, b in lower):
                corners = " ".join(at(*point) for point in [*upper, *reversed(lower)])
                parts.append(f'<polygon points="{corners}" fill="{colour}" opacity=".15"/>')
        path = " ".join(at(point[0], point[1]) for point in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}"/>'
        )
        for point in line if len(line) <= 24 else []:
            across, up = at(point[0], point[1]).split(",")
            parts.append(f'<circle cx="{across}" cy="{up}" r="2.8" fill="{colour}"/>')
    if chart.level is not None:
        name, level = chart.level
        up = at(10**x.low if x.log else x.low, level).split(",")[1]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up}" y2="{up}" stroke="currentColor" stroke-dasharray="4 4"/>'
        )
        parts.append(_text(WIDTH - RIGHT, float(up) - 5, name, "end"))
    return _svg(parts, chart.title) + _legend(list(chart.series))


def heat_map(heat: Heat) -> str:
    """A matrix in shades of one colour, the scale beside it."""
    rows, columns = len(heat.values), max((len(row) for row in heat.values), default=0)
    if not rows or not columns:
        return ""
    side = min((WIDTH - LEFT - 70) / columns, (HEIGHT - TOP - BOTTOM) / rows)
    parts = []
    for up, row in enumerate(heat.values):
        for across, value in enumerate(row):
            share = min(max((value - heat.low) / (heat.high - heat.low), 0.0), 1.0)
            parts.append(
                f'<rect x="{LEFT + across * side:.1f}" y="{TOP + up * side:.1f}" width="{side + 0.3:.1f}" '
                f'height="{side + 0.3:.1f}" fill="{_shade(share)}"><title>{value:g}</title></rect>'
            )
    right = LEFT + columns * side + 14
    for step in range(20):
        parts.append(
            f'<rect x="{right}" y="{TOP + step * 8}" width="12" height="8.3" fill="{_shade(1 - step / 19)}"/>'
        )
    parts += [
        _text(right + 17, TOP + 9, f"{heat.high:g}", "start"),
        _text(right + 17, TOP + 160, f"{heat.low:g}", "start"),
    ]
    parts.append(_text(LEFT + columns * side / 2, TOP + rows * side + 18, heat.x, "middle"))
    parts.append(_text(LEFT - 8, TOP + rows * side / 2, heat.y, "end"))
    return _svg(parts, heat.title, round(TOP + rows * side + 30))


def _frame(x_name: str, y_name: str, x: Axis, y: Axis, places: list[float]) -> list[str]:
    parts = []
    for tick in y.ticks:
        up = HEIGHT - BOTTOM - y.share(tick) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" class="grid"/>')
        parts.append(_text(LEFT - 6, up + 4, _number(tick), "end"))
    for tick in places if x.log and len(places) <= 9 else x.ticks:
        across = LEFT + x.share(tick) * (WIDTH - LEFT - RIGHT)
        parts.append(_text(across, HEIGHT - BOTTOM + 17, _number(tick), "middle"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, x_name, "middle"))
    parts.append(_text(4, 13, y_name, "start"))
    return parts


def _svg(parts: list[str], title: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" class="chart">'
        + "".join(parts)
        + "</svg>"
    )


def _legend(names: list[str]) -> str:
    if len(names) < 2:
        return ""
    marks = "".join(
        f'<li><svg viewBox="0 0 22 8" class="key"><line x1="0" x2="22" y1="4" y2="4" stroke-width="3" '
        f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-dasharray="{DASHES[number // len(COLOURS) % len(DASHES)]}"/>'
        f"</svg>{escape(name)}</li>"
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{marks}</ul>'


def _text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _number(value: float) -> str:
    return f"{value:,.6g}"


def _shade(share: float) -> str:
    """From white to the first colour."""
    light, dark = (247, 250, 252), (0, 84, 140)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(light, dark, strict=True))


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * 0.999)


def _doublings(low: float, high: float) -> list[float]:
    first = math.ceil(math.log2(low))
    return [2.0**power for power in range(first, math.floor(math.log2(high)) + 1)]
