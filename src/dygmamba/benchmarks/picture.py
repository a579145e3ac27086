"""Lines on two logarithmic axes, as an SVG that needs no package to draw and no network to show."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 320  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 44, 48
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
INK, FAINT = "#30343a", "#c9cdd3"

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: lines by name, all values above 0."""

    title: str
    axis: str
    lines: dict[str, Points]


def draw(panels: list[Panel]) -> str:
    """The panels side by side."""
    width = WIDTH * len(panels)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    body = [f'<rect width="{width}" height="{HEIGHT}" fill="white"/>']
    for number, panel in enumerate(panels):
        body += [f'<g transform="translate({number * WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([head, *body, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    lines = {name: _positive(points) for name, points in panel.lines.items()}
    points = [point for line in lines.values() for point in line]
    parts = [_text(LEFT, 18, panel.title, "start"), _text(WIDTH / 2, HEIGHT - 10, panel.axis, "middle")]
    if not points:
        return parts
    x, y = (_Scale.of([point[side] for point in points], base) for side, base in ((0, 2), (1, 10)))

    def across(value: float) -> float:
        return LEFT + x.share(value) * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM)

    for tick in y.ticks:
        parts.append(_line([(LEFT, up(tick)), (WIDTH - RIGHT, up(tick))], FAINT, 1))
        parts.append(_text(LEFT - 6, up(tick) + 4, f"{tick:,.10g}", "end"))
    parts += [_text(across(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", "middle") for tick in x.ticks]
    for number, (name, line) in enumerate(lines.items()):
        colour, placed = COLOURS[number % len(COLOURS)], [(across(a), up(b)) for a, b in line]
        parts.append(_line(placed, colour, 2.5))
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in placed]
        parts.append(_text(LEFT + 110 * number, 36, name, "start", colour))
    return parts


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis from `low` to `high`, powers of `base`."""

    low: float
    high: float
    base: int

    @staticmethod
    def of(values: list[float], base: int) -> "_Scale":
        low, high = math.floor(_log(min(values), base)), math.ceil(_log(max(values), base))
        return _Scale(low, max(high, low + 1), base)

    def share(self, value: float) -> float:
        return (_log(value, self.base) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [float(self.base) ** power for power in range(int(self.low), int(self.high) + 1)]


def _log(value: float, base: int) -> float:
    return round(math.log(value, base), 9)


def _positive(points: Points) -> Points:
    """Resident memory may shrink; a logarithm has no place for that."""
    return [(a, b) for a, b in points if a > 0 and b > 0]


def _line(points: Points, colour: str, width: float) -> str:
    text = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
