"""Draw charts as SVG without a script or a plotting library.

The charts stay sharp on paper, follow the light or dark colors of the page, and show the values of a mark when the
pointer rests on it. Colors are classes (`c0`, `c1`, ...) of charts.css: a page includes it once, a separate SVG file
contains it.
"""

import math
import textwrap
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

from dygmamba.report import svg
from dygmamba.report.document import BarChart, Chart, ContributionChart, HeatMap, Histogram, LineChart, Point
from dygmamba.report.svg import (
    BOTTOM,
    CHAR_WIDTH,
    COLOR_COUNT,
    DIGIT_WIDTH,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    format_number,
)

MAX_VISIBLE_POINTS = 24  # a longer curve shows a point only while the pointer is on it
MAX_HOVER_POINTS = 120  # a longer curve has no hover text: the page would grow too large
LINE_HEIGHT = 17  # of a line of text
HEADER_HEIGHT = 40  # space for title and legend above a chart in a file of its own


def draw_chart(chart: Chart) -> str:
    """Return the chart and its legend as HTML; an empty string if there is nothing to show."""
    functions: dict[type, Callable[..., str]] = {
        LineChart: draw_line_chart,
        Histogram: draw_histogram,
        BarChart: draw_bar_chart,
        ContributionChart: draw_contribution_chart,
        HeatMap: draw_heat_map,
    }
    return functions[type(chart)](chart)


def load_chart_css() -> str:
    return files("dygmamba.report").joinpath("charts.css").read_text("utf-8")


def draw_line_chart(chart: LineChart) -> str:
    """Draw curves, their bands and the legend."""
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
    x_values = [point[0] for point in points]
    x = Axis.from_values(list(chart.x_range or x_values), chart.x_kind, 0.0 if chart.x_range else 0.04)
    y = Axis.from_values(list(chart.y_range or heights), chart.y_kind, 0.0 if chart.y_range else 0.04)
    project = svg.make_projection(x, y)
    parts = svg.draw_axes(chart.x, chart.y, x, y, tuple(sorted(set(x_values))))
    if chart.diagonal:
        ends = [project(side, side) for side in (max(x.low, y.low), min(x.high, y.high))]
        parts.append(svg.draw_polyline(ends, "level", tooltip=chart.diagonal))
    for number, band in enumerate(chart.bands.values()):
        upper, lower = ([project(a, edges[which]) for a, *edges in band] for which in (1, 0))
        parts.append(svg.draw_band(upper, lower, number))
    # dots last, so that no line covers them; the number keeps the color of the legend
    order = sorted(enumerate(chart.series.items()), key=lambda entry: entry[1][0] in chart.dots)
    for number, (name, line) in order:
        default = [f"{name}: {x.format_value(a)}, {y.format_value(b)}" for a, b, *_ in line]
        tooltips = chart.tooltips.get(name) or default
        if name in chart.dots:
            css = f"dot c{number % COLOR_COUNT}"
            for (a, b, *_), text in zip(line, tooltips, strict=True):
                parts.append(svg.draw_circle(project(a, b), 3.2, css, text))
        else:
            parts += _draw_line(number, line, tooltips, project, y.is_log)
    if chart.level is not None:
        parts += _draw_level(*chart.level, points, x, y)
    return parts


def _draw_level(name: str, level: float, points: list[Point], x: Axis, y: Axis) -> list[str]:
    """Draw a horizontal line with its name, at the side where fewer points are in the way."""
    start, up = svg.make_projection(x, y)(x.start, level)
    ends = [(start, up), (WIDTH - RIGHT, up)]
    line = svg.draw_polyline(ends, "level", tooltip=f"{name}: {format_number(level)}")
    left, right = (_distance_to_level(points, level, x, half) for half in (0, 1))
    across, anchor = (start + 4, "start") if left > right else (WIDTH - RIGHT, "end")
    # above the line, or below it if the name of the y axis is there
    text_up = up - 5 if up > TOP + 14 else up + 14
    return [line, svg.draw_text(across, text_up, name, anchor, "over")]


def _distance_to_level(points: list[Point], level: float, x: Axis, half: int) -> float:
    """Return the smallest distance of the points in the left (0) or right (1) half of the chart to a level."""
    return min(
        (abs(y - level) for a, y, *_ in points if (x.fraction(a) > 0.5) == bool(half)), default=math.inf
    )


def _drop_unplottable_points(chart: LineChart) -> LineChart:
    """Drop points that are not positive on a logarithmic axis, such as memory that shrank."""
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


