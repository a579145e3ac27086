"""Read options, the roles of columns, and the metadata that tables exported by this package carry."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dygmamba.core.choices import FORMATS as FORMATS
from dygmamba.core.errors import ConfigError, FileError, NotFoundError
from dygmamba.core.memory_budget import DEFAULT_BUDGET
from dygmamba.data.events.origin import Origin

COLUMN_OPTIONS = ("src", "dst", "time", "features", "types", "columns", "label")
# options that a file of arrays has no use for: its layout is fixed
FIXED_OPTIONS = ("bipartite", "time_unit", "time_format", "fill", "skip_bad", "header")
TABLE_FORMAT = "table"  # of the origin of a dataset that was read from memory
TGB_FORMAT = "tgb"  # its tables name nodes "none" and "null"
# ticks per second; auto: detected from their size, plain: numbers that do not count from 1970
TIME_UNITS = {"auto": 0, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000, "plain": 0}

# column names by role, in lower case; of several present the first in this list is taken
USUAL_NAMES = {
    "src": (
        *("src", "source", "u", "user_id", "user", "from", "sender", "src_id", "source_id", "from_id"),
        *("fromnodeid", "from_node_id", "sender_id", "user_from", "caller", "payer", "buyer", "rater", "who"),
    ),
    "dst": (
        *("dst", "destination", "target", "v", "item_id", "item", "i", "to", "receiver", "dst_id", "to_id"),
        *("tonodeid", "to_node_id", "receiver_id", "recipient", "user_to", "callee", "payee", "seller"),
        *("ratee", "target_id", "destination_id", "whom"),
    ),
    "time": (
        *("time", "timestamp", "ts", "t", "datetime", "date", "created_at", "unixts", "unix_time", "epoch"),
        *("event_time", "occurred_at", "sent_at", "sent", "when"),
    ),
}

LABEL_NAMES = ("label", "labels", "state_label", "y", "class")  # not taken as features unless they are named

# wraps an iterator of batches, given how many to expect, and passes them on
BatchObserver = Callable[[Iterator, int], Iterator]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options to read a file of events; a column left at None is searched under its usual names.

    A column is given by its name, or by its position from 0 if no column has that name.
    """

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # categorical columns
    columns: bool = True  # read every other column that is usable, unless features or types are given
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"
    fill: float | None = None  # replaces missing feature values
    decimal: str | None = None  # decimal mark of feature values, "." or ","; None: detected
    delimiter: str | None = None  # None: detected; a blank stands for runs of blanks and tabs
    encoding: str = "utf-8"
    header: bool | None = None  # whether the first line names the columns; None: detected
    time_format: str | None = None  # as in strptime; None: detected
    date_order: str = ""  # dmy or mdy, used where the dates themselves are ambiguous
    query: str | None = None  # of a database file: the rows to read
    skip_bad: bool | None = None  # leave out rows that cannot be read; None: the caller has no such option
    allow_absent: bool = False  # fill features that the table lacks as a whole, and leave categories empty
    any_id: bool = False  # accept "none" and "null" as ids, as published tables use them
    memory: int = DEFAULT_BUDGET  # bytes that rows may take before they are sorted on disk
    scratch: Path | None = None  # folder for sorting on disk; None: the system's temporary folder
    watch: BatchObserver = field(default=lambda batches, expected: batches, compare=False)  # shows progress

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise ConfigError(
                f"time unit {self.time_unit!r} is unknown; choose one of {', '.join(TIME_UNITS)}",
                code="unknown-time-unit",
            )
        if self.time_format is not None:
            check_time_format(self.time_format)
        if self.decimal not in (None, ".", ","):
            raise ConfigError(
                f"`decimal` takes '.' or ','; got {self.decimal!r}", code="unknown-decimal-mark"
            )
        plain = self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter.isascii())
        if not plain or self.delimiter in ('"', "\r", "\n", "\0"):
            raise ConfigError(
                f"delimiter {self.delimiter!r} is not one plain character; try ',', ';' or tab",
                code="bad-delimiter",
            )

    def recall(self, origin: Origin) -> "ReadOptions":
        """Fill in how the dataset's own file was read: encoding, decimal mark, fill value and words that are ids."""
        return replace(
            self,
            encoding=origin.encoding or self.encoding if self.encoding == "utf-8" else self.encoding,
            decimal=self.decimal or origin.decimal or None,
            fill=float(origin.fill) if self.fill is None and origin.fill else self.fill,
            any_id=self.any_id or origin.format == TGB_FORMAT,
        )

    def resemble(self, origin: Origin, bipartite: bool) -> "ReadOptions":
        """Fill in how the dataset's own file was read: also its columns and its times.

        Features that a file lacks altogether are filled only if a fill value is given with this file.
        """
        names = {role: getattr(self, role) or getattr(origin, role) or None for role in USUAL_NAMES}
        time_format = origin.time_format if self.time_unit == "auto" else ""
        is_plain = self.time_unit == "auto" and not origin.guessed and not origin.time_origin
        return replace(
            self.recall(origin),
            **names,
            features=self.features or origin.features,
            types=self.types or origin.types,
            columns=False,
            allow_absent=self.fill is not None,
            bipartite=bipartite,
            time_format=self.time_format or time_format or None,
            date_order=origin.order,
            time_unit="plain" if is_plain and not (self.time_format or time_format) else self.time_unit,
        )

    def reject(self, kind: str, *names: str) -> None:
        """Raise ConfigError if one of these options is set; a file of this kind would ignore it."""
        default = ReadOptions(skip_bad=None if self.skip_bad else self.skip_bad)
        given = [name for name in names if getattr(self, name) != getattr(default, name)]
        if given:
            raise ConfigError(
                f"`{given[0]}` does not apply to {kind} files, whose layout is fixed; leave it out",
                code="option-not-applicable",
            )


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """Columns of a file by role: source, destination, time, features, categories and label."""

    src: str
    dst: str
    time: str
    features: tuple[str, ...] = ()
    label: str | None = None
    types: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()  # columns that become features or categories if they are usable
    unused: Mapping[str, str] = field(default_factory=dict)  # columns that play no role, with the reason
    names: tuple[str, ...] = ()  # of all columns, in the order of the file
    absent: tuple[str, ...] = ()  # features and categories that the file lacks, to be filled

    @property
    def columns(self) -> list[str]:
        """Every needed column, once."""
        names = [self.src, self.dst, self.time, *self.features, *self.types, *self.candidates]
        names = names if self.label is None else [*names, self.label]
        return [name for name in dict.fromkeys(names) if name not in self.absent]


