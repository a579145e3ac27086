"""Events of an open table: which column is what, and its rows as a dataset."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dygmamba.core.errors import FileError
from dygmamba.data.readers.columnar import encode_id_columns
from dygmamba.data.readers.delimited import read_csv_rows
from dygmamba.data.readers.header import (
    SAMPLE_ROWS,
    Header,
    assign_by_content,
    assign_by_position,
    looks_like_time,
)
from dygmamba.data.readers.options import (
    USUAL_NAMES,
    ColumnRoles,
    ReadOptions,
    assign_roles,
    find_usual_column,
)
from dygmamba.data.readers.other_columns import as_category_text
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
        return _read_delimited(source, source.place, source.header, options)
    if source.format == "jsonl":
        options.reject("JSONL", "delimiter", "header")
    options = _find_time(source, _fill_options(source, options, bipartite))
    roles = assign_roles(source.place, source.names, options)
    if source.table is not None:
        roles = source.table.drop_mixed_candidates(roles)

    def open_batches(bad_rows: BadRows) -> Iterable[pa.RecordBatch]:
        rows = source.iterate(roles, bad_rows)
        batches = rows if source.format == "jsonl" else encode_id_columns(source.place, rows, roles)
        return options.watch(iter(batches), source.batches)

    return build_dataset(source.place, *read_table(source.place, source.format, open_batches, roles, options))


def _read_delimited(source: Source, path: Path, header: Header, options: ReadOptions) -> "Dataset":
    """Read a file with one event per line, with or without a line of column names."""
    chosen = assign_by_content(header, assign_by_position(path, header, options))
    chosen = _find_time(source, chosen)
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


def _find_time(source: Source, options: ReadOptions) -> ReadOptions:
    """Choose the only column that holds times, whatever its name, where the other two are known by theirs."""
    known = {role: getattr(options, role) or find_usual_column(source.names, role) for role in USUAL_NAMES}
    if known["time"] is not None or None in (known["src"], known["dst"]):
        return options
    used = {*known.values(), *options.features, *options.types, options.label, ""}
    free = [name for name in source.names if name not in used]
    times = [name for name, column in _sample_columns(source, free).items() if looks_like_time(column)]
    return replace(options, time=times[0]) if len(times) == 1 else options


def _sample_columns(source: Source, names: list[str]) -> dict[str, list[str]]:
    """Return the first values of columns as text; empty where they cannot be read, which is reported elsewhere."""
    if source.header is not None:
        rows = [row for row in source.header.sample if len(row) == len(source.names)]
        place = {name: k for k, name in enumerate(source.names)}
        return {name: [row[place[name]].strip() for row in rows] for name in names} if rows else {}
    sample = {}
    for name in names:
        try:
            batch = next(
                iter(source.iterate(ColumnRoles(name, name, name), BadRows(source.name, True))), None
            )
            column = None if batch is None else as_category_text(batch.column(0).slice(0, SAMPLE_ROWS))
        except (FileError, pa.ArrowException):
            column = None
        if column is not None and len(column):
            sample[name] = column.to_pylist()
    return sample
