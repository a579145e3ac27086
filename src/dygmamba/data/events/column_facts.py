"""Columns of events that a model reads: what is known of them from training. Nothing here needs torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumericColumn:
    """A numeric column that a model reads, with mean and standard deviation over the training events."""

    index: int  # in the edge features
    name: str
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class TypeColumn:
    """A categorical column that a model reads, with the most frequent values in training, the most frequent first."""

    index: int  # in the codes
    name: str
    codes: tuple[int, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The columns of a stream that a model may read, best first, chosen on training events."""

    numeric: tuple[NumericColumn, ...] = ()
    types: tuple[TypeColumn, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.numeric or self.types)

    def first(self, numeric: int, types: int, values: int) -> "ColumnFacts":
        """Return the first columns, and of each categorical column the `values` most frequent values."""
        kept = tuple(
            TypeColumn(column.index, column.name, column.codes[:values], column.values[:values])
            for column in self.types[:types]
            if values
        )
        return ColumnFacts(self.numeric[:numeric], kept)
