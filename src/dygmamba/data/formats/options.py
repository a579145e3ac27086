"""What the user says about a file, and which of its columns plays which part."""

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dygmamba.errors import ConfigError, FileError, NotFoundError

COLUMNS = ("src", "dst", "time", "features", "label")
FORMATS = ("auto", "csv", "parquet", "jodie", "dyglib", "npz")
TIME_UNITS = {"auto": 0, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # ticks per second

USUAL_NAMES = {
    "src": ("src", "source", "u", "user_id", "user", "from", "sender", "src_id", "source_id", "from_id"),
    "dst": ("dst", "destination", "target", "v", "item_id", "item", "i", "to", "receiver", "dst_id", "to_id"),
    "time": ("time", "timestamp", "ts", "t", "datetime", "date", "created_at"),
}

Watch = Callable[[Iterator, int], Iterator]  # passes batches on, told how many to expect


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file of events; columns left at None are looked for under their usual names."""

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"
    fill: float | None = None  # stands in for missing feature values
    delimiter: str | None = None  # None: tab for .tsv, comma otherwise
    encoding: str = "utf-8"
    watch: Watch = field(default=lambda batches, expected: batches, compare=False)  # for a progress bar

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise ConfigError(
                f"time unit {self.time_unit!r} is unknown; choose among {', '.join(TIME_UNITS)}"
            )
        if self.delimiter is not None and not (len(self.delimiter) == 1 and self.delimiter.isascii()):
            raise ConfigError(f"delimiter {self.delimiter!r} is not one plain character; try ',', ';' or tab")

    def refuse(self, kind: str, *names: str) -> None:
        """Complain about choices that a file of this kind would have to ignore."""
        given = [name for name in names if getattr(self, name) != getattr(ReadOptions(), name)]
        if given:
            raise ConfigError(f"a {kind} file has a fixed meaning; leave out `{given[0]}`")


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns of one file by the part they play."""

    src: str
    dst: str
    time: str
    features: tuple[str, ...] = ()
    label: str | None = None

    @property
    def columns(self) -> list[str]:
        """Every column that is needed, once."""
        names = [self.src, self.dst, self.time, *self.features]
        return list(dict.fromkeys(names if self.label is None else [*names, self.label]))


def assign_roles(path: Path | str, names: Sequence[str], options: ReadOptions) -> Roles:
    """The columns that the options, or failing that the usual names, point at."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FileError(f"{path} has more than one column {_listed(twice)}; rename all but one")
    for name in (*options.features, *([options.label] if options.label is not None else [])):
        _require(path, names, name)
    src, dst, time = (_column(path, names, part, getattr(options, part)) for part in ("src", "dst", "time"))
    if len({src, dst, time}) < 3:
        raise ConfigError(
            f"source {src!r}, destination {dst!r} and time {time!r} must be three columns of {path}; "
            f"choose among {_listed(names)}"
        )
    return Roles(src, dst, time, options.features, options.label)


def _column(path: Path | str, names: Sequence[str], part: str, chosen: str | None) -> str:
    if chosen is not None:
        return _require(path, names, chosen)
    lower = {name.lower(): name for name in reversed(names)}
    for usual in USUAL_NAMES[part]:
        if usual in lower:
            return lower[usual]
    raise NotFoundError(
        f"cannot tell which column of {path} is the {part}; name it with `{part}` (columns: {_listed(names)})"
        + _hint(names)
    )


def _require(path: Path | str, names: Sequence[str], name: str) -> str:
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "; choose one of them"
    raise NotFoundError(f"{path} has no column {name!r}, it has {_listed(names)}{meant}" + _hint(names))


def _hint(names: Sequence[str]) -> str:
    if len(names) == 1 and any(mark in names[0] for mark in ";\t| "):
        return " - is the `delimiter` right?"
    if names and all(name.strip().lstrip("-").replace(".", "", 1).isdigit() for name in names):
        return " - the first line looks like data: add a line of column names"
    return ""


def _listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
