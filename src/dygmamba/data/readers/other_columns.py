"""Columns beside source, destination and time: which become edge features, which categorical codes, which neither.

With `features` or `types`, exactly these columns are read, and a value that does not fit is a bad row. Without them
every other column of a table is a candidate. The first batch decides its kind: numbers are edge features, text is
categorical. A candidate is never an error: if it turns out not to be usable it is left out, and the reason is recorded.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import FileError
from dygmamba.data.events.categories import MISSING_VALUE, Category
from dygmamba.data.readers.header import classify_field
from dygmamba.data.readers.options import ColumnRoles
from dygmamba.data.readers.values import (
    MISSING_WORDS,
    NO_VALUE,
    BadValueError,
    ColumnLocation,
    find_decimal_mark,
    is_text_type,
    parse_floats,
    strip_whitespace,
)

MAX_VALUES = 1000  # of a categorical column that was not asked for; more look like text or ids
MAX_CHOSEN_VALUES = 1 << 20  # of one that was
FEW_ROWS = 20  # with fewer rows, one repeated value makes a column categorical, and rising numbers are no row numbers
HAS_GAPS = "has missing values, which `fill` replaces"
SAMPLE_ROWS = 100  # looked at to recognise dates


class Vocabulary:
    """Codes of the values of a categorical column, in order of appearance; `finish` sorts them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, column: pa.Array) -> np.ndarray:
        """Return the codes of these values, new ones included."""
        text = as_category_text(column).dictionary_encode()
        words = text.dictionary.to_pylist()
        code = np.array([self._codes.setdefault(word, len(self._codes)) for word in words], np.int32)
        return code[text.indices.to_numpy(zero_copy_only=False)]

    def finish(self) -> tuple[Category, np.ndarray]:
        """Return the values in sorted order, and the final code of each provisional one."""
        words = list(self._codes)
        order = sorted(range(len(words)), key=words.__getitem__)
        final = np.empty(len(words), np.int32)
        final[order] = np.arange(len(words), dtype=np.int32)
        return Category(self.name, tuple(words[code] for code in order)), final


