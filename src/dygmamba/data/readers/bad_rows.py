"""Bad rows: parsed columns with masks of the values that cannot be read, and the count of rows that have one.

Every error names the data row, the column and the value. Bad rows are counted and the first few shown; they are an
error unless the user skips them (`skip_bad`).
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import FileError

NOT_TEXT = "is not UTF-8 text"
MAX_SHOWN = 5
MAX_BAD_ROWS = 1_000  # without `skip_bad`, reading stops after this many
MAX_BAD_SHARE = 0.5  # with more bad rows than this, the columns are probably misunderstood


class BadValueError(FileError):
    """One value that cannot be read, its row from 0, and the parts `problem` and `advice` of its message."""

    code = "bad-value"

    def __init__(self, message: str, problem: str, advice: str, row: int) -> None:
        super().__init__(message)
        self.problem, self.advice, self.row = problem, advice, row


class ReadAgainError(Exception):
    """All rows of a table show that it must be read in another way than by its first rows; `decided` says how."""

    def __init__(self, **decided: Any) -> None:
        super().__init__()
        self.decided = decided


@dataclass(frozen=True, slots=True)
class ColumnLocation:
    """A column of a file, for error messages; data rows are numbered from 1, after any header."""

    file: str
    column: str

    def bad_value(self, row: int, problem: str, advice: str) -> BadValueError:
        """Build the error for the value in this row of the run."""
        problem = f"column {self.column!r} {problem}"
        message = f"{self.file}: data row {row + 1}, {problem}; {advice}"
        return BadValueError(message, problem, advice, row)

    def bad_column(self, problem: str, advice: str, code: str) -> FileError:
        """Build the error for the column as a whole."""
        return FileError(f"{self.file}: column {self.column!r} {problem}; {advice}", code=code)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The values of a column, which of its rows are bad, and what is wrong with each of those."""

    values: Any  # a numpy or Arrow array; where a row is bad, anything
    bad: np.ndarray  # a mask
    explain: Callable[[int], tuple[str, str]]  # problem and advice of a bad row

    def require(self, location: ColumnLocation) -> Any:
        """Return the values; raise `BadValueError` for the first bad row."""
        if self.bad.any():
            row = int(self.bad.argmax())
            raise location.bad_value(row, *self.explain(row))
        return self.values

    def keep(self, rows: np.ndarray) -> "Parsed":
        """Return some rows, given by a mask; ids that only other rows have are no longer in the dictionary."""
        if isinstance(self.values, np.ndarray):
            return Parsed(self.values[rows], self.bad[rows], self.explain)
        values = self.values.filter(pa.array(rows))
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode().dictionary_encode()
        return Parsed(values, self.bad[rows], self.explain)


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that cannot be read, numbered from 1 after any header."""

    row: int
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"data row {self.row}{',' * self.problem.startswith('column')} {self.problem}"


@dataclass(slots=True)
class BadRows:
    """The bad rows of one file: how many, and the first few; with `skip` they are left out."""

    source: str
    skip: bool | None  # None: the user has no option for it, so that messages do not name it
    count: int = 0
    certain: int = 0  # of these, rows that are bad however the file goes on
    first: list[BadRow] = field(default_factory=list)
    rows_read: int = 0  # good and bad
    # of each malformed row, its number minus how many malformed rows came before it
    _malformed: list[int] = field(default_factory=list)

    def add_malformed(self, row: int, problem: str, advice: str = "correct it") -> None:
        """Add a row without the right columns. It is in no batch, so later rows have higher numbers."""
        self._malformed.append(row - len(self._malformed))
        self._show(BadRow(row, problem, advice))
        self.count, self.certain, self.rows_read = self.count + 1, self.certain + 1, max(self.rows_read, row)
        self._check()

    def judge(
        self, columns: Sequence[tuple[str, Parsed]], positions: np.ndarray, *, certain: bool = True
    ) -> np.ndarray:
        """Return a mask of the rows that are good in all of these columns, and count the others.

        Args:
            columns: Each with its name; the first one in which a row is bad is named.
            positions: Of the rows among well-formed ones, from 0.
            certain: Whether rows are bad however the file goes on; only those can end the reading early.
        """
        good = np.ones(len(positions), bool)
        for _, column in columns:
            good &= ~column.bad
        bad = np.flatnonzero(~good)
        for row in bad[:MAX_SHOWN].tolist():
            name, column = next((name, column) for name, column in columns if column.bad[row])
            problem, advice = column.explain(row)
            self._show(BadRow(self.number_row(int(positions[row])), f"column {name!r} {problem}", advice))
        if len(bad):
            self.count += len(bad)
            self.certain += len(bad) if certain else 0
            self.rows_read = max(self.rows_read, self.number_row(int(positions[-1])))
            self._check()
        return good

    @property
    def are_undecodable(self) -> bool:
        """Whether the first ones could not be decoded, so that the encoding is to blame and not the rows."""
        return bool(self.first) and all(row.problem == NOT_TEXT for row in self.first)

    def number_row(self, position: int) -> int:
        """Return the number of a row in the file; `position` counts well-formed rows only, from 0."""
        return position + 1 + bisect_right(self._malformed, position + 1)

    def _show(self, bad_row: BadRow) -> None:
        insort(self.first, bad_row)
        del self.first[MAX_SHOWN:]

    def _check(self) -> None:
        """Raise FileError if there are too many to go on."""
        if self.certain <= MAX_BAD_ROWS:
            return
        if not self.skip:
            raise FileError(self._message(f"more than {MAX_BAD_ROWS:,} bad rows"), code="bad-rows")
        if self.certain > MAX_BAD_SHARE * self.rows_read:
            raise FileError(
                f"{self.source}: most rows are bad ({self.certain:,} of the first {self.rows_read:,}), "
                f"{self.summarize()}; check that the right columns are named as source, destination and time",
                code="mostly-bad-rows",
            )

    def raise_unless_skipped(self) -> None:
        """Raise FileError if rows are certainly bad and they are not to be left out."""
        if self.certain and not self.skip:
            raise FileError(self._message(f"{self.count:,} bad rows"), code="bad-rows")

    def _message(self, number: str) -> str:
        skip_hint = "" if self.skip is None else ", or leave out bad rows with `skip_bad=True`"
        if self.count == 1:
            (only,) = self.first
            return f"{self.source}: {only}; {only.advice}{skip_hint}"
        hints = {bad_row.advice for bad_row in self.first}
        advice = hints.pop() if len(hints) == 1 else "correct them"
        return f"{self.source} has {number}: {self.summarize()}; {advice}{skip_hint}"

    def summarize(self) -> str:
        """Return the first few, and how many more there are."""
        more = self.count - len(self.first)
        return "; ".join(map(str, self.first)) + (f"; and {more:,} more" if more else "")
