"""What pictures are made of: a frame with its names and round values, lines, bands, words, a legend."""

from collections.abc import Callable, Sequence
from html import escape

from dygmamba.report.axes import Axis

WIDTH, HEIGHT = 440, 290  # a telephone shows them nearly 1:1
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 26, 46
COLOURS, DASHES = 8, ("", "6 3", "2 3")
LETTER = 6.6  # about as wide as one is

Place = tuple[float, float]
At = Callable[[float, float], Place]


def placed(x: Axis, y: Axis) -> At:
    """From values to places in the picture."""

    def at(a: float, b: float) -> Place:
        across = LEFT + x.share(a) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y.share(b) * (HEIGHT - TOP - BOTTOM)

    return at


def frame(x_name: str, y_name: str, x: Axis, y: Axis, places: tuple[float, ...] = ()) -> list[str]:
    """What is measured, in which unit, and round values of it."""
    parts, at, floor = [], placed(x, y), HEIGHT - BOTTOM
    for tick, said in y.ticks():
        up = at(x.first, tick)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up:.1f}" y2="{up:.1f}" class="grid"/>')
        parts.append(text(LEFT - 6, up + 4, said, "end"))
    for tick, said in x.ticks(places):
        across, half = at(tick, y.first)[0], LETTER / 2 * len(said)
        parts.append(
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{floor}" y2="{floor + 4}" class="axis"/>'
        )
        inside = min(max(across, half), WIDTH - half)  # a long label at an edge is moved
        parts.append(text(inside, floor + 17, said, "middle"))
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="axis"/>')
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    parts.append(text(4, 14, y_name, "start"))
    return parts


def line(places: Sequence[Place], kind: str, dash: str = "", said: str = "") -> str:
    """A line through these places."""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" class="{kind}"{dashed}>{title(said)}</polyline>'


def rect(corner: Place, opposite: Place, kind: str, said: str) -> str:
    """A rectangle between two corners, the first of them above and to the left."""
    (left, up), (right, down) = corner, opposite
    size = f'width="{max(right - left, 0.5):.1f}" height="{max(down - up, 0.5):.1f}"'
    return f'<rect x="{left:.1f}" y="{up:.1f}" {size} class="{kind}">{title(said)}</rect>'


def circle(place: Place, size: float, kind: str, said: str) -> str:
    """A point of a curve."""
    return f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{size}" class="{kind}">{title(said)}</circle>'


def dots(places: Sequence[Place], said: Sequence[str], number: int) -> list[str]:
    """All points of a curve without a line, in the colour of this number."""
    tone = f"dot c{number % COLOURS}"
    return [circle(place, 3.2, tone, words) for place, words in zip(places, said, strict=True)]


def band(upper: Sequence[Place], lower: Sequence[Place], number: int) -> str:
    """What lies between two lines, in the colour of this number."""
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
    return f'<polygon points="{corners}" class="band c{number % COLOURS}"/>'


def text(x: float, y: float, said: str, anchor: str, kind: str = "") -> str:
    """Words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(said)}</text>'


def title(said: str) -> str:
    """What a pointer that rests on a mark shows."""
    return f"<title>{escape(said)}</title>" if said else ""


def svg(parts: Sequence[str], name: str, height: float = HEIGHT) -> str:
    """A picture as part of a page."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}" class="chart">'
    return head + "".join(parts) + "</svg>"


def dash_of(number: int) -> str:
    """How the line of this number is dashed: colours come round again."""
    return DASHES[number // COLOURS % len(DASHES)]


def legend(
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
            circle((11, 4), 3.5, f"dot c{number % COLOURS}", "")
            if name in dots
            else line(((0, 4), (22, 4)), f"{kind} c{number % COLOURS}", dash_of(number)),
            name,
        )
        for number, name in enumerate(lines)
    ]
    marks += [(rect((0, 0), (22, 8), f"band c{number}", ""), name) for number, name in enumerate(bands)]
    marks += [(line(((0, 4), (22, 4)), "level"), across)] if across else []
    if len(marks) < 2:
        return ""
    rows = (
        f'<li><svg viewBox="0 0 22 8" class="key">{mark}</svg>{escape(name)}</li>' for mark, name in marks
    )
    return f'<ul class="legend">{"".join(rows)}</ul>'


def shade(share: float) -> str:
    """From white to the first colour."""
    light, dark = (247, 250, 252), (0, 84, 140)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(light, dark, strict=True))
