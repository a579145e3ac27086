"""Arrow columns as numbers, with the row and the value in every complaint."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.errors import FileError

MISSING_WORDS = pa.array(["", "na", "n/a", "nan", "null", "none"])
NUMERIC = "leave the column out or turn it into numbers"


class BadValue(FileError):
    """A value that cannot be read: what is wrong with its row, and what to do."""

    def __init__(self, sentence: str, why: str, do: str) -> None:
        super().__init__(sentence)
        self.why, self.do = why, do


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of values stands in its file; data rows are counted from 1, after any header."""

    file: str
    column: str
    first_row: int

    def error(self, row: int, got: str, do: str) -> BadValue:
        """The complaint about one value."""
        why = f"column {self.column!r} {got}"
        return BadValue(f"{self.file}: data row {self.first_row + row + 1}, {why}; {do}", why, do)

    def wrong(self, got: str, do: str) -> FileError:
        """The complaint about a whole column."""
        return FileError(f"{self.file}: column {self.column!r} {got}; {do}")


def numbers(array: pa.Array, place: Place, fill: float | None) -> np.ndarray:
    """A feature or label column as finite float32 numbers; booleans count as 0 and 1."""
    found = _float64(array, place)
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


def _float64(array: pa.Array, place: Place) -> np.ndarray:
    """The column as float64, NaN where a value is missing."""
    kind = array.type
    if is_text(kind):
        array = _parsed_numbers(trimmed(array), place)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or is_real(kind) or pa.types.is_null(kind)):
        raise place.wrong(f"is {kind}, not a number", NUMERIC)
    wide = array.cast(pa.float64(), safe=False)
    return pc.fill_null(wide, float("nan")).to_numpy(zero_copy_only=False)


def _parsed_numbers(text: pa.Array, place: Place) -> pa.Array:
    found = parsed(text, pa.float64())
    if found is not None:
        return found
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS)
    text = pc.if_else(missing, pa.scalar(None, text.type), text)
    found = parsed(text, pa.float64(), pa.bool_())
    if found is not None:
        return found.cast(pa.float64())
    row = first_failure(text, lambda part: parsed(part, pa.float64()) is not None)
    raise place.error(row, f"is {quoted(text, row)}, not a number", NUMERIC)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_real(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers with a fraction."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def trimmed(array: pa.Array) -> pa.Array:
    """Strings without white space around them."""
    return pc.utf8_trim_whitespace(array.cast(pa.string()))


def parsed(array: pa.Array, *targets: pa.DataType) -> pa.Array | None:
    """The values as the first of these types that all of them fit."""
    for target in targets:
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            continue
    return None


def first_failure(array: pa.Array, parses: Callable[[pa.Array], bool]) -> int:
    """The first value that does not parse, by halving: the longest good prefix ends before it."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parses(array[low:middle]) else (low, middle)
    return low


def quoted(text: pa.Array, row: int) -> str:
    """A value for a sentence."""
    return repr(text[row].as_py()[:60])
