"""Which columns of a file without names are which: by their places, and the time by what it looks like."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dygmamba.data.formats.options import ReadOptions, require_column
from dygmamba.data.formats.sniff import Header, kind_of
from dygmamba.errors import FileError

EPOCH = (631_152_000, 4_102_444_800)  # 1990 to 2100 in seconds
TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def by_place(path: Path, header: Header, options: ReadOptions) -> ReadOptions:
    """The options with every column that was not named: the first two free ones are the ends, then the time."""
    if header.named:
        return options
    given = [options.src, options.dst, options.time, options.label, *options.features]
    given = [require_column(path, header.names, name) for name in given if name is not None]
    free = [name for name in header.names if name not in given]
    ends: dict[str, str] = {}
    for part in ("src", "dst"):
        if getattr(options, part) is None:
            ends[part] = free.pop(0) if free else ""
    if "" in ends.values() or (options.time is None and not free):
        raise FileError(
            f"{path} has {header.width} column{'s' * (header.width != 1)} and its first line looks like data, "
            f"but an event has a source, a destination and a time; check `delimiter`, or add the column"
        )
    time = options.time if options.time is not None else _time_of(path, header, free)
    return replace(options, **ends, time=time)


def unit_of(values: Sequence[float], whole: bool) -> str | None:
    """The unit in which most of these numbers are times from 1990 to 2100; only whole ones are parts of a second."""
    ordered = sorted(values)
    if not ordered:
        return None
    low, high = ordered[len(ordered) // 20], ordered[len(ordered) - 1 - len(ordered) // 20]
    for unit, ticks in TICKS.items():
        if EPOCH[0] * ticks <= low <= high < EPOCH[1] * ticks and (whole or ticks == 1):
            return unit
    return None


def _time_of(path: Path, header: Header, free: list[str]) -> str:
    """The one free column of dates or times since 1970, else the only one of numbers, else the one that never falls."""
    if len(free) == 1:
        return free[0]
    rows = [row for row in header.sample if len(row) == header.width]
    columns = {name: [row[header.names.index(name)].strip() for row in rows] for name in free}
    dated = [name for name, column in columns.items() if _is_dated(column)]
    numeric = [name for name, column in columns.items() if {*map(kind_of, column)} == {"number"}]
    rising = [name for name in numeric if _rises([float(field) for field in columns[name]])]
    for found in (dated, numeric if not dated else [], rising if not dated else []):
        if len(found) == 1:
            return found[0]
    options = " or ".join(f"`time={name}`" for name in (dated or rising or numeric or free)[:4])
    raise FileError(
        f"{path} has no column names, and its time may be one of several columns; say which with {options} "
        "(counted from 0)"
    )


def _is_dated(column: list[str]) -> bool:
    kinds = [kind_of(field) for field in column]
    if kinds.count("date") > 0.9 * len(kinds):
        return True
    numbers = [float(field) for field, kind in zip(column, kinds, strict=True) if kind == "number"]
    whole = all(field.lstrip("+-").isdigit() for field in column)
    return len(numbers) > 0.9 * len(kinds) and unit_of(numbers, whole) is not None


def _rises(numbers: list[float]) -> bool:
    """Whether they never fall and are not all the same."""
    return numbers == sorted(numbers) and numbers[0] < numbers[-1]