def _draw_line(
    number: int, line: list[Point], tooltips: list[str], project: svg.Projection, is_log: bool
) -> list[str]:
    """Draw a curve, its band if the points have a spread, and its points."""
    parts, color = [], f"c{number % COLOR_COUNT}"
    if line and len(line[0]) > 2:
        upper, lower = ([(a, b + sign * s) for a, b, s in line] for sign in (1, -1))
        if not is_log or all(b > 0 for _, b in lower):
            top, bottom = ([project(*point) for point in edge] for edge in (upper, lower))
            parts.append(svg.draw_band(top, bottom, number))
    positions = [project(a, b) for a, b, *_ in line]
    parts.append(svg.draw_polyline(positions, f"line {color}", svg.get_dash(number)))
    kind, radius = ("dot", 2.8) if len(line) <= MAX_VISIBLE_POINTS else ("touch", 5)
    hovered = zip(positions, tooltips, strict=True) if len(line) <= MAX_HOVER_POINTS else ()
    return parts + [svg.draw_circle(center, radius, f"{kind} {color}", text) for center, text in hovered]


def draw_histogram(chart: Histogram) -> str:
    """Draw stacked bars, and the stretches without any event shaded."""
    bins = list(pairwise(chart.edges))
    totals = [sum(column) for column in zip(*chart.counts.values(), strict=True)]
    if not bins or not any(totals):
        return ""
    x, y = Axis.from_values(list(chart.edges), chart.x_kind, 0.0), Axis(0.0, 1.04 * max(totals))
    project, parts = svg.make_projection(x, y), svg.draw_axes(chart.x, chart.y, x, y)
    for start, stop, tooltip in chart.gaps:
        parts.append(svg.draw_rect(project(start, y.high), project(stop, 0), "gap", tooltip))
    for number, (start, stop) in enumerate(bins):
        below = 0
        for color, (name, counts) in enumerate(chart.counts.items()):
            if count := counts[number]:
                corner, (right, down) = project(start, below + count), project(stop, below)
                tooltip = f"{name}, {x.format_value(start)} to {x.format_value(stop)}: {count:,}"
                # 0.6: a hairline between neighboring bars
                parts.append(svg.draw_rect(corner, (right - 0.6, down), f"bar c{color}", tooltip))
                below += count
    return svg.wrap_svg(parts, chart.title) + svg.draw_legend(list(chart.counts), thick=True)


def draw_bar_chart(chart: BarChart) -> str:
    """Draw horizontal bars under the heading of their group, each with its value."""
    rows = [(name, value) for group in chart.values.values() for name, value in group.items()]
    if not rows:
        return ""
    max_chars = int(0.45 * WIDTH / CHAR_WIDTH)
    left = 12 + CHAR_WIDTH * min(max_chars, max(len(name) for name, _ in rows))
    margin = 8 + DIGIT_WIDTH * max(len(f"{value:.2f}") for _, value in rows)  # for the value next to a bar
    marked = [value for group in chart.marks.values() for marks in group.values() for _, value in marks]
    scale = (WIDTH - left - margin) / max(max([*marked, *(value for _, value in rows)]) - chart.low, 1e-9)
    up, parts = 14.0, []
    for heading, group in chart.values.items():
        parts.append(svg.draw_text(0, up, heading, "start", "head"))
        for name, value in group.items():
            right = left + max(value - chart.low, 0) * scale
            color, tooltip = "c0" if name == chart.own else "faint", f"{name}, {heading}: {value:.2f}"
            parts.append(svg.draw_text(left - 6, up + 20, _truncate(name, max_chars), "end"))
            parts.append(svg.draw_rect((left, up + 8), (right, up + 23), f"bar {color}", tooltip))
            # beside the bar, or at the edge where dots may lie beside it
            beside = WIDTH - margin + 6 if marked else right + 6
            parts.append(svg.draw_text(beside, up + 20, f"{value:.2f}", "start"))
            for text, mark in chart.marks.get(heading, {}).get(name, ()):
                center = left + max(mark - chart.low, 0) * scale, up + 15.5
                parts.append(svg.draw_circle(center, 3, "dot c1", text))
            up += 21
        up += 26
    axis = f"{chart.x}; bars start at {format_number(chart.low)}"
    parts.append(svg.draw_text(min(left, max(0, WIDTH - CHAR_WIDTH * len(axis))), up - 4, axis, "start"))
    return svg.wrap_svg(parts, chart.title, up + 6)


