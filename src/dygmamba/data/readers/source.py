"""A table of any kind, opened: what its columns are called, and its rows batch by batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dygmamba.data.readers.header import Header
from dygmamba.data.readers.options import ColumnRoles, TableMetadata
from dygmamba.data.readers.values import BadRows

if TYPE_CHECKING:
    from dygmamba.data.readers.in_memory import InMemoryTable


@dataclass(frozen=True, slots=True)
class Source:
    """An open table.

    Attributes:
        format: One of `FORMATS`.
        names: Its columns.
        iterate: Iterates over the columns of some roles; rows without the right columns go to `BadRows`. Columns of
            text files are text, and ids are dictionary-encoded.
        place: The file, or a few words for a table in memory.
        batches: About how many batches there are.
        header: The first lines of delimited text.
        table: The table in memory.
        metadata: What the table says about itself.
    """

    format: str
    names: tuple[str, ...]
    iterate: Callable[[ColumnRoles, BadRows], Iterable[pa.RecordBatch]]
    place: Path | str
    batches: int = 1
    header: Header | None = None
    table: "InMemoryTable | None" = None
    metadata: TableMetadata = field(default_factory=TableMetadata)

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return str(self.place)

    def read(self, roles: ColumnRoles, bad_rows: BadRows) -> pa.Table:
        """Read the columns of some roles whole; raise FileError for malformed rows unless they are skipped."""
        batches = list(self.iterate(roles, bad_rows))
        bad_rows.raise_unless_skipped()
        # without a row that can be read there may be no batch either, and hence no schema
        nothing = pa.schema([(name, pa.string()) for name in roles.columns])
        return pa.Table.from_batches(batches, None if batches else nothing)
