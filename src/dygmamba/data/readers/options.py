"""What the user says about a file, and which of its columns plays which part.

What a table that this package made says of itself, so that reading it again needs no options.

It travels beside the columns: in an Arrow schema (and so in Parquet and Arrow files), in the `attrs` of a data frame.
What the reader is told goes before it; a note that does not fit its table is as good as none.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, FileError, NotFoundError
from dygmamba.core.memory_budget import DEFAULT_BUDGET

COLUMN_OPTIONS = ("src", "dst", "time", "features", "label")
FIXED_OPTIONS = (
    "bipartite",
    "time_unit",
    "time_format",
    "fill",
    "skip_bad",
    "header",
)  # what files of arrays settle
FORMATS = (
    *("auto", "csv", "jsonl", "parquet", "arrow", "jodie", "dyglib", "npz"),
    *("tgb", "tgb-seq", "relbench"),
)
# ticks per second; auto: by their size, plain: numbers that are no times since 1970
TIME_UNITS = {"auto": 0, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000, "plain": 0}

USUAL_NAMES = {
    "src": (
        *("src", "source", "u", "user_id", "user", "from", "sender", "src_id", "source_id", "from_id"),
        *("fromnodeid", "from_node_id", "sender_id", "user_from", "caller", "payer", "buyer", "rater"),
    ),
    "dst": (
        *("dst", "destination", "target", "v", "item_id", "item", "i", "to", "receiver", "dst_id", "to_id"),
        *(
            "tonodeid",
            "to_node_id",
            "receiver_id",
            "recipient",
            "user_to",
            "callee",
            "payee",
            "seller",
            "ratee",
        ),
        *("target_id", "destination_id"),
    ),
    "time": (
        *("time", "timestamp", "ts", "t", "datetime", "date", "created_at", "unixts", "unix_time", "epoch"),
        *("event_time", "occurred_at", "sent_at", "sent"),
    ),
}

BatchObserver = Callable[[Iterator, int], Iterator]  # passes batches on, told how many to expect


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file of events; columns left at None are looked for under their usual names.

    A column is called by its name, or by its place from 0 where no column has that name.
    """

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"
    fill: float | None = None  # stands in for missing feature values
    delimiter: str | None = None  # None: found out; a blank stands for runs of blanks
    encoding: str = "utf-8"
    header: bool | None = None  # whether the first line names the columns; None: found out
    time_format: str | None = None  # as strptime has it; None: found out
    date_order: str = ""  # of day and month, where dates leave it open: dmy or mdy
    skip_bad: bool = False  # go on without rows that cannot be read
    any_id: bool = False  # "none" and "null" are ids like any other, as in a published table
    memory: int = DEFAULT_BUDGET  # bytes that the rows may take before they are sorted on the disk
    scratch: Path | None = None  # where they lie meanwhile; None: in the system's temporary folder
    watch: BatchObserver = field(
        default=lambda batches, expected: batches, compare=False
    )  # for a progress bar

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise ConfigError(
                f"time unit {self.time_unit!r} is unknown; choose among {', '.join(TIME_UNITS)}"
            )
        if self.time_format is not None:
            check_time_format(self.time_format)
        plain = self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter.isascii())
        if not plain or self.delimiter in ('"', "\r", "\n", "\0"):
            raise ConfigError(f"delimiter {self.delimiter!r} is not one plain character; try ',', ';' or tab")

    def refuse(self, kind: str, *names: str) -> None:
        """Complain about choices that a file of this kind would have to ignore."""
        given = [name for name in names if getattr(self, name) != getattr(ReadOptions(), name)]
        if given:
            raise ConfigError(f"a {kind} file has a fixed meaning; leave out `{given[0]}`")


@dataclass(frozen=True, slots=True)
class ColumnRoles:
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


