"""Pictures as SVG: no script, no package, sharp on paper, in the page's own colours on a dark screen.

Together with marks.py the one place that draws. A pointer resting on a mark shows its values. Colours are classes
(`c0`, `c1`, ...) of charts.css, which a page carries, and which a picture that stands alone has within it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

from dygmamba.report import svg
from dygmamba.report.document import BarChart, Chart, ContributionChart, HeatMap, Histogram, LineChart, Point
from dygmamba.report.svg import (
    BOTTOM,
    CHAR_WIDTH,
    COLOR_COUNT,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    format_number,
)

MAX_VISIBLE_POINTS = 24  # points of a curve that are seen as such; more are only felt by a pointer
MAX_HOVER_POINTS = 120  # points of a curve that a pointer can rest on
HEADER_HEIGHT = 40  # above a picture that stands alone: its name and its legend


def draw_chart(picture: Chart) -> str:
    """The picture and the legend under it; nothing where there is nothing to show."""
    ways: dict[type, Callable[..., str]] = {
        LineChart: draw_line_chart,
        Histogram: draw_histogram,
        BarChart: draw_bar_chart,
        ContributionChart: draw_contribution_chart,
        HeatMap: draw_heat_map,
    }
    return ways[type(picture)](picture)


def load_chart_css() -> str:
    """What gives the marks their colours."""
    return files("dygmamba.report").joinpath("charts.css").read_text("utf-8")


def render_svg_file(charts: Sequence[LineChart]) -> str:
    """Curves side by side as a file of their own, on white, each with its name and its legend above it."""
    wide, high = WIDTH * len(charts), HEIGHT + HEADER_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="system-ui, sans-serif" class="chart">',
        f"<style>{load_chart_css()}</style>",
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for place, chart in enumerate(charts):
        at, named = 8.0, []
        for number_, name in enumerate(chart.series):
            named.append(svg.draw_polyline(((at, 32), (at + 18, 32)), f"line c{number_ % COLOR_COUNT}"))
            named.append(svg.draw_text(at + 23, 36, name, "start"))
            at += 40 + CHAR_WIDTH * len(name)
        inner = f'<g transform="translate(0 {HEADER_HEIGHT})">{"".join(_draw_lines(chart))}</g>'
        head = svg.draw_text(8, 16, chart.title, "start", "head")
        parts.append(f'<g transform="translate({place * WIDTH} 0)">{head}{"".join(named)}{inner}</g>')
    return "\n".join([*parts, "</svg>", ""])


def draw_line_chart(chart: LineChart) -> str:
    """Curves with a band of their spread where they have one, and a legend under the picture."""
    parts = _draw_lines(chart)
    if not parts:
        return ""
    return svg.wrap_svg(parts, chart.title) + svg.draw_legend(
        list(chart.series), list(chart.bands), chart.diagonal, dots=chart.dots
    )


def _draw_lines(chart: LineChart) -> list[str]:
    chart = _drop_unplottable_points(chart)
    points = [point for line in chart.series.values() for point in line]
    if not points:
        return []
    heights = [y + sign * (spread[0] if spread else 0) for _, y, *spread in points for sign in (-1, 1)]
    heights += [edge for band in chart.bands.values() for _, *edges in band for edge in edges]
    heights += [chart.level[1]] if chart.level else []
    across = [point[0] for point in points]
    x = Axis.of(list(chart.x_range or across), chart.x_kind, 0.0 if chart.x_range else 0.04)
    y = Axis.of(list(chart.y_range or heights), chart.y_kind, 0.0 if chart.y_range else 0.04)
    at, parts = svg.make_projection(x, y), svg.draw_axes(chart.x, chart.y, x, y, tuple(sorted(set(across))))
    if chart.diagonal:
        ends = [at(side, side) for side in (max(x.low, y.low), min(x.high, y.high))]
        parts.append(svg.draw_polyline(ends, "level", said=chart.diagonal))
    for place, edges in enumerate(chart.bands.values()):
        upper, lower = ([at(a, sides[which]) for a, *sides in edges] for which in (1, 0))
        parts.append(svg.draw_band(upper, lower, place))
    for place, (name, line) in sorted(
        enumerate(chart.series.items()), key=lambda one: one[1][0] in chart.dots
    ):
        said = chart.about.get(name) or [f"{name}: {x.shown(a)}, {y.shown(b)}" for a, b, *_ in line]
        lone = svg.draw_dots([at(a, b) for a, b, *_ in line], said, place) if name in chart.dots else None
        parts += _draw_line(place, line, said, at, y.log) if lone is None else lone
    if chart.level is not None:
        name, level = chart.level
        up = at(x.first, level)[1]
        parts.append(
            svg.draw_polyline(
                [(LEFT, up), (WIDTH - RIGHT, up)], "level", said=f"{name}: {format_number(level)}"
            )
        )
        left, right = (_distance_to_level(points, level, x, half) for half in (0, 1))
        side = (LEFT + 4, "start") if left > right else (WIDTH - RIGHT, "end")
        parts.append(svg.draw_text(side[0], up - 5, name, side[1], "over"))
    return parts


def _distance_to_level(points: list[Point], level: float, x: Axis, half: int) -> float:
    """How near to a level the points in one half of the picture come."""
    return min((abs(y - level) for a, y, *_ in points if (x.share(a) > 0.5) == bool(half)), default=math.inf)


def _drop_unplottable_points(chart: LineChart) -> LineChart:
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


def _draw_line(place: int, line: list[Point], said: list[str], at: svg.Projection, log: bool) -> list[str]:
    """A curve, the band of its spread, and its points."""
    parts, colour = [], f"c{place % COLOR_COUNT}"
    if line and len(line[0]) > 2:
        upper, lower = ([(a, b + sign * s) for a, b, s in line] for sign in (1, -1))
        if not log or all(b > 0 for _, b in lower):
            parts.append(
                svg.draw_band([at(*point) for point in upper], [at(*point) for point in lower], place)
            )
    places = [at(a, b) for a, b, *_ in line]
    parts.append(svg.draw_polyline(places, f"line {colour}", svg.get_dash(place)))
    kind, size = ("dot", 2.8) if len(line) <= MAX_VISIBLE_POINTS else ("touch", 5)
    touched = zip(places, said, strict=True) if len(line) <= MAX_HOVER_POINTS else ()
    return parts + [svg.draw_circle(spot, size, f"{kind} {colour}", words) for spot, words in touched]


def draw_histogram(chart: Histogram) -> str:
    """Counts as bars on one another, stretches without any shaded."""
    slices = list(pairwise(chart.edges))
    totals = [sum(column) for column in zip(*chart.counts.values(), strict=True)]
    if not slices or not any(totals):
        return ""
    x, y = Axis.of(list(chart.edges), chart.x_kind, 0.0), Axis(0.0, 1.04 * max(totals))
    at, parts = svg.make_projection(x, y), svg.draw_axes(chart.x, chart.y, x, y)
    parts += [svg.draw_rect(at(start, y.high), at(stop, 0), "gap", said) for start, stop, said in chart.gaps]
    for place, (start, stop) in enumerate(slices):
        below = 0
        for kind, (name, counts) in enumerate(chart.counts.items()):
            if count := counts[place]:
                corner, (right, down) = at(start, below + count), at(stop, below)
                words = f"{name}: {x.shown(start)} to {x.shown(stop)}: {count:,}"
                parts.append(svg.draw_rect(corner, (right - 0.6, down), f"bar c{kind}", words))
                below += count
    return svg.wrap_svg(parts, chart.title) + svg.draw_legend(list(chart.counts), thick=True)


def draw_bar_chart(chart: BarChart) -> str:
    """A bar to the right per name, those of one kind under its heading, their values behind them."""
    rows = [(name, value) for own in chart.values.values() for name, value in own.items()]
    if not rows:
        return ""
    longest = int(0.4 * WIDTH / CHAR_WIDTH)
    left = 12 + 1.13 * CHAR_WIDTH * min(longest, max(len(name) for name, _ in rows))
    wide = (WIDTH - left - 56) / max(max(value for _, value in rows) - chart.low, 1e-9)
    up, parts = 14.0, []
    for kind, own in chart.values.items():
        parts.append(svg.draw_text(0, up, kind, "start", "head"))
        for name, value in own.items():
            right, short = left + max(value - chart.low, 0) * wide, _truncate(name, longest)
            tone, said = "c0" if name == chart.own else "faint", f"{name}, {kind}: {value:.2f}"
            parts.append(svg.draw_text(left - 6, up + 20, short, "end"))
            parts.append(svg.draw_rect((left, up + 8), (right, up + 23), f"bar {tone}", said))
            parts.append(svg.draw_text(right + 6, up + 20, f"{value:.2f}", "start"))
            up += 21
        up += 26
    parts.append(svg.draw_text(left, up - 4, f"{chart.x}; bars begin at {format_number(chart.low)}", "start"))
    return svg.wrap_svg(parts, chart.title, up + 6)


def draw_contribution_chart(chart: ContributionChart) -> str:
    """What adds and what takes away, bar by bar from a common zero, the base last."""
    parts, height = _draw_contributions(chart)
    return svg.wrap_svg(parts, chart.title, height)


def render_contribution_svg(chart: ContributionChart) -> str:
    """The same as a file of its own, on white."""
    parts, height = _draw_contributions(chart)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + HEADER_HEIGHT:.0f}" '
        f'font-family="system-ui, sans-serif" class="chart"><style>{load_chart_css()}</style>'
        f'<rect width="{WIDTH}" height="{height + HEADER_HEIGHT:.0f}" fill="white"/>'
        f"{svg.draw_text(8, 16, _truncate(chart.title, int(WIDTH / CHAR_WIDTH)), 'start', 'head')}{svg.draw_tooltip(chart.title)}"
        f'<g transform="translate(0 {HEADER_HEIGHT - 10})">{"".join(parts)}</g></svg>\n'
    )


def _draw_contributions(chart: ContributionChart) -> tuple[list[str], float]:
    rows = [*chart.parts, chart.base]
    values = [0.0, *(value for _, value in rows)]
    low, high = min(values), max(values)
    room = 7 * CHAR_WIDTH  # for a value beside its bar
    wide = (WIDTH - 2 * room) / ((high - low) or 1.0)
    zero, up = room - low * wide, 4.0
    parts = [svg.draw_polyline([(zero, 2), (zero, 36 * len(rows))], "axis")]
    for place, (name, value) in enumerate(rows):
        ends = sorted((zero, zero + value * wide))
        tone = "faint" if place == len(chart.parts) else "c0" if value >= 0 else "c1"
        parts.append(svg.draw_text(4, up + 12, _truncate(name, int(WIDTH / CHAR_WIDTH)), "start", "over"))
        parts.append(
            svg.draw_rect((ends[0], up + 17), (ends[1], up + 30), f"bar {tone}", f"{name}: {value:+.3f}")
        )
        side = (ends[1] + 5, "start") if value >= 0 else (ends[0] - 5, "end")
        parts.append(svg.draw_text(side[0], up + 28, f"{value:+.3f}", side[1]))
        up += 36
    return parts, up + 4


def draw_heat_map(heat: HeatMap) -> str:
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
                f'height="{side + 0.3:.1f}" fill="{svg.interpolate_color(share)}"><title>{value:g}</title></rect>'
            )
    right = LEFT + columns * side + 14
    for step in range(20):
        tone = svg.interpolate_color(1 - step / 19)
        parts.append(f'<rect x="{right}" y="{TOP + step * 8}" width="12" height="8.3" fill="{tone}"/>')
    parts += [
        svg.draw_text(right + 17, TOP + 9, f"{heat.high:g}", "start"),
        svg.draw_text(right + 17, TOP + 160, f"{heat.low:g}", "start"),
        svg.draw_text(LEFT + columns * side / 2, TOP + rows * side + 18, heat.x, "middle"),
        svg.draw_text(LEFT - 8, TOP + rows * side / 2, heat.y, "end"),
    ]
    return svg.wrap_svg(parts, heat.title, max(TOP + rows * side + 30, TOP + 172))


def _truncate(name: str, most: int) -> str:
    """A name that fits, its end cut where it must be."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
