"""Arrow columns as numbers, with the row and the value in every complaint.

Rows that cannot be read: counted, the first few shown, and refused unless the user goes on without them.
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import FileError

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


MISSING_WORDS = pa.array(["", "na", "n/a", "nan", "null", "none"])
NUMERIC_HINT = "leave the column out or turn it into numbers"


class BadValueError(FileError):
    """A value that cannot be read: what is wrong with its row, and what to do."""

    def __init__(self, sentence: str, why: str, do: str) -> None:
        super().__init__(sentence)
        self.why, self.do = why, do


@dataclass(frozen=True, slots=True)
class ColumnLocation:
    """Where a run of values stands in its file; data rows are counted from 1, after any header."""

    file: str
    column: str
    first_row: int

    def error(self, row: int, got: str, do: str) -> BadValueError:
        """The complaint about one value."""
        why = f"column {self.column!r} {got}"
        return BadValueError(f"{self.file}: data row {self.first_row + row + 1}, {why}; {do}", why, do)

    def wrong(self, got: str, do: str) -> FileError:
        """The complaint about a whole column."""
        return FileError(f"{self.file}: column {self.column!r} {got}; {do}")


def parse_floats(array: pa.Array, place: ColumnLocation, fill: float | None) -> np.ndarray:
    """A feature or label column as finite float32 numbers; booleans count as 0 and 1."""
    found = _as_float64(array, place)
    missing = np.isnan(found)
    if missing.any():
        if fill is None:
            row = int(missing.argmax())
            raise place.error(row, "has no value", "fill it in, or give `fill=VALUE`")
        found = np.where(missing, fill, found)
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    if not np.isfinite(narrow).all():
        row = int((~np.isfinite(narrow)).argmax())
        raise place.error(row, f"is {found[row]:g}, beyond 32-bit numbers", "rescale or replace it")
    return narrow


def _as_float64(array: pa.Array, place: ColumnLocation) -> np.ndarray:
    """The column as float64, NaN where a value is missing."""
    kind = array.type
    if is_text_type(kind):
        array = _parse_numbers(strip_whitespace(array), place)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or is_real_type(kind) or pa.types.is_null(kind)):
        raise place.wrong(f"is {kind}, not a number", NUMERIC_HINT)
    wide = array.cast(pa.float64(), safe=False)
    return pc.fill_null(wide, float("nan")).to_numpy(zero_copy_only=False)


def _parse_numbers(text: pa.Array, place: ColumnLocation) -> pa.Array:
    found = try_cast(text, pa.float64())
    if found is not None:
        return found
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS)
    text = pc.if_else(missing, pa.scalar(None, text.type), text)
    found = try_cast(text, pa.float64(), pa.bool_())
    if found is not None:
        return found.cast(pa.float64())
    row = find_first_failure(text, lambda part: try_cast(part, pa.float64()) is not None)
    raise place.error(row, f"is {quote_value(text, row)}, not a number", NUMERIC_HINT)


def is_text_type(kind: pa.DataType) -> bool:
    """Whether values of this type are strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_real_type(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers with a fraction."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def strip_whitespace(array: pa.Array) -> pa.Array:
    """Strings without white space around them."""
    return pc.utf8_trim_whitespace(array.cast(pa.string()))


def try_cast(array: pa.Array, *targets: pa.DataType) -> pa.Array | None:
    """The values as the first of these types that all of them fit."""
    for target in targets:
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            continue
    return None


def find_first_failure(array: pa.Array, parses: Callable[[pa.Array], bool]) -> int:
    """The first value that does not parse, by halving: the longest good prefix ends before it."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parses(array[low:middle]) else (low, middle)
    return low


def quote_value(text: pa.Array, row: int) -> str:
    """A value for a sentence."""
    return repr(text[row].as_py()[:60])


MAX_SHOWN = 5
MAX_BAD_ROWS = 1_000  # so many are counted before a file that is to be refused is given up
MAX_BAD_SHARE = 0.5  # a file of which more is bad is not a file with bad rows


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row, counted from 1 after any header, what is wrong with it and what to do."""

    row: int
    why: str
    do: str = "mend it"

    def __str__(self) -> str:
        return f"data row {self.row}{',' * self.why.startswith('column')} {self.why}"


@dataclass(slots=True)
class BadRows:
    """The bad rows of one file; `skip`: they are left out."""

    where: str
    skip: bool
    count: int = 0
    first: list[BadRow] = field(default_factory=list)
    rows: int = 0  # read so far, good and bad
    _torn: list[int] = field(
        default_factory=list
    )  # row - position of those that never became a row of a batch

    def torn(self, row: int, why: str) -> None:
        """A row that has no columns to speak of; later ones are numbered behind it."""
        self._torn.append(row - len(self._torn))
        self._add(BadRow(row, why, "mend it, or check `delimiter` and quotes"))

    def bad(self, place: int, why: str, do: str) -> None:
        """A row with a bad value, the place-th (from 0) of those that have the right number of columns."""
        self._add(BadRow(place + 1 + bisect_right(self._torn, place + 1), why, do))

    def _add(self, fault: BadRow) -> None:
        self.count += 1
        self.rows = max(self.rows, fault.row)
        insort(self.first, fault)
        del self.first[MAX_SHOWN:]
        if self.count <= MAX_BAD_ROWS:
            return
        if not self.skip:
            raise FileError(self.sentence(f"more than {MAX_BAD_ROWS:,} bad rows"))
        if self.count > MAX_BAD_SHARE * self.rows:
            raise FileError(
                f"{self.where}: most rows are bad ({self.count:,} of the first {self.rows:,}), "
                f"{self.listed()}; check which columns are meant"
            )

    def settle(self) -> None:
        """Refuse the file, unless all is well or bad rows are to be left out."""
        if self.count and not self.skip:
            raise FileError(self.sentence(f"{self.count:,} bad rows"))

    def sentence(self, number: str) -> str:
        """One bad row in full, several as a list."""
        if self.count == 1:
            (only,) = self.first
            return f"{self.where}: {only}; {only.do}, or leave out bad rows with `skip_bad=True`"
        ways = {fault.do for fault in self.first}
        do = ways.pop() if len(ways) == 1 else "mend them"
        return f"{self.where} has {number}: {self.listed()}; {do}, or leave out bad rows with `skip_bad=True`"

    def listed(self) -> str:
        """The first few, and how many more there are."""
        more = self.count - len(self.first)
        return "; ".join(map(str, self.first)) + (f"; and {more:,} more" if more else "")
