"""A table of any kind, opened: what its columns are called, and its rows batch by batch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dygmamba.core.errors import FileError
from dygmamba.data.readers.bad_rows import BadRows
from dygmamba.data.readers.header import SAMPLE_ROWS, Header
from dygmamba.data.readers.options import Layout
from dygmamba.data.readers.values import as_category_text


@dataclass(frozen=True, slots=True)
class Source:
    """An open table.

    Attributes:
        format: One of `FORMATS`.
        names: Its columns.
        iterate: Iterates over the columns that a layout needs, any number of times; rows without the right columns go
            to `BadRows`. Columns of text files are text, and ids of delimited text are dictionary-encoded.
        place: The file, or a few words for a table in memory.
        batches: About how many batches there are.
        header: The first lines of delimited text.
        hints: What the table says about itself.
        matrices: The columns NAME_0, NAME_1 and so on of each matrix in memory, by its name.
        features: The feature columns, if the kind of table fixes them.
    """

    format: str
    names: tuple[str, ...]
    iterate: Callable[[Layout, BadRows], Iterable[pa.RecordBatch]]
    place: Path | str
    batches: int = 1
    header: Header | None = None
    hints: Layout = field(default_factory=Layout)
    matrices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return str(self.place)

    def read(self, layout: Layout, bad_rows: BadRows) -> pa.Table:
        """Read the columns of a layout whole; raise FileError for malformed rows unless they are skipped."""
        batches = list(self.iterate(layout, bad_rows))
        bad_rows.raise_unless_skipped()
        # without a row that can be read there may be no batch either, and hence no schema
        nothing = pa.schema([(name, pa.string()) for name in layout.needed])
        return pa.Table.from_batches(batches, None if batches else nothing)

    def sample(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the first values of columns as text; columns that cannot be read are reported elsewhere, not here."""
        if self.header is not None:
            rows = [row for row in self.header.sample if len(row) == len(self.names)]
            return {name: [row[self.names.index(name)].strip() for row in rows] for name in names if rows}
        sample = {}
        for name in names:
            try:
                batch = next(iter(self.iterate(Layout(time=name), BadRows(self.name, skip=True))), None)
                column = None if batch is None else as_category_text(batch.column(0).slice(0, SAMPLE_ROWS))
            except (FileError, pa.ArrowException):
                column = None
            if column is not None and len(column):
                sample[name] = column.to_pylist()
        return sample
