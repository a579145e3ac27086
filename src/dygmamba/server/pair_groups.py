"""Pairs of several requests as tables that can be scored together.

How a column of times is read depends on all its values: numbers may be seconds or milliseconds, 01/02 a day or a month.
A score must not depend on the other requests of a batch, so that only times that are read alike whatever stands beside
them share a table.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dygmamba.data.readers.time_evidence import COMPACT_FORMATS, detect_time_unit

ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?)?")
DIGITS = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class PairQuery:
    """A pair to score; ids as text, the time as it was given, other columns of the event in question by name."""

    src: str
    dst: str
    time: str | int | float | None = None
    columns: tuple[tuple[str, Any], ...] = ()


def find_table_key(query: PairQuery) -> tuple[Any, ...]:
    """Return a key; queries with equal keys can be scored in one table."""
    return (_find_time_key(query.time), tuple((name, type(value)) for name, value in query.columns))


def _find_time_key(time: str | int | float | None) -> tuple[Any, ...]:
    if time is None:
        return ()
    if isinstance(time, str):
        is_iso = ISO_TIME.fullmatch(time) is not None
        return ("date", DIGITS.sub("0", time)) if is_iso else ("text", time)
    if isinstance(time, int) and len(str(time)) in COMPACT_FORMATS:  # may be a date, such as 20240131
        return ("compact", time)
    return (type(time).__name__, detect_time_unit([time], isinstance(time, int)))


def build_table(queries: Sequence[PairQuery]) -> dict[str, list[Any]]:
    """Return the columns of queries with equal keys."""
    table: dict[str, list[Any]] = {
        "src": [query.src for query in queries],
        "dst": [query.dst for query in queries],
    }
    if queries[0].time is not None:
        table["time"] = [query.time for query in queries]
    for position, (name, _) in enumerate(queries[0].columns):
        table[name] = [query.columns[position][1] for query in queries]
    return table


def group_rows(keys: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[int]]:
    """Return the rows of each key, in order."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return groups