def as_category_text(column: pa.Array) -> pa.Array:
    """Return values as text without surrounding blanks; missing values and words for them are `MISSING_VALUE`."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):  # data frames make floats of integers with gaps
        whole = pc.fill_null(pc.equal(pc.floor(column), column), True)
        column = column.cast(pa.int64()) if pc.all(whole).as_py() and not _has_nan(column) else column
    text = pc.fill_null(strip_whitespace(column), MISSING_VALUE)
    missing = pc.is_in(pc.utf8_lower(text), value_set=MISSING_WORDS.cast(text.type))
    return pc.if_else(missing, pa.scalar(MISSING_VALUE, text.type), text)


def _has_nan(column: pa.Array) -> bool:
    return bool(pc.any(pc.is_nan(column)).as_py())


@dataclass(slots=True)
class NumberRange:
    """Range of a numeric candidate, and whether it rises with every row."""

    low: float = np.inf
    high: float = -np.inf
    last: float = -np.inf
    is_rising: bool = True

    def add(self, value: np.ndarray) -> None:
        if len(value):
            self.low, self.high = min(self.low, float(value.min())), max(self.high, float(value.max()))
            rises = value[0] > self.last and bool((value[1:] > value[:-1]).all())
            self.is_rising, self.last = self.is_rising and rises, float(value[-1])


@dataclass(slots=True)
class OtherColumns:
    """State of reading the other columns of one table."""

    roles: ColumnRoles
    fill: float | None = None
    decimal: str | None = None  # decimal mark of numbers that are text; None: detected
    numeric: list[str] = field(default_factory=list)  # edge features, in order
    vocabularies: list[Vocabulary] = field(default_factory=list)  # categorical columns, in order
    marks: dict[str, str | None] = field(default_factory=dict)  # decimal marks of numeric columns
    reasons: dict[str, str] = field(default_factory=dict)  # of candidates that are left out
    ranges: dict[str, NumberRange] = field(default_factory=dict)  # of numeric candidates
    rows: int = 0
    _is_started: bool = False

    def start(self, batch: pa.RecordBatch) -> None:
        """Decide the kinds of all columns by the first batch."""
        if self._is_started:
            return
        self._is_started = True
        self.numeric = [*self.roles.features]
        self.vocabularies = [Vocabulary(name) for name in self.roles.types]
        for name in self.roles.candidates:
            column = batch.column(name)
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if is_text_type(kind) and not self._is_numeric_text(column):
                if _looks_like_dates(column):
                    self.reasons[name] = "holds dates"
                else:
                    self.vocabularies.append(Vocabulary(name))
            elif pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
                self.reasons[name] = "holds dates" if pa.types.is_temporal(kind) else f"has type {kind}"
            else:
                self.numeric.append(name)
                self.ranges[name] = NumberRange()
        for name in self.numeric:
            if name not in self.roles.absent:
                self.marks[name] = self.decimal or find_decimal_mark(batch.column(name))

    def _is_numeric_text(self, column: pa.Array) -> bool:
        """Return whether text is numbers: the first values that are not missing all are, or there is none."""
        words = [word for word in as_category_text(column.slice(0, SAMPLE_ROWS)).to_pylist() if word]
        is_plain = bool(words) and all(
            classify_field(word) == "number" or word.lower() in ("true", "false", "inf", "-inf")
            for word in words
        )
        return is_plain or find_decimal_mark(column) is not None

    def read(
        self, batch: pa.RecordBatch, locate: Callable[[str], ColumnLocation]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return edge features and provisional codes of a batch; raise `BadValueError` only for chosen columns."""
        self.start(batch)
        edge = np.zeros((batch.num_rows, len(self.numeric)), np.float32)
        codes = np.zeros((batch.num_rows, len(self.vocabularies)), np.int32)
        for k, name in enumerate(self.roles.features):
            if name in self.roles.absent:
                edge[:, k] = self.fill
            else:
                edge[:, k] = self._parse_floats(batch, name, locate)
        for k, name in enumerate(self.numeric[len(self.roles.features) :], len(self.roles.features)):
            if name not in self.reasons:
                try:
                    edge[:, k] = self._parse_floats(batch, name, locate)
                    self.ranges[name].add(edge[:, k])
                except FileError as error:
                    problem = error.problem if isinstance(error, BadValueError) else "is not numeric"
                    reason = problem.removeprefix(f"column {name!r} ")
                    self.reasons[name] = HAS_GAPS if reason == NO_VALUE else reason
        for k, words in enumerate(self.vocabularies):
            if words.name not in self.reasons:
                absent = pa.nulls(batch.num_rows, pa.string())
                known = words.name not in self.roles.absent
                codes[:, k] = words.encode(batch.column(words.name) if known else absent)
                is_chosen = words.name in self.roles.types
                if len(words) > (MAX_CHOSEN_VALUES if is_chosen else MAX_VALUES):
                    self.reasons[words.name] = (
                        f"has more than {MAX_VALUES:,} different values, like text or ids"
                    )
        self.rows += batch.num_rows
        return edge, codes

    def _parse_floats(
        self, batch: pa.RecordBatch, name: str, locate: Callable[[str], ColumnLocation]
    ) -> np.ndarray:
        return parse_floats(batch.column(name), locate(name), self.fill, self.marks[name])

    def finish(self) -> None:
        """Leave out candidates that say nothing: constants, row numbers, and text that hardly repeats."""
        for name, seen in self.ranges.items():
            if name in self.reasons:
                continue
            if seen.low == seen.high:
                self.reasons[name] = "is constant"
            elif seen.is_rising and self.rows >= FEW_ROWS:
                self.reasons[name] = "rises from row to row, like a row number"
        for words in self.vocabularies:
            if words.name in self.reasons or words.name in self.roles.types:
                continue
            if len(words) < 2:
                self.reasons[words.name] = "is constant"
            elif len(words) > self.rows / 2 and (self.rows >= FEW_ROWS or len(words) == self.rows):
                self.reasons[words.name] = (
                    f"has {len(words):,} different values in {self.rows:,} rows, like text or ids"
                )

    @property
    def kept_numeric(self) -> list[int]:
        return [k for k, name in enumerate(self.numeric) if name not in self.reasons]

    @property
    def kept_vocabularies(self) -> list[int]:
        return [k for k, words in enumerate(self.vocabularies) if words.name not in self.reasons]

    def list_unused(self) -> dict[str, str]:
        """Return every column of the table that is not read, with the reason, in the order of the table."""
        reasons = {**self.reasons, **self.roles.unused}
        return {name: reasons[name] for name in self.roles.names if name in reasons}


def _looks_like_dates(column: pa.Array) -> bool:
    words = [word for word in as_category_text(column.slice(0, SAMPLE_ROWS)).to_pylist() if word]
    return bool(words) and all(classify_field(word) == "date" for word in words)
