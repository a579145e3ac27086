"""Columns beside source, destination and time: which become edge features, which categorical codes, which neither.

With `features` or `types`, exactly these columns are read, and a value that does not fit is a bad row. Without them
every other column of a table is a candidate. The first batch decides its kind: numbers are edge features, text is
categorical. A candidate that turns out not to be usable is left out, and the reason is recorded. Only one that nearly
always holds numbers is an error, or its other rows are bad rows: a typing error must not cost the column.
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
    BadRows,
    BadValueError,
    ColumnLocation,
    find_decimal_mark,
    find_numbers,
    is_text_type,
    parse_floats,
    quote_value,
    strip_whitespace,
)

MAX_VALUES = 1000  # of a categorical column that was not asked for; more look like text or ids
MAX_CHOSEN_VALUES = 1 << 20  # of one that was
FEW_ROWS = 20  # with fewer rows, one repeated value makes a column categorical, and rising numbers are no row numbers
HAS_GAPS = "has missing values, which `fill` replaces"
HOLDS_DATES = "holds dates"
SAMPLE_ROWS = 100  # looked at to recognise dates
MAX_BAD_CELLS = (
    0.05  # share of the values of a numeric column that may be no numbers; with more it is left out
)


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
class BadCells:
    """Values of a numeric candidate that are no numbers: how many, and the first."""

    value: str  # the first one, quoted
    problem: str  # of the first one, such as "is 'lots', not a number"
    row: int  # of the first one, from 0, among well-formed rows
    count: int = 0
    missing: int = 0  # values in the same batches that are missing

    def are_few(self, rows: int) -> bool:
        """Return whether nearly all values of so many rows are numbers; missing values do not count."""
        return self.count <= MAX_BAD_CELLS * (rows - self.missing)


@dataclass(slots=True)
class OtherColumns:
    """State of reading the other columns of one table.

    With `bad_rows`, candidates that nearly always hold numbers are numeric, and their other values are bad.
    """

    roles: ColumnRoles
    fill: float | None = None
    decimal: str | None = None  # decimal mark of numbers that are text; None: detected
    bad_rows: BadRows | None = None
    numeric: list[str] = field(default_factory=list)  # edge features, in order
    vocabularies: list[Vocabulary] = field(default_factory=list)  # categorical columns, in order
    marks: dict[str, str | None] = field(default_factory=dict)  # decimal marks of numeric columns
    reasons: dict[str, str] = field(default_factory=dict)  # of candidates that are left out
    ranges: dict[str, NumberRange] = field(default_factory=dict)  # of numeric candidates
    rows: int = 0
    bad_cells: dict[str, BadCells] = field(default_factory=dict)  # of numeric candidates
    _is_started: bool = False
    _batch: pa.RecordBatch | None = None  # the whole batch, of which parts are read to find bad rows
    _first_row: int = 0  # of that batch
    _counted: set[str] = field(default_factory=set)  # columns whose bad cells in that batch are counted

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
                    self.reasons[name] = HOLDS_DATES
                else:
                    self.vocabularies.append(Vocabulary(name))
            elif pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
                self.reasons[name] = HOLDS_DATES if pa.types.is_temporal(kind) else f"has type {kind}"
            else:
                self.numeric.append(name)
                self.ranges[name] = NumberRange()
        for name in self.numeric:
            if name not in self.roles.absent:
                column = batch.column(name)
                is_mixed = name in self.ranges and is_text_type(column.type)
                numbers = self._select_numbers(column) if is_mixed else None
                self.marks[name] = self.decimal or find_decimal_mark(column if numbers is None else numbers)

    def _select_numbers(self, column: pa.Array) -> pa.Array | None:
        """Return the numbers of a text column if nearly all values are numbers in one notation, else None."""
        if self.bad_rows is None:
            return None
        for mark in (None, ",", ".") if self.decimal is None else (self.decimal,):
            fits, missing = find_numbers(column, mark)
            count = int(fits.sum())
            if count and len(fits) - int(missing.sum()) - count <= MAX_BAD_CELLS * (
                len(fits) - missing.sum()
            ):
                numbers = column.filter(pa.array(fits))
                if mark is None or self.decimal is not None or find_decimal_mark(numbers) is not None:
                    return numbers
        return None

    def _is_numeric_text(self, column: pa.Array) -> bool:
        """Return whether text is numbers: the first values that are not missing, or nearly all."""
        words = [word for word in as_category_text(column.slice(0, SAMPLE_ROWS)).to_pylist() if word]
        is_plain = bool(words) and all(
            classify_field(word) == "number" or word.lower() in ("true", "false", "inf", "-inf")
            for word in words
        )
        return is_plain or find_decimal_mark(column) is not None or self._select_numbers(column) is not None

    def begin_batch(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Announce the next batch, of which `read` takes all rows or some."""
        self._batch, self._first_row = batch, first_row
        self._counted.clear()

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
                edge[:, k] = self._read_candidate(batch, name, locate)
        for k, words in enumerate(self.vocabularies):
            if words.name not in self.reasons:
                absent = pa.nulls(batch.num_rows, pa.string())
                known = words.name not in self.roles.absent
                codes[:, k] = words.encode(batch.column(words.name) if known else absent)
                most = MAX_CHOSEN_VALUES if words.name in self.roles.types else MAX_VALUES
                if len(words) > most:
                    self.reasons[words.name] = f"has more than {most:,} different values, like text or ids"
        self.rows += batch.num_rows
        return edge, codes

    def _read_candidate(
        self, batch: pa.RecordBatch, name: str, locate: Callable[[str], ColumnLocation]
    ) -> np.ndarray:
        """Return the numbers of a candidate; zeros if it is left out, or if `check_bad_cells` decides later."""
        try:
            value = self._parse_floats(batch, name, locate)
        except FileError as error:
            problem = error.problem if isinstance(error, BadValueError) else "is not numeric"
            reason = problem.removeprefix(f"column {name!r} ")
            if not self._count_bad_cells(name, reason):
                self.reasons[name] = HAS_GAPS if reason == NO_VALUE else reason
            elif self.bad_rows is not None and self.bad_rows.skip and name not in self.reasons:
                raise
            return np.zeros(batch.num_rows, np.float32)
        self.ranges[name].add(value)
        return value

    def _count_bad_cells(self, name: str, problem: str) -> bool:
        """Count the values of the batch that are no numbers; return whether there are some.

        The column is left out if it has gaps, or, with `skip_bad`, as soon as they are too many.
        """
        if self.bad_rows is None or self._batch is None or not is_text_type(self._batch.column(name).type):
            return False
        if name in self._counted:
            return True
        fits, missing = find_numbers(self._batch.column(name), self.marks[name])
        bad = ~(fits | missing)
        if not bad.any():
            return False
        self._counted.add(name)
        first = int(bad.argmax())
        value = quote_value(strip_whitespace(self._batch.column(name)), first)
        cells = self.bad_cells.setdefault(name, BadCells(value, problem, self._first_row + first))
        cells.count, cells.missing = cells.count + int(bad.sum()), cells.missing + int(missing.sum())
        if missing.any() and self.fill is None:
            self.reasons[name] = HAS_GAPS
        elif self.bad_rows.skip and not cells.are_few(self._first_row + len(bad)):
            self.reasons[name] = cells.problem
        return True

    def check_bad_cells(self, rows: int) -> None:
        """Raise FileError for a numeric column of so many rows in which a few values are no numbers.

        One with more of them is left out.
        """
        for name, cells in self.bad_cells.items():
            if name in self.reasons or self.bad_rows is None or self.bad_rows.skip:
                continue
            if not cells.are_few(rows):
                self.reasons[name] = cells.problem
                continue
            advice = "correct them" if cells.count > 1 else "correct it"
            if self.bad_rows.skip is not None:
                advice += (
                    f", leave out such rows with `skip_bad=True`, read the column as categories with `types={name!r}`, "
                    "or name only the columns you want with `features` and `types`"
                )
            number = f"{cells.count:,} values that are not finite numbers, the first is"
            if cells.count == 1:
                number = "1 value that is not a finite number,"
            raise FileError(
                f"{self.bad_rows.source}: column {name!r} has {number} {cells.value} in data row "
                f"{self.bad_rows.number_row(cells.row)}; {advice}",
                code="bad-rows",
            )

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
