"""Values of Arrow columns: ids, numbers and categories, each parsed as a whole with a mask of what cannot be read."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import first_line
from dygmamba.data.events.categories import MISSING_VALUE
from dygmamba.data.events.id_values import MISSING_ID_WORDS, convert_id_column, describe_missing_id
from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed

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
MISSING_ID_HINT = "remove the row or name both its nodes"
NO_VALUE = "has no value"
CAST_PARTS = 64  # parts of a column in the search for values that cannot be cast


def convert_ids(column: pa.Array, location: ColumnLocation) -> pa.Array:
    """Return a column of ids as integers or text (`convert_id_column`); raise FileError if it holds other values."""
    try:
        return convert_id_column(column)
    except ValueError as error:
        raise location.bad_column(first_line(error), "give integers or strings", "column-not-ids") from error


def clean_ids(ids: pa.DictionaryArray, any_id: bool) -> Parsed:
    """Strip whitespace from the ids of a batch; a missing one is bad (see `id_values`)."""
    bad, pool = find_nulls(ids), ids.dictionary
    if is_text_type(pool.type):
        pool = pc.utf8_trim_whitespace(pool)
        words = pa.array(MISSING_ID_WORDS[:1] if any_id else MISSING_ID_WORDS, pool.type)
        missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=words))
        if len(missing):
            is_missing = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
            bad = bad | is_missing.to_numpy(zero_copy_only=False)
        ids = pa.DictionaryArray.from_arrays(ids.indices, pool)

    def explain(row: int) -> tuple[str, str]:
        written = ids[row].as_py()
        return "is empty" if written is None else describe_missing_id(written), MISSING_ID_HINT

    return Parsed(ids, bad, explain)


def parse_ids(column: pa.Array, location: ColumnLocation, any_id: bool) -> Parsed:
    """Parse a column of ids, as those of events; the values are large strings."""
    parsed = clean_ids(convert_ids(column, location).dictionary_encode(), any_id)
    return Parsed(parsed.values.dictionary_decode().cast(pa.large_string()), parsed.bad, parsed.explain)


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


def as_category_text(column: pa.Array) -> pa.Array:
    """Return values as text without surrounding blanks; missing values and words for them are `MISSING_VALUE`."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):  # data frames make floats of integers with gaps
        whole = pc.fill_null(pc.equal(pc.floor(column), column), True)
        has_nan = pc.any(pc.is_nan(column)).as_py()
        column = column.cast(pa.int64()) if pc.all(whole).as_py() and not has_nan else column
    text = pc.fill_null(strip_whitespace(column), MISSING_VALUE)
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS.cast(text.type))
    return pc.if_else(missing, pa.scalar(MISSING_VALUE, text.type), text)


def proves_other_mark(column: pa.Array, mark: str | None) -> bool:
    """Return whether a value is a number with another decimal mark, and with that one only."""
    if not is_text_type(column.type):
        return False
    text = strip_whitespace(column)
    for other in {*GROUPED_NUMBERS} - {mark}:
        is_number = pc.match_substring_regex(text, GROUPED_NUMBERS[other])
        if pc.any(pc.and_(is_number, pc.match_substring_regex(text, GROUPED_EVIDENCE[other]))).as_py():
            return True
    return False


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
    if whole is not None:
        return whole, np.zeros(len(array), bool)
    if len(array) == 1:
        return pa.nulls(1, target), np.ones(1, bool)
    size = -(-len(array) // CAST_PARTS)
    parts = [_cast_parts(array[start : start + size], target) for start in range(0, len(array), size)]
    return pa.concat_arrays([part for part, _ in parts]), np.concatenate([failed for _, failed in parts])


def find_nulls(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def quote_value(text: pa.Array, row: int) -> str:
    """Quote a value for a message, cut to 60 characters."""
    return repr(text[row].as_py()[:60])
