"""Labels of events as numbers: a column of numbers as it is, a column of text as numbers of its classes."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed
from dygmamba.data.readers.column_kinds import Vocabulary
from dygmamba.data.readers.values import (
    MISSING_WORDS,
    NO_VALUE,
    is_text_type,
    parse_floats,
    strip_whitespace,
    try_cast,
)

MAX_CLASSES = 1_000
NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity)$"


@dataclass(slots=True)
class LabelParser:
    """Parser of one label column, batch by batch.

    The first batch decides what the column is: text if it has no number at all, so that a typing error in a column of
    numbers stays an error.
    """

    is_text: bool | None = None
    _classes: Vocabulary = field(default_factory=lambda: Vocabulary("label"))

    def parse(
        self, array: pa.Array, location: ColumnLocation, fill: float | None, decimal: str | None = None
    ) -> Parsed:
        """Return labels as 32-bit floats, or as text that `encode` numbers.

        `decimal` is the decimal mark of numbers, as in `parse_floats`.
        """
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if self.is_text is None and array.null_count < len(array):
            self.is_text = is_text_type(array.type) and _has_no_number(strip_whitespace(array), decimal)
        if not self.is_text:
            return parse_floats(array, location, fill, decimal)
        text = strip_whitespace(array)
        missing = pc.or_(pc.is_null(text), pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS))
        return Parsed(text, missing.to_numpy(zero_copy_only=False), lambda _: (NO_VALUE, "fill it in"))

    def encode(self, label: np.ndarray | pa.Array, location: ColumnLocation) -> np.ndarray:
        """Return labels of good rows as numbers; classes are numbered in order of arrival until `finish`."""
        if isinstance(label, np.ndarray):
            return label
        number = self._classes.encode(label)
        if len(self._classes) > MAX_CLASSES:
            raise location.bad_column(
                f"has more than {MAX_CLASSES:,} different texts",
                "choose a column with fewer classes, or group them",
                "too-many-classes",
            )
        return number.astype(np.float32)

    def finish(self, label: np.ndarray | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Return the labels of all batches, and the names of classes in alphabetical order, by which they are numbered.

        A column of numbers has no classes.
        """
        if label is None or not len(self._classes):
            return label, ()
        category, order = self._classes.finish()
        return order.astype(np.float32)[label.astype(np.int64)], category.values


def _has_no_number(text: pa.Array, decimal: str | None) -> bool:
    """Return whether text has values, none of them is a number, and they are not all true or false."""
    missing = pc.fill_null(pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS), True)
    values = pc.unique(text.filter(pc.invert(missing)))
    if not len(values) or try_cast(values, pa.bool_()) is not None:
        return False
    if decimal == ",":
        values = pc.replace_substring(values, ",", ".")
    return not pc.any(pc.match_substring_regex(values, NUMBER, ignore_case=True)).as_py()
