"""Kinds of text columns by their values: numbers with a decimal mark, categories with their codes, or labels."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.events.categories import MISSING_VALUE, Category
from dygmamba.data.readers.bad_rows import ColumnLocation, Parsed
from dygmamba.data.readers.header import classify_field
from dygmamba.data.readers.values import (
    GROUPED_EVIDENCE,
    MISSING_WORDS,
    NO_VALUE,
    as_category_text,
    drop_missing_words,
    explain_bad_number,
    find_nulls,
    find_numbers,
    is_text_type,
    parse_floats,
    strip_whitespace,
    try_cast,
)

HAS_GAPS = "has missing values, which `fill` replaces"
HOLDS_DATES = "holds dates"
# share of the values of a numeric column that may be no numbers; with more it is left out
MAX_BAD_CELLS = 0.05
SAMPLE_ROWS = 100  # looked at to recognise dates
MAX_CLASSES = 1_000
LABEL_NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity)$"


class Vocabulary:
    """Codes of the values of a categorical column, in order of appearance; `finish` sorts them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._codes: dict[str, int] = {}
        self._counts = np.zeros(0, np.int64)  # how often each value occurs

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, column: pa.Array) -> np.ndarray:
        """Return the codes of these values, new ones included."""
        text = as_category_text(column).dictionary_encode()
        words = text.dictionary.to_pylist()
        code = np.array([self._codes.setdefault(word, len(self._codes)) for word in words], np.int32)
        codes = code[text.indices.to_numpy(zero_copy_only=False)]
        counts = np.bincount(codes, minlength=len(self._codes))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        return codes

    def count_values(self) -> tuple[pa.Array, np.ndarray]:
        """Return each value, null if it stands for a missing one, and how often it occurs."""
        words = [None if word == MISSING_VALUE else word for word in self._codes]
        return pa.array(words, pa.string()), self._counts

    def finish(self) -> tuple[Category, np.ndarray]:
        """Return the values in sorted order, and the final code of each provisional one."""
        words = list(self._codes)
        order = sorted(range(len(words)), key=words.__getitem__)
        final = np.empty(len(words), np.int32)
        final[order] = np.arange(len(words), dtype=np.int32)
        return Category(self.name, tuple(words[code] for code in order)), final


@dataclass(frozen=True, slots=True)
class TextKind:
    """Kind of a text column: numbers with a decimal mark, categories, or nothing usable for a reason."""

    is_numeric: bool
    mark: str | None = None
    reason: str = ""


