"""Values of Arrow columns as numbers, and the bad rows met on the way.

Every error names the data row, the column and the value. Bad rows are counted and the first few shown; they are an
error unless the user skips them (`skip_bad`).
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import FileError

MISSING_WORDS = pa.array(["", "na", "n/a", "nan", "null", "none"])
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
PLAIN_NUMBERS = rf"^{NUMBER_PATTERN.pattern}$"
# numbers with a decimal comma, or with commas between thousands, by their decimal mark; and what proves it
GROUPED_NUMBERS = {
    ",": r"^[+-]?((\d{1,3}(\.\d{3})+|\d+)(,\d+)?|,\d+)([eE][+-]?\d+)?$",
    ".": r"^[+-]?((\d{1,3}(,\d{3})+|\d+)(\.\d+)?|\.\d+)([eE][+-]?\d+)?$",
}
GROUPED_EVIDENCE = {",": r",(\d{1,2}|\d{4,})$|\.\d{3},", ".": r",\d{3}(\.|,)"}
GROUPED_HINT = "say which mark its decimals have: `decimal=','` or `decimal='.'`"
NUMERIC_HINT = "leave the column out or turn it into numbers"


NO_VALUE = "has no value"
NOT_TEXT = "is not UTF-8 text"
CAST_PARTS = 64  # parts of a column in the search for values that cannot be cast


class BadValueError(FileError):
    """One value that cannot be read, its row from 0, and the parts `problem` and `advice` of its message."""

    code = "bad-value"

    def __init__(self, message: str, problem: str, advice: str, row: int) -> None:
        super().__init__(message)
        self.problem, self.advice, self.row = problem, advice, row


@dataclass(frozen=True, slots=True)
class ColumnLocation:
    """Location of a run of values in its file, for error messages.

    Data rows are numbered from 1, after any header; `first_row` rows come before this run.
    """

    file: str
    column: str
    first_row: int

    def bad_value(self, row: int, problem: str, advice: str) -> BadValueError:
        """Build the error for the value in this row of the run."""
        problem = f"column {self.column!r} {problem}"
        message = f"{self.file}: data row {self.first_row + row + 1}, {problem}; {advice}"
        return BadValueError(message, problem, advice, self.first_row + row)

    def bad_column(self, problem: str, advice: str, code: str) -> FileError:
        """Build the error for the column as a whole."""
        return FileError(f"{self.file}: column {self.column!r} {problem}; {advice}", code=code)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The values of a column, which of its rows are bad, and what is wrong with each of those."""

    values: Any  # a numpy or Arrow array; where a row is bad, anything
    bad: np.ndarray  # a mask
    explain: Callable[[int], tuple[str, str]] = lambda _: (
        "is bad",
        "correct it",
    )  # problem and advice of a bad row

    def require(self, location: ColumnLocation) -> Any:
        """Return the values; raise `BadValueError` for the first bad row."""
        if self.bad.any():
            row = int(self.bad.argmax())
            raise location.bad_value(row, *self.explain(row))
        return self.values

    def keep(self, rows: np.ndarray) -> "Parsed":
        """Return some rows, given by a mask; ids that only other rows have are no longer in the dictionary."""
        if isinstance(self.values, pa.DictionaryArray):
            values = self.values.filter(pa.array(rows)).dictionary_decode().dictionary_encode()
        else:
            values = (
                self.values[rows]
                if isinstance(self.values, np.ndarray)
                else self.values.filter(pa.array(rows))
            )
        return Parsed(values, self.bad[rows], self.explain)


def find_bad_rows(columns: Sequence[tuple[str, Parsed]], count: int) -> Parsed:
    """Return which of `count` rows are bad in one of these columns; the first such column is the one to explain."""

    def explain(row: int) -> tuple[str, str]:
        name, column = next((name, column) for name, column in columns if column.bad[row])
        problem, advice = column.explain(row)
        return f"column {name!r} {problem}", advice

    bad = np.zeros(count, bool)
    for _, column in columns:
        bad |= column.bad
    return Parsed(None, bad, explain)


def parse_floats(
    array: pa.Array, location: ColumnLocation, fill: float | None, decimal: str | None = None
) -> Parsed:
    """Parse a feature or label column as finite float32 numbers; booleans count as 0 and 1.

    Args:
        array: numbers, booleans or text.
        location: for the error about a column of another type.
        fill: replaces missing values; None: a missing value is bad.
        decimal: decimal mark of text, "." or ","; then the other mark may separate thousands. None: plain numbers only.
    """
    wide, unreadable = _as_float64(array, location, decimal)
    missing = np.isnan(wide) if unreadable is None else np.isnan(wide) & ~unreadable
    if fill is not None and missing.any():
        wide = np.where(missing, fill, wide)
    with np.errstate(over="ignore"):  # overflow becomes infinite and is bad
        narrow = wide.astype(np.float32)

    def explain(row: int) -> tuple[str, str]:
        if unreadable is not None and unreadable[row]:
            return explain_bad_number(array[row].as_py().strip(), decimal)
        if missing[row] and fill is None:
            return NO_VALUE, "fill it in, or give `fill=VALUE`"
        return f"is {wide[row]:g}, beyond the range of 32-bit floats", "rescale or replace it"

    return Parsed(narrow, ~np.isfinite(narrow), explain)


