"""Layout of a table: which columns are read, as what, and how their values are written; and options to open a file."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dygmamba.core.choices import FORMATS as FORMATS
from dygmamba.core.choices import TIME_UNITS, check_choice
from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import DEFAULT_BUDGET
from dygmamba.data.events.origin import Origin

ROLES = ("src", "dst", "time")
COLUMN_OPTIONS = (*ROLES, "features", "types", "columns", "label")
# options that a file of arrays has no use for: its layout is fixed
FIXED_OPTIONS = ("bipartite", "time_unit", "time_format", "fill", "skip_bad", "header")
TABLE_FORMAT = "table"  # of the origin of a dataset that was read from memory
TGB_FORMAT = "tgb"  # its tables name nodes "none" and "null"
METADATA_KEY = "dygmamba"  # of the layout that an exported table carries

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
ID_HEADINGS = {"id", "ids", "node", "nodes", "name", "account", "candidate", "candidates"}  # of lists of ids

# wraps an iterator of batches, given how many to expect, and passes them on
BatchObserver = Callable[[Iterator, int], Iterator]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a table are read, as what, and how their values are written.

    A user gives a part of it and a table may carry a part (`parse_metadata`); `roles.find_layout` finds the rest. A
    column is given by its name, or by its position from 0 if no column has that name.
    """

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # categorical columns
    label: str | None = None
    columns: bool = True  # read every other column that is usable, unless features or types are given
    bipartite: bool = False
    time_unit: str = "auto"
    time_format: str | None = None  # as in strptime; None: detected
    date_order: str = ""  # dmy or mdy, used where the dates themselves are ambiguous
    fill: float | None = None  # replaces missing feature values
    decimal: str | None = None  # decimal mark of feature values, "." or ","; None: detected
    any_id: bool = False  # accept "none" and "null" as ids, as published tables use them
    candidates: tuple[str, ...] = ()  # found: columns that become features or categories if they are usable
    unused: Mapping[str, str] = field(default_factory=dict)  # found: columns not read, with the reason
    absent: tuple[str, ...] = ()  # found: features and categories that the table lacks, to be filled

    @property
    def needed(self) -> list[str]:
        """Every column to read, once."""
        names = [self.src, self.dst, self.time, *self.features, *self.types, *self.candidates, self.label]
        return [name for name in dict.fromkeys(names) if name is not None and name not in self.absent]


@dataclass(frozen=True, slots=True)
class ReadOptions(Layout):
    """Options to read a file of events: its layout as far as the user gives it, and how the file is opened."""

    delimiter: str | None = None  # None: detected; a blank stands for runs of blanks and tabs
    encoding: str = "utf-8"
    header: bool | None = None  # whether the first line names the columns; None: detected
    query: str | None = None  # of a database file: the rows to read
    skip_bad: bool | None = None  # leave out rows that cannot be read; None: the caller has no such option
    allow_absent: bool = False  # fill features that the table lacks as a whole, and leave categories empty
    memory: int = DEFAULT_BUDGET  # bytes that rows may take before they are sorted on disk
    scratch: Path | None = None  # folder for sorting on disk; None: the system's temporary folder
    watch: BatchObserver = field(default=lambda batches, expected: batches, compare=False)  # shows progress

    def __post_init__(self) -> None:
        check_choice("time_unit", self.time_unit, TIME_UNITS)
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
        names = {role: getattr(self, role) or getattr(origin, role) or None for role in ROLES}
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

    def complete(self, hints: Layout, names: Sequence[str], bipartite: bool | None = None) -> "ReadOptions":
        """Fill in what is left open from what a table with these columns says about itself.

        `bipartite` is the caller's setting, or None. Hints of columns that the table does not have are ignored.
        """
        features, types = (
            tuple(name for name in own if name in names) for own in (hints.features, hints.types)
        )
        is_chosen = bool(self.features or self.types)
        return replace(
            self,
            features=self.features if is_chosen else features,
            types=self.types if is_chosen else types,
            columns=self.columns and hints.columns,
            label=self.label or (hints.label if hints.label in names else None),
            bipartite=self.bipartite or (hints.bipartite and bipartite is None),
            time_unit=hints.time_unit if self.time_unit == "auto" else self.time_unit,
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


def find_usual_column(names: Sequence[str], role: str) -> str | None:
    """Find the column with a usual name for this role, ignoring case, else with one behind a prefix (item.u)."""
    by_lower_case = {name.lower(): name for name in reversed(names)}
    without_prefix = {re.split(r"[.:/]", name.lower())[-1]: name for name in reversed(names)}
    found = [
        by[usual] for by in (by_lower_case, without_prefix) for usual in USUAL_NAMES[role] if usual in by
    ]
    return found[0] if found else None


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


def format_metadata(layout: Layout) -> str:
    """Write what an exported table says about itself, so that reading it needs no options.

    It is stored in the Arrow schema (so in Parquet and Arrow files too) or in the `attrs` of a data frame.
    """
    facts = {"features": list(layout.features), "label": layout.label, "bipartite": layout.bipartite}
    types = {"types": list(layout.types)} if layout.types else {}
    return json.dumps(facts | {"time_unit": layout.time_unit} | types)


def parse_metadata(metadata: Mapping[Any, Any] | None) -> Layout:
    """Parse the metadata of a schema or the attrs of a data frame; empty if there is none or it is damaged."""
    metadata = metadata or {}
    text = metadata.get(METADATA_KEY.encode(), metadata.get(METADATA_KEY))
    try:
        facts = json.loads(text) if isinstance(text, str | bytes) else {}
        unit = facts.get("time_unit", "auto")
        return Layout(
            features=tuple(map(str, facts.get("features", ()))),
            types=tuple(map(str, facts.get("types", ()))),
            label=None if facts.get("label") is None else str(facts["label"]),
            columns="features" not in facts,  # else it names all features and types
            bipartite=facts.get("bipartite") is True,
            time_unit=unit if unit in TIME_UNITS else "auto",
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Layout()
