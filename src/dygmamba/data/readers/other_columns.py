"""Columns beside source, destination and time: which become edge features, which categorical codes, which neither.

With `features` or `types`, exactly these columns are read, and a value that does not fit is a bad row. Without them
every other column of a table is a candidate: numbers are edge features, text is categorical. Text is numbers if nearly
all values of the column are; the first batch is read by what it shows, and the table again if its other rows show
something else. A candidate that turns out not to be usable is left out, and the reason is recorded. Only one that
nearly always holds numbers is an error, or its other rows are bad rows: a typing error must not cost the column.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import FileError
from dygmamba.data.events.categories import MISSING_VALUE, Category
from dygmamba.data.readers.header import classify_field
from dygmamba.data.readers.options import ColumnRoles
from dygmamba.data.readers.values import (
    GROUPED_EVIDENCE,
    MISSING_WORDS,
    NO_VALUE,
    BadRows,
    ColumnLocation,
    Parsed,
    drop_missing_words,
    explain_bad_number,
    find_bad_rows,
    find_decimal_mark,
    find_nulls,
    find_numbers,
    is_text_type,
    parse_floats,
    quote_value,
    strip_whitespace,
    try_cast,
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
    shown: set[str] = field(
        default_factory=set
    )  # marks that a value with separated thousands or decimals proves
    other: dict[str | None, str] = field(
        default_factory=dict
    )  # the first value that is no number, by notation
    has_point: bool = False  # whether a plain number has a decimal point
    starts_plain: bool = False  # whether the first values are plain numbers
    starts_dated: bool = False

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
            self._add_plain(int(count.sum()), has_point=False)
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
        """Count values that are all numbers, plain or with marks between thousands."""
        self._add_plain(len(text), bool(pc.any(pc.match_substring(text, ".")).as_py()))

    def _add_plain(self, count: int, has_point: bool) -> None:
        self.values += count
        self.has_point |= has_point
        for mark in self.numbers:
            self.numbers[mark] += 0 if mark == "," and has_point else count

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

    def reads_alike(self, one: TextKind, other: TextKind) -> bool:
        """Return whether every value is the same in both kinds."""
        marks = {one.mark, other.mark}
        is_same = len(marks) == 1 or (marks == {None, "."} and self.numbers[None] == self.numbers["."])
        return one.is_numeric == other.is_numeric and (is_same or not one.is_numeric)


@dataclass(slots=True)
class BadCells:
    """Values of a numeric candidate that are no numbers: the first, its position, and how many there are."""

    value: str
    position: int
    count: int = 0


class OtherColumns:
    """Reader of the other columns of one table, batch by batch.

    Args:
        roles: Which columns they are.
        fill: Replaces missing numbers.
        decimal: Decimal mark of numbers that are text; None: detected.
        keep_numeric: Whether a candidate that nearly always holds numbers is numeric, and its other values are bad.
        kinds: Of candidates of text, if all their values are known; the first batch decides on others.
    """

    def __init__(
        self,
        roles: ColumnRoles,
        fill: float | None = None,
        decimal: str | None = None,
        keep_numeric: bool = False,
        kinds: Mapping[str, TextKind] | None = None,
    ) -> None:
        self.roles, self.fill, self.decimal, self.keep_numeric = roles, fill, decimal, keep_numeric
        self.numeric: list[str] = [*roles.features]  # edge features, in order
        self.vocabularies = [Vocabulary(name) for name in roles.types]  # categorical columns, in order
        self.marks: dict[str, str | None] = {}  # decimal marks of numeric columns
        self.reasons: dict[str, str] = {}  # of candidates that are left out
        self.ranges: dict[str, NumberRange] = {}  # of numeric candidates
        self.rows = 0
        self.bad_cells: dict[str, BadCells] = {}  # of numeric candidates
        self._evidence: dict[str, TextEvidence] = {}  # of candidates of text
        self._kinds, self._is_final = dict(kinds or {}), kinds is not None
        self._is_started = False

    def parse_chosen(
        self, batch: pa.RecordBatch, locate: Callable[[str], ColumnLocation]
    ) -> dict[str, Parsed]:
        """Parse the numeric columns that were asked for, as far as the table has them."""
        chosen = [name for name in self.roles.features if name not in self.roles.absent]
        for name in chosen:
            if name not in self.marks:
                self.marks[name] = self.decimal or find_decimal_mark(batch.column(name))
        return {
            name: parse_floats(batch.column(name), locate(name), self.fill, self.marks[name])
            for name in chosen
        }

    def read(
        self,
        batch: pa.RecordBatch,
        chosen: Mapping[str, Parsed],
        locate: Callable[[str], ColumnLocation],
        positions: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, Parsed]:
        """Read the rows of a batch that are good so far.

        Args:
            batch: The rows.
            chosen: Their chosen numeric columns.
            locate: For error messages.
            positions: Of the rows in the file, for error messages.

        Returns:
            Edge features and provisional codes of the good rows, and which rows are bad because of a candidate.
        """
        is_first, self._is_started = not self._is_started, True
        if is_first:
            self._start(batch)
        names = [name for name in self.ranges if name not in self.reasons]
        parsed = {name: self._parse_candidate(batch, name, locate, positions) for name in names}
        candidates = {name: column for name, column in parsed.items() if column is not None}
        if not is_first and not self._is_final:
            self._add_evidence(batch, candidates)
        found = find_bad_rows([*candidates.items()], len(batch))
        if found.bad.any():
            good = ~found.bad
            batch = batch.filter(pa.array(good))
            chosen, candidates = (
                {name: column.keep(good) for name, column in part.items()} for part in (chosen, candidates)
            )
        for name, column in candidates.items():
            self.ranges[name].add(column.values)
        edge = np.zeros((len(batch), len(self.numeric)), np.float32)
        for k, name in enumerate(self.numeric):
            if name in chosen or name in candidates:
                edge[:, k] = (chosen.get(name) or candidates[name]).values
            elif name in self.roles.absent:
                edge[:, k] = self.fill
        return edge, self._encode(batch), found

    def _start(self, batch: pa.RecordBatch) -> None:
        """Decide the kinds of all candidates by the first batch, unless all their values are known."""
        for name in self.roles.candidates:
            column = batch.column(name)
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if is_text_type(kind):
                self._start_text(name, column)
            elif pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
                self.reasons[name] = HOLDS_DATES if pa.types.is_temporal(kind) else f"has type {kind}"
            else:
                self._add_numeric(name, None)

    def _start_text(self, name: str, column: pa.Array) -> None:
        words = [word for word in as_category_text(column.slice(0, SAMPLE_ROWS)).to_pylist() if word]
        evidence = self._evidence[name] = TextEvidence()
        evidence.starts_plain = bool(words) and all(
            classify_field(word) == "number" or word.lower() in ("true", "false", "inf", "-inf")
            for word in words
        )
        evidence.starts_dated = bool(words) and all(classify_field(word) == "date" for word in words)
        evidence.add(column)
        kind = self._kinds.setdefault(name, self._choose_kind(evidence))
        if kind.reason:
            self.reasons[name] = kind.reason
        elif kind.is_numeric:
            self._add_numeric(name, kind.mark)
        else:
            self.vocabularies.append(Vocabulary(name))

    def _add_evidence(self, batch: pa.RecordBatch, candidates: Mapping[str, Parsed]) -> None:
        """Count the values of another batch; those of categories are counted with their codes."""
        for name, evidence in self._evidence.items():
            column, kind = candidates.get(name), self._kinds[name]
            if column is not None and not column.bad.any() and self.fill is None and kind.mark != ",":
                evidence.add_plain(batch.column(name))  # no value is missing, so all are numbers
            elif kind.is_numeric or kind.reason:
                evidence.add(batch.column(name))

    def _choose_kind(self, evidence: TextEvidence) -> TextKind:
        return evidence.choose_kind(self.fill, self.decimal, MAX_BAD_CELLS if self.keep_numeric else 0.0)

    def _add_numeric(self, name: str, mark: str | None) -> None:
        self.numeric.append(name)
        self.marks[name], self.ranges[name] = mark, NumberRange()

    def _parse_candidate(
        self,
        batch: pa.RecordBatch,
        name: str,
        locate: Callable[[str], ColumnLocation],
        positions: np.ndarray,
    ) -> Parsed | None:
        """Parse a numeric candidate; bad are values that are no numbers. None if others make it unusable."""
        column = batch.column(name)
        try:
            parsed = parse_floats(column, locate(name), self.fill, self.marks[name])
        except FileError:
            self.reasons[name] = "is not numeric"
            return None
        if not parsed.bad.any():
            return parsed
        bad = np.zeros(len(batch), bool)
        if self.keep_numeric and is_text_type(column.type):
            fits, missing = find_numbers(column, self.marks[name])
            bad = ~(fits | missing)
        if bool((parsed.bad & ~bad).any()):  # gaps, or numbers that are too large
            problem, _ = parsed.explain(int((parsed.bad & ~bad).argmax()))
            self.reasons[name] = HAS_GAPS if problem == NO_VALUE else problem
            return None
        first = int(bad.argmax())
        value = quote_value(strip_whitespace(column), first)
        cells = self.bad_cells.setdefault(name, BadCells(value, int(positions[first])))
        cells.count += int(bad.sum())
        return Parsed(parsed.values, bad, parsed.explain)

    def _encode(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the provisional codes of categorical columns."""
        codes = np.zeros((len(batch), len(self.vocabularies)), np.int32)
        for k, words in enumerate(self.vocabularies):
            if words.name in self.reasons:
                continue
            absent = words.name in self.roles.absent
            codes[:, k] = words.encode(
                pa.nulls(len(batch), pa.string()) if absent else batch.column(words.name)
            )
            most = MAX_CHOSEN_VALUES if words.name in self.roles.types else MAX_VALUES
            if len(words) > most:
                self.reasons[words.name] = f"has more than {most:,} different values, like text or ids"
                self._evidence.pop(words.name, None)  # whatever follows, it is text
        self.rows += len(batch)
        return codes

    def revise_kinds(self) -> dict[str, TextKind]:
        """Return the kinds by all values if the table must be read again by them; empty if it was read so.

        That is where the first batch showed something else, or rows are bad for a column that is left out in the end.
        """
        if self._is_final:
            return {}
        for words in self.vocabularies:
            if (evidence := self._evidence.get(words.name)) is not None:
                fresh = TextEvidence(starts_plain=evidence.starts_plain, starts_dated=evidence.starts_dated)
                fresh.add_words(*words.count_values())
                self._evidence[words.name] = fresh
        final = {name: self._choose_kind(evidence) for name, evidence in self._evidence.items()}
        for name, kind in final.items():
            used = self._kinds[name]
            is_lost = bool(kind.reason or name in self.reasons) and name in self.bad_cells
            if (
                is_lost
                or (used.reason and not kind.reason)
                or not self._evidence[name].reads_alike(used, kind)
            ):
                return self._kinds | final
        self.reasons |= {name: kind.reason for name, kind in final.items() if kind.reason}
        return {}

    def raise_for_bad_cells(self, bad_rows: BadRows) -> None:
        """Raise FileError for a numeric column in which a few values are no numbers, unless their rows are skipped."""
        for name, cells in self.bad_cells.items() if not bad_rows.skip else ():
            advice = "correct them" if cells.count > 1 else "correct it"
            if bad_rows.skip is not None:
                advice += (
                    f", leave out such rows with `skip_bad=True`, read the column as categories with `types={name!r}`, "
                    "or name only the columns you want with `features` and `types`"
                )
            number = f"{cells.count:,} values that are not finite numbers, the first is"
            if cells.count == 1:
                number = "1 value that is not a finite number,"
            raise FileError(
                f"{bad_rows.source}: column {name!r} has {number} {cells.value} in data row "
                f"{bad_rows.number_row(cells.position)}; {advice}",
                code="bad-rows",
            )

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
