"""Pictures as SVG: no script, no package, sharp on paper, in the page's own colours on a dark screen.

Together with marks.py the one place that draws. A pointer resting on a mark shows its values. Colours are classes
(`c0`, `c1`, ...) of charts.css, which a page carries, and which a picture that stands alone has within it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

from dygmamba.report import marks
from dygmamba.report.axes import Axis, number
from dygmamba.report.figures import Bars, Heat, Histogram, Lines, Moves, Picture, Point
from dygmamba.report.marks import BOTTOM, COLOURS, HEIGHT, LEFT, LETTER, RIGHT, TOP, WIDTH

MARKED = 24  # points of a curve that are seen as such; more are only felt by a pointer
TOUCHED = 120  # points of a curve that a pointer can rest on
HEAD = 40  # above a picture that stands alone: its name and its legend


def draw(picture: Picture) -> str:
    """The picture and the legend under it; nothing where there is nothing to show."""
    ways: dict[type, Callable[..., str]] = {
        Lines: line_chart,
        Histogram: histogram,
        Bars: bar_chart,
        Moves: moves_chart,
        Heat: heat_map,
    }
    return ways[type(picture)](picture)


def style() -> str:
    """What gives the marks their colours."""
    return files("dygmamba.report").joinpath("charts.css").read_text("utf-8")


def standing_alone(charts: Sequence[Lines]) -> str:
    """Curves side by side as a file of their own, on white, each with its name and its legend above it."""
    wide, high = WIDTH * len(charts), HEIGHT + HEAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="system-ui, sans-serif" class="chart">',
        f"<style>{style()}</style>",
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for place, chart in enumerate(charts):
        at, named = 8.0, []
        for number_, name in enumerate(chart.series):
            named.append(marks.line(((at, 32), (at + 18, 32)), f"line c{number_ % COLOURS}"))
            named.append(marks.text(at + 23, 36, name, "start"))
            at += 40 + LETTER * len(name)
        inner = f'<g transform="translate(0 {HEAD})">{"".join(_curves(chart))}</g>'
        head = marks.text(8, 16, chart.title, "start", "head")
        parts.append(f'<g transform="translate({place * WIDTH} 0)">{head}{"".join(named)}{inner}</g>')
    return "\n".join([*parts, "</svg>", ""])


def line_chart(chart: Lines) -> str:
    """Curves with a band of their spread where they have one, and a legend under the picture."""
    parts = _curves(chart)
    if not parts:
        return ""
    return marks.svg(parts, chart.title) + marks.legend(
        list(chart.series), list(chart.bands), chart.diagonal, dots=chart.dots
    )


def _curves(chart: Lines) -> list[str]:
    chart = _showable(chart)
    points = [point for line in chart.series.values() for point in line]
    if not points:
        return []
    heights = [y + sign * (spread[0] if spread else 0) for _, y, *spread in points for sign in (-1, 1)]
    heights += [edge for band in chart.bands.values() for _, *edges in band for edge in edges]
    heights += [chart.level[1]] if chart.level else []
    across = [point[0] for point in points]
    x = Axis.of(list(chart.x_range or across), chart.x_kind, 0.0 if chart.x_range else 0.04)
    y = Axis.of(list(chart.y_range or heights), chart.y_kind, 0.0 if chart.y_range else 0.04)
    at, parts = marks.placed(x, y), marks.frame(chart.x, chart.y, x, y, tuple(sorted(set(across))))
    if chart.diagonal:
        ends = [at(side, side) for side in (max(x.low, y.low), min(x.high, y.high))]
        parts.append(marks.line(ends, "level", said=chart.diagonal))
    for place, edges in enumerate(chart.bands.values()):
        upper, lower = ([at(a, sides[which]) for a, *sides in edges] for which in (1, 0))
        parts.append(marks.band(upper, lower, place))
    for place, (name, line) in sorted(
        enumerate(chart.series.items()), key=lambda one: one[1][0] in chart.dots
    ):
        said = chart.about.get(name) or [f"{name}: {x.shown(a)}, {y.shown(b)}" for a, b, *_ in line]
        lone = marks.dots([at(a, b) for a, b, *_ in line], said, place) if name in chart.dots else None
        parts += _curve(place, line, said, at, y.log) if lone is None else lone
    if chart.level is not None:
        name, level = chart.level
        up = at(x.first, level)[1]
        parts.append(marks.line([(LEFT, up), (WIDTH - RIGHT, up)], "level", said=f"{name}: {number(level)}"))
        left, right = (_nearest(points, level, x, half) for half in (0, 1))
        side = (LEFT + 4, "start") if left > right else (WIDTH - RIGHT, "end")
        parts.append(marks.text(side[0], up - 5, name, side[1], "over"))
    return parts


def _nearest(points: list[Point], level: float, x: Axis, half: int) -> float:
    """How near to a level the points in one half of the picture come."""
    return min((abs(y - level) for a, y, *_ in points if (x.share(a) > 0.5) == bool(half)), default=math.inf)


def _showable(chart: Lines) -> Lines:
    """Without points that a logarithmic axis has no place for, such as memory that shrank."""
    series = {
        name: [
            point
            for point in line
            if (point[0] > 0 or chart.x_kind not in ("log", "span"))
            and (point[1] > 0 or chart.y_kind != "log")
        ]
        for name, line in chart.series.items()
    }
    return replace(chart, series=series)


def _curve(place: int, line: list[Point], said: list[str], at: marks.At, log: bool) -> list[str]:
    """A curve, the band of its spread, and its points."""
    parts, colour = [], f"c{place % COLOURS}"
    if line and len(line[0]) > 2:
        upper, lower = ([(a, b + sign * s) for a, b, s in line] for sign in (1, -1))
        if not log or all(b > 0 for _, b in lower):
            parts.append(marks.band([at(*point) for point in upper], [at(*point) for point in lower], place))
    places = [at(a, b) for a, b, *_ in line]
    parts.append(marks.line(places, f"line {colour}", marks.dash_of(place)))
    kind, size = ("dot", 2.8) if len(line) <= MARKED else ("touch", 5)
    touched = zip(places, said, strict=True) if len(line) <= TOUCHED else ()
    return parts + [marks.circle(spot, size, f"{kind} {colour}", words) for spot, words in touched]


def histogram(chart: Histogram) -> str:
    """Counts as bars on one another, stretches without any shaded."""
    slices = list(pairwise(chart.edges))
    totals = [sum(column) for column in zip(*chart.counts.values(), strict=True)]
    if not slices or not any(totals):
        return ""
    x, y = Axis.of(list(chart.edges), chart.x_kind, 0.0), Axis(0.0, 1.04 * max(totals))
    at, parts = marks.placed(x, y), marks.frame(chart.x, chart.y, x, y)
    parts += [marks.rect(at(start, y.high), at(stop, 0), "gap", said) for start, stop, said in chart.gaps]
    for place, (start, stop) in enumerate(slices):
        below = 0
        for kind, (name, counts) in enumerate(chart.counts.items()):
            if count := counts[place]:
                corner, (right, down) = at(start, below + count), at(stop, below)
                words = f"{name}: {x.shown(start)} to {x.shown(stop)}: {count:,}"
                parts.append(marks.rect(corner, (right - 0.6, down), f"bar c{kind}", words))
                below += count
    return marks.svg(parts, chart.title) + marks.legend(list(chart.counts), thick=True)


def bar_chart(chart: Bars) -> str:
    """A bar to the right per name, those of one kind under its heading, their values behind them."""
    rows = [(name, value) for own in chart.values.values() for name, value in own.items()]
    if not rows:
        return ""
    longest = int(0.4 * WIDTH / LETTER)
    left = 12 + 1.13 * LETTER * min(longest, max(len(name) for name, _ in rows))
    wide = (WIDTH - left - 56) / max(max(value for _, value in rows) - chart.low, 1e-9)
    up, parts = 14.0, []
    for kind, own in chart.values.items():
        parts.append(marks.text(0, up, kind, "start", "head"))
        for name, value in own.items():
            right, short = left + max(value - chart.low, 0) * wide, _short(name, longest)
            tone, said = "c0" if name == chart.own else "faint", f"{name}, {kind}: {value:.2f}"
            parts.append(marks.text(left - 6, up + 20, short, "end"))
            parts.append(marks.rect((left, up + 8), (right, up + 23), f"bar {tone}", said))
            parts.append(marks.text(right + 6, up + 20, f"{value:.2f}", "start"))
            up += 21
        up += 26
    parts.append(marks.text(left, up - 4, f"{chart.x}; bars begin at {number(chart.low)}", "start"))
    return marks.svg(parts, chart.title, up + 6)


def moves_chart(chart: Moves) -> str:
    """What adds and what takes away, bar by bar from a common zero, the base last."""
    parts, height = _moves(chart)
    return marks.svg(parts, chart.title, height)


def moves_alone(chart: Moves) -> str:
    """The same as a file of its own, on white."""
    parts, height = _moves(chart)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + HEAD:.0f}" '
        f'font-family="system-ui, sans-serif" class="chart"><style>{style()}</style>'
        f'<rect width="{WIDTH}" height="{height + HEAD:.0f}" fill="white"/>'
        f"{marks.text(8, 16, _short(chart.title, int(WIDTH / LETTER)), 'start', 'head')}{marks.title(chart.title)}"
        f'<g transform="translate(0 {HEAD - 10})">{"".join(parts)}</g></svg>\n'
    )


def _moves(chart: Moves) -> tuple[list[str], float]:
    rows = [*chart.parts, chart.base]
    values = [0.0, *(value for _, value in rows)]
    low, high = min(values), max(values)
    room = 7 * LETTER  # for a value beside its bar
    wide = (WIDTH - 2 * room) / ((high - low) or 1.0)
    zero, up = room - low * wide, 4.0
    parts = [marks.line([(zero, 2), (zero, 36 * len(rows))], "axis")]
    for place, (name, value) in enumerate(rows):
        ends = sorted((zero, zero + value * wide))
        tone = "faint" if place == len(chart.parts) else "c0" if value >= 0 else "c1"
        parts.append(marks.text(4, up + 12, _short(name, int(WIDTH / LETTER)), "start", "over"))
        parts.append(
            marks.rect((ends[0], up + 17), (ends[1], up + 30), f"bar {tone}", f"{name}: {value:+.3f}")
        )
        side = (ends[1] + 5, "start") if value >= 0 else (ends[0] - 5, "end")
        parts.append(marks.text(side[0], up + 28, f"{value:+.3f}", side[1]))
        up += 36
    return parts, up + 4


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
                f'height="{side + 0.3:.1f}" fill="{marks.shade(share)}"><title>{value:g}</title></rect>'
            )
    right = LEFT + columns * side + 14
    for step in range(20):
        tone = marks.shade(1 - step / 19)
        parts.append(f'<rect x="{right}" y="{TOP + step * 8}" width="12" height="8.3" fill="{tone}"/>')
    parts += [
        marks.text(right + 17, TOP + 9, f"{heat.high:g}", "start"),
        marks.text(right + 17, TOP + 160, f"{heat.low:g}", "start"),
        marks.text(LEFT + columns * side / 2, TOP + rows * side + 18, heat.x, "middle"),
        marks.text(LEFT - 8, TOP + rows * side / 2, heat.y, "end"),
    ]
    return marks.svg(parts, heat.title, max(TOP + rows * side + 30, TOP + 172))


def _short(name: str, most: int) -> str:
    """A name that fits, its end cut where it must be."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