def require_distinct_names(path: Path | str, names: Sequence[str]) -> None:
    """Raise FileError if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise FileError(
            f"{path} has more than one column {_format_names(repeated)}; rename all but one",
            code="duplicate-column",
        )


def assign_roles(path: Path | str, names: Sequence[str], options: ReadOptions) -> ColumnRoles:
    """Choose the columns by the options, else by their usual names."""
    require_distinct_names(path, names)
    chosen = (*options.features, *options.types)
    absent = tuple(name for name in chosen if options.allow_absent and name not in names)
    features, types = (
        tuple(name if name in absent else require_column(path, names, name) for name in part)
        for part in (options.features, options.types)
    )
    twice = [name for name in types if name in features]
    if twice:
        raise ConfigError(
            f"column {twice[0]!r} is in `features` and in `types`; a column is numeric or categorical, leave it out "
            "of one",
            code="columns-not-distinct",
        )
    label = None if options.label is None else require_column(path, names, options.label)
    src, dst, time = _find_columns(path, names, options)
    if len({src, dst, time}) < 3:
        raise ConfigError(
            f"source {src!r}, destination {dst!r} and time {time!r} must be three different columns of {path}; "
            f"choose from {_format_names(names)}",
            code="columns-not-distinct",
        )
    roles = ColumnRoles(src, dst, time, features, label, types, names=tuple(names), absent=absent)
    # pandas and DyGLib write a row number into a first column without a name: nobody misses that one
    used = {*roles.columns, ""}
    rest = [name for name in names if name not in used]
    if not options.columns or features or types:
        return replace(roles, unused=dict.fromkeys(rest, "is not among the chosen columns"))
    unused = {name: reason for name in rest if (reason := _find_reason_to_skip(name))}
    return replace(roles, candidates=tuple(name for name in rest if name not in unused), unused=unused)


def _find_reason_to_skip(name: str) -> str:
    """Return why a column is not read unless it is chosen, by its name; empty if nothing speaks against it."""
    if name.lower() in LABEL_NAMES:
        return "may be a label (`label` reads it)"
    if any(name.lower() in usual for usual in USUAL_NAMES.values()):
        return "may be another source, destination or time"
    return ""


def _find_columns(path: Path | str, names: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the columns of source, destination and time."""
    columns, missing = [], []
    for role in USUAL_NAMES:
        chosen = getattr(options, role)
        column = find_usual_column(names, role) if chosen is None else require_column(path, names, chosen)
        if column is None:
            missing.append(role)
        else:
            columns.append(column)
    if missing:
        one, named = len(missing) == 1, _join([f"`{role}`" for role in missing])
        raise NotFoundError(
            f"cannot tell which {'column' if one else 'columns'} of {path} {'is the' if one else 'are'} "
            f"{_join(missing)}; name {'it' if one else 'them'} with {named} (columns: {_format_names(names)})"
            + _column_hint(names),
            code="column-not-recognized",
        )
    return columns


