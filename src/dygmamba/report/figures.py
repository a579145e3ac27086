"""Pictures as plain values, whatever draws them (charts.py)."""

from dataclasses import dataclass, field
from typing import Literal

# whole numbers only; seconds since 1970 as dates; seconds on a logarithmic axis as durations
Kind = Literal["number", "count", "log", "date", "span"]
Point = tuple[float, ...]  # (x, y), or (x, y, spread)


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over one axis; `level` is a line across with a name, a band is named, of points (x, low, high).

    `note` is the sentence under the picture; `about` says of each point of a curve what a pointer resting on it shows.
    The curves in `dots` are points without a line.
    """

    title: str
    x: str
    y: str
    series: dict[str, list[Point]]
    x_kind: Kind = "number"
    y_kind: Kind = "number"
    level: tuple[str, float] | None = None
    bands: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    diagonal: str = ""  # what the line of equal x and y is called, where there is one
    note: str = ""
    about: dict[str, list[str]] = field(default_factory=dict)
    dots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per slice of an axis, by kind: `counts[kind][slice]` stand on one another; `edges` has one more.

    `gaps` are stretches in which nothing is, shaded.
    """

    title: str
    x: str
    y: str
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]
    x_kind: Kind = "number"
    gaps: tuple[tuple[float, float, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar to the right per name and kind: `values[kind][name]`; the name `own` stands out."""

    title: str
    x: str
    values: dict[str, dict[str, float]]
    own: str = ""
    low: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Moves:
    """Parts of a sum, a bar from zero each: right for what adds, left for what takes; `base` is their beginning."""

    title: str
    parts: tuple[tuple[str, float], ...]
    base: tuple[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Heat:
    """A matrix of numbers between `low` and `high`."""

    title: str
    x: str
    y: str
    values: tuple[tuple[float, ...], ...]
    low: float = -1.0
    high: float = 1.0
    note: str = ""


Picture = Lines | Histogram | Bars | Moves | Heat
