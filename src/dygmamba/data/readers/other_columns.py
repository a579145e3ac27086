"""Columns beside source, destination and time: which become edge features, which categorical codes, which neither.

With `features` or `types`, exactly these columns are read, and a value that does not fit is a bad row. Without them
every other column of a table is a candidate: numbers are edge features, text is categorical. Text is numbers if nearly
all values of the column are; the first batch is read by what it shows, and the table again if its other rows show
something else. A candidate that turns out not to be usable is left out, and the reason is recorded. Only one that
nearly always holds numbers is an error, or its other rows are bad rows: a typing error must not cost the column.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import FileError
from dygmamba.data.events.categories import Category
from dygmamba.data.readers.bad_rows import BadRows, ColumnLocation, Parsed, ReadAgainError
from dygmamba.data.readers.column_kinds import (
    HAS_GAPS,
    HOLDS_DATES,
    MAX_BAD_CELLS,
    TextEvidence,
    TextKind,
    Vocabulary,
)
from dygmamba.data.readers.options import Layout
from dygmamba.data.readers.values import (
    NO_VALUE,
    find_numbers,
    is_text_type,
    parse_floats,
    quote_value,
    strip_whitespace,
)

MAX_VALUES = 1000  # of a categorical column that was not asked for; more look like text or ids
MAX_CHOSEN_VALUES = 1 << 20  # of one that was
FEW_ROWS = 20  # with fewer rows, one repeated value makes a column categorical, and rising numbers are no row numbers


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
    """Values of a numeric candidate that are no numbers: the first, its position, and how many there are."""

    value: str
    position: int
    count: int = 0


@dataclass(slots=True)
class Candidate:
    """A column that nobody named: what it is read as so far, and what its values show."""

    name: str
    mark: str | None = None  # decimal mark of numbers
    kind: TextKind | None = None  # of text, which it is read as
    evidence: TextEvidence | None = None  # of text
    range: NumberRange | None = None  # of numbers
    reason: str = ""  # why it is left out
    bad_cells: BadCells | None = None


@dataclass(frozen=True, slots=True)
class FinishedColumns:
    """Kinds of the other columns, decided by all rows: edge features, categories, and columns that are not used."""

    names: tuple[str, ...]  # of the edge features
    categories: tuple[Category, ...]
    unused: dict[str, str]  # columns that are not read, with the reason
    marks: set[str | None]  # decimal marks of candidates
    numeric: list[int]  # places of the edge features among those that were read
    orders: dict[int, np.ndarray]  # final codes by place of the categorical column and provisional code

    def select(self, edge: np.ndarray, codes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the columns that `OtherColumns.read` gave without those that are not used, with final codes."""
        if len(self.numeric) < edge.shape[1]:
            edge = np.ascontiguousarray(edge[:, self.numeric])
        final = [] if codes is None else [order[codes[:, k]] for k, order in self.orders.items()]
        return edge, np.stack(final, axis=1) if final else None