def assign_roles(path: Path | str, names: Sequence[str], options: ReadOptions) -> ColumnRoles:
    """The columns that the options, or failing that the usual names, point at."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FileError(f"{path} has more than one column {_format_names(twice)}; rename all but one")
    features = tuple(require_column(path, names, name) for name in options.features)
    label = None if options.label is None else require_column(path, names, options.label)
    src, dst, time = (
        _find_column(path, names, part, getattr(options, part)) for part in ("src", "dst", "time")
    )
    if len({src, dst, time}) < 3:
        raise ConfigError(
            f"source {src!r}, destination {dst!r} and time {time!r} must be three columns of {path}; "
            f"choose among {_format_names(names)}"
        )
    return ColumnRoles(src, dst, time, features, label)


def _find_column(path: Path | str, names: Sequence[str], part: str, chosen: str | None) -> str:
    if chosen is not None:
        return require_column(path, names, chosen)
    found = find_usual_column(names, part)
    if found is not None:
        return found
    raise NotFoundError(
        f"cannot tell which column of {path} is the {part}; name it with `{part}` (columns: {_format_names(names)})"
        + _column_hint(names)
    )


def find_usual_column(names: Sequence[str], part: str) -> str | None:
    """The column that has a usual name for this part."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[usual] for usual in USUAL_NAMES[part] if usual in lower), None)


def require_column(path: Path | str, names: Sequence[str], name: str) -> str:
    """The column of this name, or at this place."""
    if name in names:
        return name
    if name.isascii() and name.isdigit() and int(name[:9]) < len(names):
        return names[int(name[:9])]
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "; choose one of them"
    raise NotFoundError(
        f"{path} has no column {name!r}, it has {_format_names(names)}{meant}" + _column_hint(names)
    )


def _column_hint(names: Sequence[str]) -> str:
    if len(names) == 1 and any(mark in names[0] for mark in ";\t| "):
        return " - is the `delimiter` right?"
    if tuple(names) == tuple(map(str, range(len(names)))):
        return " - the first line looks like an event, so columns are counted from 0: give `header=True` if it is none"
    return ""


def check_time_format(text: str) -> None:
    """Refuse a format of dates that strptime does not read, or that leaves the day open."""
    try:
        datetime.strptime(datetime(2001, 2, 13, 14, 15, 16, 17, UTC).strftime(text), text)
    except (ValueError, re.error) as error:
        raise ConfigError(
            f"time format {text!r} is none ({error}); write it like '%d.%m.%Y %H:%M'"
        ) from error
    found = set(re.findall(r"%-?([A-Za-z%])", text))
    dated = {"Y", "y"} & found and ("j" in found or ("d" in found and {"m", "b", "B"} & found))
    if not (dated or {"c", "x"} & found):
        raise ConfigError(f"time format {text!r} has no year, month and day; write it like '%d.%m.%Y %H:%M'")


def _format_names(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


METADATA_KEY = "dygmamba"


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Which columns are features and which the label, whether there are two sides, what numbers of time count."""

    features: tuple[str, ...] = ()
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"

    def note(self) -> str:
        """As it travels."""
        about = {"features": list(self.features), "label": self.label, "bipartite": self.bipartite}
        return json.dumps(about | {"time_unit": self.time_unit})

    def fill(self, options: ReadOptions, names: Sequence[str], bipartite: bool | None = None) -> ReadOptions:
        """The options, what was left open in them as the table says; `bipartite` is what the reader was told of it."""
        features = tuple(name for name in self.features if name in names)
        label = self.label if self.label in names else None
        return replace(
            options,
            features=options.features or features,
            label=options.label or label,
            bipartite=options.bipartite or (self.bipartite and bipartite is None),
            time_unit=self.time_unit if options.time_unit == "auto" else options.time_unit,
        )


def read_table_metadata(metadata: Mapping[Any, Any] | None) -> TableMetadata:
    """What a schema's metadata, or a frame's attrs, say; nothing where they say nothing that can be understood."""
    held = metadata or {}
    note = held.get(METADATA_KEY.encode(), held.get(METADATA_KEY))
    try:
        about = json.loads(note) if isinstance(note, str | bytes) else {}
        unit = about.get("time_unit", "auto")
        return TableMetadata(
            tuple(map(str, about.get("features", ()))),
            None if about.get("label") is None else str(about["label"]),
            about.get("bipartite") is True,
            unit if unit in TIME_UNITS else "auto",
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return TableMetadata()
