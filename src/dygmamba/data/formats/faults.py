"""Rows that cannot be read: counted, the first few shown, and refused unless the user goes on without them."""

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from dygmamba.errors import FileError

SHOWN = 5
MANY = 1_000  # so many are counted before a file that is to be refused is given up
MOSTLY = 0.5  # a file of which more is bad is not a file with bad rows


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A row, counted from 1 after any header, what is wrong with it and what to do."""

    row: int
    why: str
    do: str = "mend it"

    def __str__(self) -> str:
        return f"data row {self.row}{',' * self.why.startswith('column')} {self.why}"


@dataclass(slots=True)
class Faults:
    """The bad rows of one file; `skip`: they are left out."""

    where: str
    skip: bool
    count: int = 0
    first: list[Fault] = field(default_factory=list)
    rows: int = 0  # read so far, good and bad
    _torn: list[int] = field(
        default_factory=list
    )  # row - position of those that never became a row of a batch

    def torn(self, row: int, why: str) -> None:
        """A row that has no columns to speak of; later ones are numbered behind it."""
        self._torn.append(row - len(self._torn))
        self._add(Fault(row, why, "mend it, or check `delimiter` and quotes"))

    def bad(self, place: int, why: str, do: str) -> None:
        """A row with a bad value, the place-th (from 0) of those that have the right number of columns."""
        self._add(Fault(place + 1 + bisect_right(self._torn, place + 1), why, do))

    def _add(self, fault: Fault) -> None:
        self.count += 1
        self.rows = max(self.rows, fault.row)
        insort(self.first, fault)
        del self.first[SHOWN:]
        if self.count <= MANY:
            return
        if not self.skip:
            raise FileError(self.sentence(f"more than {MANY:,} bad rows"))
        if self.count > MOSTLY * self.rows:
            raise FileError(
                f"{self.where}: most rows are bad ({self.count:,} of the first {self.rows:,}), "
                f"{self.listed()}; check which columns are meant"
            )

    def settle(self) -> None:
        """Refuse the file, unless all is well or bad rows are to be left out."""
        if self.count and not self.skip:
            raise FileError(self.sentence(f"{self.count:,} bad rows"))

    def sentence(self, number: str) -> str:
        """One bad row in full, several as a list."""
        if self.count == 1:
            (only,) = self.first
            return f"{self.where}: {only}; {only.do}, or leave out bad rows with `skip_bad=True`"
        ways = {fault.do for fault in self.first}
        do = ways.pop() if len(ways) == 1 else "mend them"
        return f"{self.where} has {number}: {self.listed()}; {do}, or leave out bad rows with `skip_bad=True`"

    def listed(self) -> str:
        """The first few, and how many more there are."""
        more = self.count - len(self.first)
        return "; ".join(map(str, self.first)) + (f"; and {more:,} more" if more else "")