class OtherColumns:
    """Reader of the other columns of one table: `read` takes batch after batch, and `finish` says what they are.

    Args:
        bad_rows: Of the table; rows with a bad value of a candidate are added.
        layout: Which columns they are, and how missing numbers and decimals are read.
        keep_numeric: Whether a candidate that nearly always holds numbers is numeric, and its other values are bad.
        kinds: Of candidates of text, if all their values are known; the first batch decides on others.
    """

    def __init__(
        self,
        bad_rows: BadRows,
        layout: Layout,
        keep_numeric: bool = False,
        kinds: Mapping[str, TextKind] | None = None,
    ) -> None:
        self._bad_rows, self._layout, self._keep_numeric, self._kinds = bad_rows, layout, keep_numeric, kinds
        self._numeric: list[str] = [*layout.features]  # edge features, in order
        self._vocabularies = [Vocabulary(name) for name in layout.types]  # categorical columns, in order
        self._candidates: dict[str, Candidate] | None = None  # known from the first batch on
        self._reasons: dict[str, str] = {}  # of categorical columns with too many values
        self._rows = 0

    def read(
        self, batch: pa.RecordBatch, chosen: Mapping[str, Parsed], positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Read the rows of a batch that are good so far.

        Args:
            batch: The rows.
            chosen: Their numeric columns that were asked for.
            positions: Of the rows in the file, for error messages.

        Returns:
            Edge features and provisional codes of the good rows, and a mask of those.
        """
        is_first = self._candidates is None
        if self._candidates is None:
            self._candidates = {
                name: self._start(name, batch.column(name)) for name in self._layout.candidates
            }
        parsed: dict[str, Parsed] = {}
        for name, candidate in self._candidates.items():
            if candidate.range is not None and not candidate.reason:
                column = self._parse(candidate, batch.column(name), positions)
                parsed |= {} if column is None else {name: column}
            if candidate.evidence is not None and not is_first and self._kinds is None:
                self._add_evidence(candidate, batch.column(name), parsed.get(name))
        good = self._bad_rows.judge([*parsed.items()], positions, certain=False)
        values = {**chosen, **parsed}
        if not good.all():
            batch = batch.filter(pa.array(good))
            values = {name: column.keep(good) for name, column in values.items()}
        for name in parsed:
            self._candidates[name].range.add(values[name].values)  # pyright: ignore[reportOptionalMemberAccess]
        edge = np.zeros((len(batch), len(self._numeric)), np.float32)
        for k, name in enumerate(self._numeric):
            if name in values:
                edge[:, k] = values[name].values
            elif name in self._layout.absent:
                edge[:, k] = self._layout.fill
        return edge, self._encode(batch), good

    def _start(self, name: str, column: pa.Array) -> Candidate:
        """Decide what a candidate is by the first batch, unless all its values are known."""
        candidate = Candidate(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if is_text_type(kind):
            candidate.evidence = TextEvidence.start(column)
            candidate.kind = (self._kinds or {}).get(name) or self._choose_kind(candidate.evidence)
            candidate.reason, candidate.mark = candidate.kind.reason, candidate.kind.mark
        elif pa.types.is_temporal(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
            candidate.reason = HOLDS_DATES if pa.types.is_temporal(kind) else f"has type {kind}"
        if candidate.reason:
            return candidate
        if candidate.kind is None or candidate.kind.is_numeric:
            candidate.range = NumberRange()
            self._numeric.append(name)
        else:
            self._vocabularies.append(Vocabulary(name))
        return candidate

    def _choose_kind(self, evidence: TextEvidence) -> TextKind:
        most_bad = MAX_BAD_CELLS if self._keep_numeric else 0.0
        return evidence.choose_kind(self._layout.fill, self._layout.decimal, most_bad)

    def _parse(self, candidate: Candidate, column: pa.Array, positions: np.ndarray) -> Parsed | None:
        """Parse a numeric candidate; bad are values that are no numbers. None if others make it unusable."""
        location = ColumnLocation(self._bad_rows.source, candidate.name)
        try:
            parsed = parse_floats(column, location, self._layout.fill, candidate.mark)
        except FileError:
            candidate.reason = "is not numeric"
            return None
        if not parsed.bad.any():
            return parsed
        bad = np.zeros(len(column), bool)
        if self._keep_numeric and is_text_type(column.type):
            fits, missing = find_numbers(column, candidate.mark)
            bad = ~(fits | missing)
        if bool((parsed.bad & ~bad).any()):  # gaps, or numbers that are too large
            problem, _ = parsed.explain(int((parsed.bad & ~bad).argmax()))
            candidate.reason = HAS_GAPS if problem == NO_VALUE else problem
            return None
        first = int(bad.argmax())
        if candidate.bad_cells is None:
            value = quote_value(strip_whitespace(column), first)
            candidate.bad_cells = BadCells(value, int(positions[first]))
        candidate.bad_cells.count += int(bad.sum())
        return Parsed(parsed.values, bad, parsed.explain)

    def _add_evidence(self, candidate: Candidate, column: pa.Array, parsed: Parsed | None) -> None:
        """Count the values of another batch; those of categories are counted with their codes."""
        assert candidate.evidence is not None
        assert candidate.kind is not None
        is_plain = self._layout.fill is None and candidate.mark != ","
        if parsed is not None and not parsed.bad.any() and is_plain:
            candidate.evidence.add_plain(column)  # no value is missing, so all are numbers
        elif candidate.kind.is_numeric or candidate.kind.reason:
            candidate.evidence.add(column)

    def _encode(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the provisional codes of categorical columns."""
        codes = np.zeros((len(batch), len(self._vocabularies)), np.int32)
        for k, words in enumerate(self._vocabularies):
            if words.name in self._reasons:
                continue
            absent = words.name in self._layout.absent
            codes[:, k] = words.encode(
                pa.nulls(len(batch), pa.string()) if absent else batch.column(words.name)
            )
            most = MAX_CHOSEN_VALUES if words.name in self._layout.types else MAX_VALUES
            if len(words) > most:
                self._reasons[words.name] = f"has more than {most:,} different values, like text or ids"
        self._rows += len(batch)
        return codes

    def finish(self, keep_constants: bool = False) -> FinishedColumns:
        """Return what the columns are, after all rows.

        Args:
            keep_constants: Whether to keep columns that say nothing about events.

        Raises:
            ReadAgainError: All rows show that the kinds of columns differ from those of the first.
            FileError: Rows are bad, a few values of a numeric column among them, and they are not skipped.
        """
        candidates = self._candidates or {}
        if self._kinds is None:
            self._revise_kinds(candidates)
        self._bad_rows.raise_unless_skipped()
        if not self._bad_rows.skip:
            for candidate in candidates.values():
                _raise_for_bad_cells(candidate, self._bad_rows)
        reasons = {name: found.reason for name, found in candidates.items() if found.reason} | self._reasons
        reasons |= {} if keep_constants else self._find_uninformative(reasons)
        numeric = [k for k, name in enumerate(self._numeric) if name not in reasons]
        finished = {
            k: words.finish() for k, words in enumerate(self._vocabularies) if words.name not in reasons
        }
        return FinishedColumns(
            names=tuple(self._numeric[k] for k in numeric),
            categories=tuple(category for category, _ in finished.values()),
            unused={**reasons, **self._layout.unused},
            marks={found.mark for found in candidates.values() if found.range is not None},
            numeric=numeric,
            orders={k: order for k, (_, order) in finished.items()},
        )

    def _revise_kinds(self, candidates: Mapping[str, Candidate]) -> None:
        """Raise ReadAgain with the kinds by all values where the first batch showed something else.

        That is also where rows are bad for a column that is left out in the end.
        """
        words = {words.name: words for words in self._vocabularies}
        kinds: dict[str, TextKind] = {}
        must_read_again = False
        for name, candidate in candidates.items():
            if candidate.kind is None or candidate.evidence is None:
                continue
            used, evidence = candidate.kind, candidate.evidence
            kinds[name] = used
            if name in self._reasons:  # whatever follows, it is text
                continue
            if name in words:
                evidence = evidence.recount(*words[name].count_values())
            kind = kinds[name] = self._choose_kind(evidence)
            is_lost = bool(kind.reason or candidate.reason) and candidate.bad_cells is not None
            is_usable = bool(used.reason) and not kind.reason
            must_read_again |= is_lost or is_usable or not evidence.reads_alike(used, kind)
            candidate.reason = kind.reason or candidate.reason
        if must_read_again:
            raise ReadAgainError(kinds=kinds)

    def _find_uninformative(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Return candidates that say nothing with the reason: constants, row numbers, and text that hardly repeats."""
        found, rows = {}, self._rows
        for name, candidate in (self._candidates or {}).items():
            if candidate.range is None or name in reasons:
                continue
            if candidate.range.low == candidate.range.high:
                found[name] = "is constant"
            elif candidate.range.is_rising and rows >= FEW_ROWS:
                found[name] = "rises from row to row, like a row number"
        for words in self._vocabularies:
            if words.name in reasons or words.name in self._layout.types:
                continue
            if len(words) < 2:
                found[words.name] = "is constant"
            elif len(words) > rows / 2 and (rows >= FEW_ROWS or len(words) == rows):
                found[words.name] = f"has {len(words):,} different values in {rows:,} rows, like text or ids"
        return found


def _raise_for_bad_cells(candidate: Candidate, bad_rows: BadRows) -> None:
    """Raise FileError for a numeric column in which a few values are no numbers."""
    cells, name = candidate.bad_cells, candidate.name
    if cells is None:
        return
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
