"""Values of Arrow columns as numbers, and the bad rows met on the way.

Every error names the data row, the column and the value. Bad rows are counted and the first few shown; they are an
error unless the user skips them (`skip_bad`).
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

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


def parse_floats(
    array: pa.Array, location: ColumnLocation, fill: float | None, decimal: str | None = None
) -> np.ndarray:
    """Parse a feature or label column as finite float32 numbers; booleans count as 0 and 1.

    Args:
        array: numbers, booleans or text.
        location: for error messages.
        fill: replaces missing values; None: a missing value is an error.
        decimal: decimal mark of text, "." or ","; then the other mark may separate thousands. None: plain numbers only.
    """
    wide = _as_float64(array, location, decimal)
    missing = np.isnan(wide)
    if missing.any():
        if fill is None:
            row = int(missing.argmax())
            raise location.bad_value(row, NO_VALUE, "fill it in, or give `fill=VALUE`")
        wide = np.where(missing, fill, wide)
    with np.errstate(over="ignore"):  # overflow becomes infinite and is reported below
        narrow = wide.astype(np.float32)
    if not np.isfinite(narrow).all():
        row = int((~np.isfinite(narrow)).argmax())
        raise location.bad_value(
            row, f"is {wide[row]:g}, beyond the range of 32-bit floats", "rescale or replace it"
        )
    return narrow


def _as_float64(array: pa.Array, location: ColumnLocation, decimal: str | None = None) -> np.ndarray:
    """Convert a column to float64, NaN where a value is missing."""
    kind = array.type
    if is_text_type(kind):
        array = _parse_numbers(strip_whitespace(array), location, decimal)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or is_real_type(kind) or pa.types.is_null(kind)):
        raise location.bad_column(f"has type {kind}, not a number", NUMERIC_HINT, "column-not-numeric")
    wide = array.cast(pa.float64(), safe=False)
    return pc.fill_null(wide, float("nan")).to_numpy(zero_copy_only=False)


def _parse_numbers(text: pa.Array, location: ColumnLocation, decimal: str | None = None) -> pa.Array:
    numbers = None if decimal == "," else try_cast(text, pa.float64())
    if numbers is not None:
        return numbers
    # only now look for words such as "NA": nearly all columns are plain numbers
    text = drop_missing_words(text)
    if decimal != ",":
        numbers = try_cast(text, pa.float64(), pa.bool_())
        if numbers is not None:
            return numbers.cast(pa.float64())
    if decimal is None:
        row = find_first_failure(text, lambda part: try_cast(part, pa.float64()) is not None)
        is_grouped = any(re.match(pattern, text[row].as_py()) for pattern in GROUPED_NUMBERS.values())
        hint = GROUPED_HINT if is_grouped else NUMERIC_HINT
        raise location.bad_value(row, f"is {quote_value(text, row)}, not a number", hint)
    fits = pc.match_substring_regex(pc.fill_null(text, "0"), GROUPED_NUMBERS[decimal])
    if not pc.all(fits).as_py():
        row = pc.index(fits, False).as_py()
        problem = f"is {quote_value(text, row)}, not a number with the decimal mark '{decimal}'"
        raise location.bad_value(row, problem, NUMERIC_HINT)
    return _remove_grouping(text, decimal).cast(pa.float64())


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


def find_first_failure(array: pa.Array, parses: Callable[[pa.Array], bool]) -> int:
    """Find the first value that does not parse, by bisection; there must be one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parses(array[low:middle]) else (low, middle)
    return low


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
    first: list[BadRow] = field(default_factory=list)
    rows_read: int = 0  # good and bad
    # of each malformed row, its number minus how many malformed rows came before it
    _malformed: list[int] = field(default_factory=list)

    def add_malformed(self, row: int, problem: str, advice: str = "correct it") -> None:
        """Add a row without the right columns. It is in no batch, so later rows have higher numbers."""
        self._malformed.append(row - len(self._malformed))
        self._add(BadRow(row, problem, advice))

    def add_bad_value(self, position: int, problem: str, advice: str) -> None:
        """Add a row with a bad value; `position` counts well-formed rows only, from 0."""
        self._add(BadRow(self.number_row(position), problem, advice))

    def find_good_rows(self, count: int, read: Callable[[int, int], object], first: int = 0) -> np.ndarray:
        """Return which of `count` rows can be read, and add the others.

        They are found by bisection, so that a few bad rows cost little.

        Args:
            count: Number of rows.
            read: Reads the rows from a start to a stop; raises BadValueError if it cannot.
            first: Position of the first row.
        """
        good = np.ones(count, dtype=bool)

        def search(start: int, stop: int) -> None:
            try:
                read(start, stop)
            except BadValueError as error:
                if stop - start > 1:
                    middle = (start + stop) // 2
                    search(start, middle)
                    search(middle, stop)
                else:
                    good[start] = False
                    self.add_bad_value(first + start, error.problem, error.advice)

        search(0, count)
        return good

    def number_row(self, position: int) -> int:
        """Return the number of a row in the file; `position` counts well-formed rows only, from 0."""
        return position + 1 + bisect_right(self._malformed, position + 1)

    def _add(self, bad_row: BadRow) -> None:
        self.count += 1
        self.rows_read = max(self.rows_read, bad_row.row)
        insort(self.first, bad_row)
        del self.first[MAX_SHOWN:]
        if self.count <= MAX_BAD_ROWS:
            return
        if not self.skip:
            raise FileError(self._message(f"more than {MAX_BAD_ROWS:,} bad rows"), code="bad-rows")
        if self.count > MAX_BAD_SHARE * self.rows_read:
            raise FileError(
                f"{self.source}: most rows are bad ({self.count:,} of the first {self.rows_read:,}), "
                f"{self.summarize()}; check that the right columns are named as source, destination and time",
                code="mostly-bad-rows",
            )

    def raise_unless_skipped(self) -> None:
        """Raise FileError if there are bad rows and they are not to be left out."""
        if self.count and not self.skip:
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