@dataclass(slots=True)
class TextEvidence:
    """Statistics of a text column so far: how many values are numbers in each notation, by decimal mark."""

    values: int = 0  # that are not missing
    missing: int = 0
    numbers: dict[str | None, int] = field(default_factory=lambda: {None: 0, ",": 0, ".": 0})
    # marks that a value with separated thousands or decimals proves
    shown: set[str] = field(default_factory=set)
    # the first value that is no number, by notation
    other: dict[str | None, str] = field(default_factory=dict)
    has_point: bool = False  # whether a plain number has a decimal point
    starts_plain: bool = False  # whether the first values are plain numbers
    starts_dated: bool = False

    @staticmethod
    def start(column: pa.Array) -> "TextEvidence":
        """Count the values of the first batch, and see what the first of them are."""
        words = [word for word in as_category_text(column.slice(0, SAMPLE_ROWS)).to_pylist() if word]
        is_plain = all(
            classify_field(word) == "number" or word.lower() in ("true", "false", "inf", "-inf")
            for word in words
        )
        is_dated = all(classify_field(word) == "date" for word in words)
        evidence = TextEvidence(starts_plain=bool(words) and is_plain, starts_dated=bool(words) and is_dated)
        evidence.add(column)
        return evidence

    def recount(self, words: pa.Array, count: np.ndarray) -> "TextEvidence":
        """Return the statistics of other values that start like these, each given once with how often it occurs."""
        fresh = TextEvidence(starts_plain=self.starts_plain, starts_dated=self.starts_dated)
        fresh.add_words(words, count)
        return fresh

    def add(self, column: pa.Array) -> None:
        """Count the values of another batch."""
        text = strip_whitespace(column)
        numbers = try_cast(text, pa.float64())
        if numbers is not None and not numbers.null_count and pc.all(pc.is_finite(numbers)).as_py():
            self.add_plain(text)
            return
        distinct = drop_missing_words(text).dictionary_encode("encode")
        self.add_words(distinct.dictionary, np.bincount(distinct.indices, minlength=len(distinct.dictionary)))

    def add_words(self, words: pa.Array, count: np.ndarray) -> None:
        """Count values, each given once with how often it occurs; null is a missing one."""
        known = ~find_nulls(words)
        self.missing += int(count[~known].sum())
        words, count = words.filter(pa.array(known)), count[known]
        if len(words) and try_cast(words, pa.bool_()) is not None:
            self.values += int(count.sum())
            self.numbers = {mark: known + int(count.sum()) for mark, known in self.numbers.items()}
            return
        self.values += int(count.sum())
        for mark in self.numbers:
            fits, _ = find_numbers(words, mark)
            self.numbers[mark] += int(count[fits].sum())
            found = words.filter(pa.array(fits))
            if mark is None:
                self.has_point |= bool(pc.any(pc.match_substring(found, ".")).as_py())
            elif pc.any(pc.match_substring_regex(found, GROUPED_EVIDENCE[mark])).as_py():
                self.shown.add(mark)
            if not fits.all():
                self.other.setdefault(mark, words[int(fits.argmin())].as_py())

    def add_plain(self, text: pa.Array) -> None:
        """Count values that are all numbers with a decimal point, or without decimals."""
        count, has_point = len(text), pc.match_substring(text, ".")
        point = pc.index(has_point, True).as_py()
        self.values += count
        self.numbers[None] += count
        self.numbers["."] += count
        if point < 0:
            self.numbers[","] += count
            return
        self.has_point = True
        fits = pc.invert(has_point).to_numpy(zero_copy_only=False)
        # 1.097 may be a thousand with a decimal comma: look at all values only if most of the first are so
        first = text.slice(point, SAMPLE_ROWS).filter(has_point.slice(point, SAMPLE_ROWS))
        if find_numbers(first, ",")[0].mean() > 0.5:
            fits = find_numbers(text, ",")[0]
        self.numbers[","] += int(fits.sum())
        if not fits.all():
            self.other.setdefault(",", text[int(fits.argmin())].as_py().strip())

    def choose_kind(self, fill: float | None, decimal: str | None, most_bad: float) -> TextKind:
        """Choose by all values so far.

        Args:
            fill: Replaces missing numbers; None: a column of numbers with gaps is not usable.
            decimal: The decimal mark, if the user named it.
            most_bad: Share of the values of a numeric column that may be no numbers.
        """
        for mark in (None, ",", ".") if decimal is None else (decimal,):
            is_shown = mark is None or decimal is not None or mark in self.shown
            others = self.values - self.numbers[mark]
            if is_shown and self.numbers[mark] and others <= most_bad * self.values:
                mark = "." if mark is None and self.has_point else mark
                return TextKind(True, mark, HAS_GAPS if self.missing and fill is None else "")
        if not self.starts_plain:
            return TextKind(False, reason=HOLDS_DATES if self.starts_dated else "")
        if self.missing and fill is None:
            return TextKind(True, decimal, HAS_GAPS)
        return TextKind(True, decimal, explain_bad_number(self.other[decimal], decimal)[0])

    def choose_mark(self) -> str | None:
        """Return the decimal mark of a column that is to be numeric; None if no value tells."""
        kind = self.choose_kind(None, None, MAX_BAD_CELLS)
        is_proven = kind.mark in self.shown or self.numbers[None] == self.values
        return kind.mark if kind.is_numeric and is_proven else None

    def reads_alike(self, one: TextKind, other: TextKind) -> bool:
        """Return whether every value is the same in both kinds."""
        marks = {one.mark, other.mark}
        is_same = len(marks) == 1 or (marks == {None, "."} and self.numbers[None] == self.numbers["."])
        return one.is_numeric == other.is_numeric and (is_same or not one.is_numeric)


def find_decimal_mark(column: pa.Array) -> str | None:
    """Return the decimal mark of numbers that are text, such as 1.097,23 or 1,097.23; None if no value tells."""
    return TextEvidence.start(column).choose_mark() if is_text_type(column.type) else None


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
    return not pc.any(pc.match_substring_regex(values, LABEL_NUMBER, ignore_case=True)).as_py()