def draw_contribution_chart(chart: ContributionChart) -> str:
    """Draw positive and negative terms from a common zero, the base last."""
    parts, height = _draw_contributions(chart)
    return svg.wrap_svg(parts, chart.title, height)


def render_contribution_svg(chart: ContributionChart) -> str:
    """Return the chart as an SVG file with its title, on white."""
    parts, height = _draw_contributions(chart)
    title = svg.draw_text(8, 16, _truncate(chart.title, int(WIDTH / CHAR_WIDTH)), "start", "head")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + HEADER_HEIGHT:.0f}" '
        f'font-family="system-ui, sans-serif" class="chart"><style>{load_chart_css()}</style>'
        f'<rect width="{WIDTH}" height="{height + HEADER_HEIGHT:.0f}" fill="white"/>'
        f"{title}{svg.draw_tooltip(chart.title)}"
        f'<g transform="translate(0 {HEADER_HEIGHT - 10})">{"".join(parts)}</g></svg>\n'
    )


def _draw_contributions(chart: ContributionChart) -> tuple[list[str], float]:
    """Return the elements and the height of the drawing."""
    rows = [*chart.parts, chart.base]
    values = [0.0, *(value for _, value in rows)]
    low, high = min(values), max(values)
    margin = 8 + DIGIT_WIDTH * max(len(f"{value:+.3f}") for value in values)  # for the value next to a bar
    scale = (WIDTH - 2 * margin) / ((high - low) or 1.0)
    zero, up, parts = margin - low * scale, 4.0, []
    for number, (name, value) in enumerate(rows):
        left, right = sorted((zero, zero + value * scale))
        color = "faint" if number == len(chart.parts) else "c0" if value >= 0 else "c1"
        for line in _wrap(name, int(WIDTH / DIGIT_WIDTH)):
            parts.append(svg.draw_text(4, up + 12, line, "start", "over"))
            up += LINE_HEIGHT
        parts.append(svg.draw_rect((left, up + 2), (right, up + 15), f"bar {color}", f"{name}: {value:+.3f}"))
        across, anchor = (right + 5, "start") if value >= 0 else (left - 5, "end")
        parts.append(svg.draw_text(across, up + 13, f"{value:+.3f}", anchor))
        up += 19
    return [svg.draw_polyline([(zero, 2), (zero, up)], "axis"), *parts], up + 4


def draw_heat_map(chart: HeatMap) -> str:
    """Draw a matrix in shades of one color, with a color bar."""
    rows, columns = len(chart.values), max((len(row) for row in chart.values), default=0)
    if not rows or not columns:
        return ""
    side = min((WIDTH - LEFT - 70) / columns, (HEIGHT - TOP - BOTTOM) / rows)
    parts = []
    for i, row in enumerate(chart.values):
        for j, value in enumerate(row):
            fraction = min(max((value - chart.low) / (chart.high - chart.low), 0.0), 1.0)
            # 0.3 wider than a cell: no white lines between cells
            parts.append(
                f'<rect x="{LEFT + j * side:.1f}" y="{TOP + i * side:.1f}" width="{side + 0.3:.1f}" '
                f'height="{side + 0.3:.1f}" fill="{svg.interpolate_color(fraction)}"><title>{value:g}</title></rect>'
            )
    right = LEFT + columns * side + 14
    for step in range(20):
        color = svg.interpolate_color(1 - step / 19)
        parts.append(f'<rect x="{right}" y="{TOP + step * 8}" width="12" height="8.3" fill="{color}"/>')
    parts += [
        svg.draw_text(right + 17, TOP + 9, f"{chart.high:g}", "start"),
        svg.draw_text(right + 17, TOP + 160, f"{chart.low:g}", "start"),
        svg.draw_text(LEFT + columns * side / 2, TOP + rows * side + 18, chart.x, "middle"),
        svg.draw_text(LEFT - 8, TOP + rows * side / 2, chart.y, "end"),
    ]
    return svg.wrap_svg(parts, chart.title, max(TOP + rows * side + 30, TOP + 172))


def _wrap(name: str, max_chars: int) -> list[str]:
    """Break a long name into at most two lines."""
    lines = textwrap.wrap(name, max_chars) or [""]
    return lines if len(lines) <= 2 else [lines[0], _truncate(" ".join(lines[1:]), max_chars)]


def _truncate(name: str, max_chars: int) -> str:
    return name if len(name) <= max_chars else f"{name[: max_chars - 1]}…"
