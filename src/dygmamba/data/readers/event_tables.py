"""Events of an open table: which column is what, and its rows as a dataset."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dygmamba.data.readers.columnar import encode_id_columns
from dygmamba.data.readers.delimited import read_csv_rows
from dygmamba.data.readers.header import Header, assign_by_content, assign_by_position
from dygmamba.data.readers.options import ReadOptions, assign_roles
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.table import build_dataset, read_table
from dygmamba.data.readers.values import BadRows

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset


def read_events(source: Source, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """Read a table with one event per row.

    `bipartite` is the caller's setting for a table in memory; None means that the table's metadata decides.
    """
    if source.header is not None and isinstance(source.place, Path):
        return _read_delimited(source.place, source.header, options)
    if source.format == "jsonl":
        options.reject("JSONL", "delimiter", "header")
    options = _fill_options(source, options, bipartite)
    roles = assign_roles(source.place, source.names, options)
    if source.table is not None:
        roles = source.table.drop_mixed_candidates(roles)

    def open_batches(bad_rows: BadRows) -> Iterable[pa.RecordBatch]:
        rows = source.iterate(roles, bad_rows)
        batches = rows if source.format == "jsonl" else encode_id_columns(source.place, rows, roles)
        return options.watch(iter(batches), source.batches)

    return build_dataset(source.place, *read_table(source.place, source.format, open_batches, roles, options))


def _read_delimited(path: Path, header: Header, options: ReadOptions) -> "Dataset":
    """Read a file with one event per line, with or without a line of column names."""
    chosen = assign_by_content(header, assign_by_position(path, header, options))
    roles = assign_roles(path, header.names, chosen)
    columns, ids, origin = read_csv_rows(path, "csv", header, roles, options)
    origin = replace(origin, header=header.named, delimiter=header.delimiter, comments=header.comments)
    return build_dataset(path, columns, ids, origin)


def _fill_options(source: Source, options: ReadOptions, bipartite: bool | None) -> ReadOptions:
    """Fill in what the table says about itself; of a table in memory, a matrix stands for its columns."""
    table = source.table
    if table is None:
        return source.metadata.fill_options(options, source.names)
    options = source.metadata.fill_options(options, (*table.names, *table.matrices), bipartite)
    chosen = options.features if options.features or options.types else table.features
    return replace(
        options, features=tuple(column for name in chosen for column in table.matrices.get(name, (name,)))
    )