def explain_bad_number(text: str, decimal: str | None) -> tuple[str, str]:
    """Return problem and advice for text that is no finite number with this decimal mark."""
    if decimal is not None:
        return f"is {text[:60]!r}, not a number with the decimal mark '{decimal}'", NUMERIC_HINT
    is_grouped = any(re.match(pattern, text) for pattern in GROUPED_NUMBERS.values())
    return f"is {text[:60]!r}, not a number", GROUPED_HINT if is_grouped else NUMERIC_HINT


def _as_float64(
    array: pa.Array, location: ColumnLocation, decimal: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert a column to float64, NaN where a value is missing or no number; and a mask of the latter, if any."""
    kind, unreadable = array.type, None
    if is_text_type(kind):
        array, unreadable = _parse_numbers(strip_whitespace(array), decimal)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or is_real_type(kind) or pa.types.is_null(kind)):
        raise location.bad_column(f"has type {kind}, not a number", NUMERIC_HINT, "column-not-numeric")
    wide = array.cast(pa.float64(), safe=False)
    return pc.fill_null(wide, float("nan")).to_numpy(zero_copy_only=False), unreadable


def _parse_numbers(text: pa.Array, decimal: str | None) -> tuple[pa.Array, np.ndarray | None]:
    """Return numbers, null where a value is missing or no number; and a mask of the latter, if any."""
    numbers = None if decimal == "," else try_cast(text, pa.float64())
    if numbers is not None:
        return numbers, None
    # only now look for words such as "NA": nearly all columns are plain numbers
    text = drop_missing_words(text)
    if decimal != ",":
        numbers = try_cast(text, pa.float64(), pa.bool_())
        if numbers is not None:
            return numbers, None
    if decimal is None:
        return cast_each(text, pa.float64())
    fits = pc.fill_null(pc.match_substring_regex(text, GROUPED_NUMBERS[decimal]), True)
    plain = _remove_grouping(pc.if_else(fits, text, pa.scalar(None, text.type)), decimal)
    return plain.cast(pa.float64()), ~fits.to_numpy(zero_copy_only=False)


def drop_missing_words(text: pa.Array) -> pa.Array:
    """Return text with null instead of words for a missing value, such as "NA"."""
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS)
    return pc.if_else(missing, pa.scalar(None, text.type), text)


def find_decimal_mark(column: pa.Array) -> str | None:
    """Return the decimal mark of numbers that are text, such as 1.097,23 or 1,097.23; None if no value tells.

    "1,097" may be either. A value that is no number in either way leaves the mark open too.
    """
    if not is_text_type(column.type):
        return None
    text = pc.fill_null(drop_missing_words(strip_whitespace(column)), "0")
    if try_cast(text, pa.float64()) is not None:
        return "." if pc.any(pc.match_substring(text, ".")).as_py() else None
    for mark, pattern in GROUPED_NUMBERS.items():
        if pc.all(pc.match_substring_regex(text, pattern)).as_py():
            tells = pc.match_substring_regex(text, GROUPED_EVIDENCE[mark])
            if pc.any(tells).as_py():
                return mark
    return None


def find_numbers(column: pa.Array, decimal: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which values of a text column are finite numbers with this decimal mark, and which are missing."""
    text = drop_missing_words(strip_whitespace(column))
    pattern = PLAIN_NUMBERS if decimal is None else GROUPED_NUMBERS[decimal]
    fits = pc.fill_null(pc.match_substring_regex(text, pattern), False)
    return fits.to_numpy(zero_copy_only=False), pc.is_null(text).to_numpy(zero_copy_only=False)


def _remove_grouping(text: pa.Array, mark: str) -> pa.Array:
    """Return numbers without marks between thousands and with a decimal point."""
    group = "." if mark == "," else ","
    return pc.replace_substring(pc.replace_substring(text, group, ""), mark, ".")


def is_text_type(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_real_type(kind: pa.DataType) -> bool:
    """Return whether values of this type may have a fraction."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def strip_whitespace(array: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(array.cast(pa.string()))


def try_cast(array: pa.Array, *targets: pa.DataType) -> pa.Array | None:
    """Cast to the first of these types that holds every value; None if none does."""
    for target in targets:
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            continue
    return None


def cast_each(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Cast to a type; return the values, null where one cannot be cast, and a mask of those."""
    whole = try_cast(array, target)
    if whole is not None:
        return whole, np.zeros(len(array), bool)
    distinct = array.dictionary_encode()
    values, failed = _cast_parts(distinct.dictionary, target)
    code = pc.fill_null(distinct.indices, 0).to_numpy(zero_copy_only=False)
    return values.take(distinct.indices), failed[code] & ~find_nulls(array)


def _cast_parts(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Cast part by part, smaller and smaller ones: Arrow does not say which values it could not cast."""
    whole = try_cast(array, target)
    if whole is not None or len(array) == 1:
        return (
            (pa.nulls(1, target), np.ones(1, bool)) if whole is None else (whole, np.zeros(len(array), bool))
        )
    size = -(-len(array) // CAST_PARTS)
    parts = [_cast_parts(array[start : start + size], target) for start in range(0, len(array), size)]
    return pa.concat_arrays([part for part, _ in parts]), np.concatenate([failed for _, failed in parts])


def find_nulls(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def quote_value(text: pa.Array, row: int) -> str:
    """Quote a value for a message, cut to 60 characters."""
    return repr(text[row].as_py()[:60])


MAX_SHOWN = 5
MAX_BAD_ROWS = 1_000  # without `skip_bad`, reading stops after this many
MAX_BAD_SHARE = 0.5  # with more bad rows than this, the columns are probably misunderstood


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that cannot be read, numbered from 1 after any header."""

    row: int
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"data row {self.row}{',' * self.problem.startswith('column')} {self.problem}"


@dataclass(slots=True)
class BadRows:
    """The bad rows of one file: how many, and the first few; with `skip` they are left out."""

    source: str
    skip: bool | None  # None: the user has no option for it, so that messages do not name it
    count: int = 0
    certain: int = 0  # of these, rows that are bad however the file goes on
    first: list[BadRow] = field(default_factory=list)
    rows_read: int = 0  # good and bad
    # of each malformed row, its number minus how many malformed rows came before it
    _malformed: list[int] = field(default_factory=list)

    def add_malformed(self, row: int, problem: str, advice: str = "correct it") -> None:
        """Add a row without the right columns. It is in no batch, so later rows have higher numbers."""
        self._malformed.append(row - len(self._malformed))
        self._show(BadRow(row, problem, advice))
        self.count, self.certain, self.rows_read = self.count + 1, self.certain + 1, max(self.rows_read, row)
        self._check()

    def add_bad_values(self, positions: np.ndarray, found: Parsed, *, certain: bool = True) -> None:
        """Add the rows that are bad in `found`.

        Args:
            positions: Of all rows of `found`, among well-formed rows only, from 0.
            found: Which are bad, and why.
            certain: Whether they are bad however the file goes on; only those can end the reading early.
        """
        bad = np.flatnonzero(found.bad)
        for row in bad[:MAX_SHOWN].tolist():
            self._show(BadRow(self.number_row(int(positions[row])), *found.explain(row)))
        self.count += len(bad)
        self.certain += len(bad) if certain else 0
        self.rows_read = max(self.rows_read, self.number_row(int(positions[-1])))
        self._check()

    @property
    def are_undecodable(self) -> bool:
        """Whether the first ones could not be decoded, so that the encoding is to blame and not the rows."""
        return bool(self.first) and all(row.problem == NOT_TEXT for row in self.first)

    def number_row(self, position: int) -> int:
        """Return the number of a row in the file; `position` counts well-formed rows only, from 0."""
        return position + 1 + bisect_right(self._malformed, position + 1)

    def _show(self, bad_row: BadRow) -> None:
        insort(self.first, bad_row)
        del self.first[MAX_SHOWN:]

    def _check(self) -> None:
        """Raise FileError if there are too many to go on."""
        if self.certain <= MAX_BAD_ROWS:
            return
        if not self.skip:
            raise FileError(self._message(f"more than {MAX_BAD_ROWS:,} bad rows"), code="bad-rows")
        if self.certain > MAX_BAD_SHARE * self.rows_read:
            raise FileError(
                f"{self.source}: most rows are bad ({self.certain:,} of the first {self.rows_read:,}), "
                f"{self.summarize()}; check that the right columns are named as source, destination and time",
                code="mostly-bad-rows",
            )

    def raise_unless_skipped(self) -> None:
        """Raise FileError if rows are certainly bad and they are not to be left out."""
        if self.certain and not self.skip:
            raise FileError(self._message(f"{self.count:,} bad rows"), code="bad-rows")

    def _message(self, number: str) -> str:
        skip_hint = "" if self.skip is None else ", or leave out bad rows with `skip_bad=True`"
        if self.count == 1:
            (only,) = self.first
            return f"{self.source}: {only}; {only.advice}{skip_hint}"
        hints = {bad_row.advice for bad_row in self.first}
        advice = hints.pop() if len(hints) == 1 else "correct them"
        return f"{self.source} has {number}: {self.summarize()}; {advice}{skip_hint}"

    def summarize(self) -> str:
        """Return the first few, and how many more there are."""
        more = self.count - len(self.first)
        return "; ".join(map(str, self.first)) + (f"; and {more:,} more" if more else "")
