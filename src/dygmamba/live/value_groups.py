"""Values of a column that are written alike, parsed at once: each means what it would mean alone.

How a date or a number is read may depend on the others of its column. Here it must not: values are grouped by what
decides how each is read, and every group is parsed as a column, with a mask of the bad ones.
"""

from bisect import bisect
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import DygError
from dygmamba.data.events.times import EPOCH_RANGE
from dygmamba.data.readers.bad_rows import Parsed
from dygmamba.data.readers.time_evidence import COMPACT_FORMATS, NON_FINITE_WORDS, NUMERIC_DATE
from dygmamba.data.readers.times import TICKS_PER_SECOND, parse_formatted_dates
from dygmamba.data.readers.values import NUMBER_PATTERN, is_text_type

T = TypeVar("T")
ABSENT = object()  # in place of a value whose column a row does not have
CONVERSION_ERRORS = (DygError, pa.ArrowException, TypeError, ValueError, OverflowError)
# where the unit that a number is taken to have changes
UNIT_BOUNDS = sorted(bound * ticks for bound in EPOCH_RANGE for ticks in TICKS_PER_SECOND.values())


def parse_each(
    values: Sequence[Any], column: str, parse: Callable[[Any], T], problems: dict[int, str], default: T
) -> list[T]:
    """Parse values one by one; a value that cannot be read is recorded as the problem of its row."""
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(parse(value))
        except CONVERSION_ERRORS as error:
            problems.setdefault(row, _describe_error(column, error))
            parsed.append(default)
    return parsed


def parse_groups(
    given: Sequence[Any] | pa.Array,
    column: str,
    find_notation: Callable[[Any], Hashable],
    parse: Callable[[Sequence[Any] | pa.Array], Parsed],
    problems: dict[int, str],
    default: T,
) -> list[T]:
    """Parse values that are written alike at once; those that cannot be read are recorded as problems of their rows."""
    result = [default] * len(given)
    if isinstance(given, pa.Array) and _is_uniform(given):
        waiting: list[tuple[list[int], Sequence[Any] | pa.Array]] = [([*range(len(given))], given)]
    else:
        values = to_values(given)
        waiting = [(rows, [values[row] for row in rows]) for rows in group_rows(map(find_notation, values))]
    while waiting:
        rows, values = waiting.pop()
        try:
            parsed = parse(values)
        except CONVERSION_ERRORS as error:
            if len(rows) == 1:
                problems.setdefault(rows[0], _describe_error(column, error))
            else:  # one of them has no notation, or is on another scale
                waiting += [([row], [value]) for row, value in zip(rows, to_values(values), strict=True)]
            continue
        for k, (row, value) in enumerate(zip(rows, parsed.values.tolist(), strict=True)):
            if parsed.bad[k]:
                problem, advice = parsed.explain(k)
                problems.setdefault(row, f"column {column!r} {problem}; {advice}")
            else:
                result[row] = value
    return result


def group_rows(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the rows of each key, in order."""
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _is_uniform(column: pa.Array) -> bool:
    """Return whether the type of a column says how its values are written; numbers must have one unit as times."""
    if (
        is_text_type(column.type)
        or pa.types.is_dictionary(column.type)
        or column.null_count
        or not len(column)
    ):
        return False
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return True
    value = column.to_numpy(zero_copy_only=False)
    return bisect(UNIT_BOUNDS, value.min()) == bisect(UNIT_BOUNDS, value.max())


def find_number_notation(value: Any) -> Hashable:
    if isinstance(value, str):
        return "word" if value.strip().lower() in ("true", "false") else "text"
    return None if value is ABSENT else type(value)


def find_category_notation(value: Any) -> Hashable:
    return value is ABSENT, type(value), isinstance(value, float) and value.is_integer()


def find_time_notation(value: Any) -> Hashable:
    """Return what decides how a time is read if it is the only one: its type, order of date, or unit of number."""
    kind, text = type(value), value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, datetime):
        return kind, value.tzinfo is None
    if isinstance(value, str) and not NUMBER_PATTERN.fullmatch(text):
        date = NUMERIC_DATE.fullmatch(text)
        return (
            kind,
            text.lower() in NON_FINITE_WORDS,
            date and (int(date[1]) > 12, date[2], int(date[3]) > 12),
        )
    if value is ABSENT or isinstance(value, bool) or not isinstance(value, str | Number):
        return None if value is ABSENT else kind
    compact = COMPACT_FORMATS.get(len(text)) if text[:2] in ("19", "20") and text.isdigit() else None
    is_compact = compact is not None and not parse_formatted_dates(pa.array([text]), compact)[1].any()
    return kind, text.lstrip("+-").isdigit(), is_compact, bisect(UNIT_BOUNDS, float(text))


def mark_bad(values: Sequence[Any] | pa.Array, problem: str, advice: str) -> Parsed:
    return Parsed(np.zeros(len(values)), np.ones(len(values), bool), lambda _: (problem, advice))


def _describe_error(column: str, error: Exception) -> str:
    return str(error) if isinstance(error, DygError) else f"column {column!r} {str(error).splitlines()[0]}"


def to_values(column: Any) -> Sequence[Any]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    return column.to_pylist() if isinstance(column, pa.Array) else column


def to_array(values: Sequence[Any] | pa.Array, from_pandas: bool = True) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    known = [None if value is ABSENT else value for value in values]
    return pa.array(known, from_pandas=from_pandas)