def find_usual_column(names: Sequence[str], role: str) -> str | None:
    """Find the column with a usual name for this role, ignoring case, else with one behind a prefix (item.u)."""
    by_lower_case = {name.lower(): name for name in reversed(names)}
    without_prefix = {re.split(r"[.:/]", name.lower())[-1]: name for name in reversed(names)}
    found = [
        by[usual] for by in (by_lower_case, without_prefix) for usual in USUAL_NAMES[role] if usual in by
    ]
    return found[0] if found else None


def require_column(path: Path | str, names: Sequence[str], name: str) -> str:
    """Return the column of this name or at this position; raise NotFoundError if there is none."""
    if name in names:
        return name
    if name.isascii() and name.isdigit() and int(name[:9]) < len(names):
        return names[int(name[:9])]
    close = difflib.get_close_matches(name, names, n=1)
    advice = f"; did you mean {close[0]!r}?" if close else "; choose one of them"
    raise NotFoundError(
        f"{path} has no column {name!r}, it has {_format_names(names)}{advice}" + _column_hint(names),
        code="unknown-column",
    )


def _join(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def _column_hint(names: Sequence[str]) -> str:
    if len(names) == 1 and any(mark in names[0] for mark in ";\t| "):
        return " - is the `delimiter` right?"
    if tuple(names) == tuple(map(str, range(len(names)))):
        return (
            " - the first line looks like an event, so columns are numbered from 0: "
            "give `header=True` if it names the columns"
        )
    return ""


def check_time_format(text: str) -> None:
    """Raise ConfigError unless strptime can read the format and it has a year, month and day."""
    example = "write it like '%d.%m.%Y %H:%M'"
    try:
        datetime.strptime(datetime(2001, 2, 13, 14, 15, 16, 17, UTC).strftime(text), text)
    except (ValueError, re.error) as error:
        raise ConfigError(
            f"time format {text!r} is not valid ({error}); {example}", code="bad-time-format"
        ) from error
    codes = set(re.findall(r"%-?([A-Za-z%])", text))
    has_date = {"Y", "y"} & codes and ("j" in codes or ("d" in codes and {"m", "b", "B"} & codes))
    if not (has_date or {"c", "x"} & codes):
        raise ConfigError(
            f"time format {text!r} has no year, month and day; {example}", code="bad-time-format"
        )


def _format_names(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


METADATA_KEY = "dygmamba"


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Metadata of the columns of a table that this package exported, so that reading it needs no options.

    It is stored in the Arrow schema (so in Parquet and Arrow files too) or in the `attrs` of a data frame. Options of
    the reader take precedence; metadata that does not fit its table is ignored.
    """

    features: tuple[str, ...] = ()
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"
    types: tuple[str, ...] = ()
    is_complete: bool = False  # whether it names all features and types, so that none are searched

    def to_json(self) -> str:
        facts = {"features": list(self.features), "label": self.label, "bipartite": self.bipartite}
        types = {"types": list(self.types)} if self.types else {}
        return json.dumps(facts | {"time_unit": self.time_unit} | types)

    def fill_options(
        self, options: ReadOptions, names: Sequence[str], bipartite: bool | None = None
    ) -> ReadOptions:
        """Fill in options that were left open; `bipartite` is the caller's setting, or None."""
        features, types = (
            tuple(name for name in own if name in names) for own in (self.features, self.types)
        )
        is_chosen = bool(options.features or options.types)
        label = self.label if self.label in names else None
        return replace(
            options,
            features=options.features if is_chosen else features,
            types=options.types if is_chosen else types,
            columns=options.columns and not self.is_complete,
            label=options.label or label,
            bipartite=options.bipartite or (self.bipartite and bipartite is None),
            time_unit=self.time_unit if options.time_unit == "auto" else options.time_unit,
        )


def read_table_metadata(metadata: Mapping[Any, Any] | None) -> TableMetadata:
    """Parse the metadata of a schema or the attrs of a data frame; empty if there is none or it is damaged."""
    metadata = metadata or {}
    text = metadata.get(METADATA_KEY.encode(), metadata.get(METADATA_KEY))
    try:
        facts = json.loads(text) if isinstance(text, str | bytes) else {}
        unit = facts.get("time_unit", "auto")
        return TableMetadata(
            tuple(map(str, facts.get("features", ()))),
            None if facts.get("label") is None else str(facts["label"]),
            facts.get("bipartite") is True,
            unit if unit in TIME_UNITS else "auto",
            tuple(map(str, facts.get("types", ()))),
            is_complete="features" in facts,
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return TableMetadata()
