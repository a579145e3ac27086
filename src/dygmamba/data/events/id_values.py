"""Definition of an id: the one rule by which files, tables, queries, live events and exported models read ids.

An id is a text without blanks around it, whatever type it came in:

- A text is itself, stripped. Empty text is no id. Nor are the words that programs write for a missing value
  (`MISSING_ID_WORDS`), except in published tables that name nodes so (`any_id`).
- An integer of any size is its decimal digits: 7 and '7' are one id, '007' is another.
- A float is the integer that it equals, in 64 bits: data frames make floats of integers with gaps. 7.6 is no id, and
  NaN is a missing one.
- None, booleans and all other objects are no ids.

Where all ids of a stream are integers (in a bipartite stream: all of that side), the text '7.0' is 7. Among other ids
it is a text like any other. The ids of the dataset decide, not those that are added later or given in the same call.

Ids are stored as 64-bit integers if each of them is the usual notation of one, otherwise as text.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MISSING_ID_WORDS = ("", "nan", "null", "none", "n/a", "#n/a", "<na>", "\\n")
WHOLE_WITH_POINT = r"^-?\d+\.0$"
_has_point = re.compile(WHOLE_WITH_POINT, re.ASCII)


def parse_id(value: Any, any_id: bool = False) -> str:
    """Return an id as text; raise ValueError, whose message follows the name of the value, for what is none."""
    for convert in ("as_py", "item"):  # of scalars of Arrow, numpy and torch
        value = getattr(value, convert)() if hasattr(value, convert) else value
    if value is None or value != value:
        raise ValueError("is empty; give a string or an integer")
    if isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**63:
        value = int(value)
    if isinstance(value, float):
        raise ValueError(f"is {value}, which is no id; give a string or an integer")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"has a value of type {type(value).__name__}; give a string or an integer")
    text = str(value).strip()
    if text.lower() in (MISSING_ID_WORDS[:1] if any_id else MISSING_ID_WORDS):
        raise ValueError(f"{describe_missing_id(text)}; name both nodes of an event")
    if not text.isascii():
        text.encode("utf-8")  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return text


def describe_missing_id(text: str) -> str:
    """Say what is wrong with an empty text or a word for a missing value."""
    return f"is {text!r}, which stands for a missing id" if text else "is empty"


def convert_id_column(column: pa.Array) -> pa.Array:
    """Return a column of ids as 64-bit integers or text, null where there is NaN; blanks and words are not looked at.

    Raises:
        ValueError: It has another type, or floats that are no integers.
    """
    ids = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    kind = ids.type
    if pa.types.is_floating(kind):
        try:
            return pc.if_else(pc.is_nan(ids), pa.scalar(None, kind), ids).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise ValueError(f"holds values that are not ids ({error})") from error
    # unsigned 64-bit ids need not fit the signed integers; as text they always do
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return ids.cast(pa.int64())
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if is_text or kind == pa.uint64():
        return ids.cast(pa.string())
    raise ValueError(f"has type {kind}, not an id")


def strip_decimal_zero(text: str) -> str:
    """Turn '978.0' into '978'."""
    return text[:-2] if text.endswith(".0") and _has_point.match(text) else text


def strip_decimal_zeros(texts: pa.Array) -> pa.Array:
    """Turn '978.0' into '978' in a column of text; others stay."""
    is_pointed = pc.match_substring_regex(texts, WHOLE_WITH_POINT)
    if not pc.any(is_pointed).as_py():
        return texts
    return pc.if_else(is_pointed, pc.replace_substring_regex(texts, r"\.0$", ""), texts)


def are_whole(texts: pa.Array, pattern: str = r"^-?\d+$") -> bool:
    """Return whether all texts are integers, by default without '.0'."""
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def as_integers(ids: pa.Array) -> pa.Array | None:
    """Return ids as 64-bit integers, or None if one is not the usual notation of one, such as '007'."""
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64())
    try:
        ids[:1].cast(pa.int64())  # Arrow looks at every value before it fails
        integers = ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return integers if integers.cast(ids.type).equals(ids) else None
