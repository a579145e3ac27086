"""Parquet and Arrow (Feather) files: read whole as events, or some of their columns."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.events.id_values import convert_id_column
from dygmamba.data.readers.options import ColumnRoles, ReadOptions, assign_roles, read_table_metadata
from dygmamba.data.readers.table import build_dataset, read_table
from dygmamba.data.readers.values import BadRows, ColumnLocation

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

BATCH_ROWS = 1 << 17
COLUMNAR_FORMATS = {"parquet": "Parquet", "arrow": "Arrow"}  # format: its name in messages
ARROW_MAGIC = b"ARROW1"
# what a damaged file raises; UnicodeDecodeError comes from column names
DAMAGED_COLUMNAR_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


def encode_id_columns(
    source: Path | str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], roles: ColumnRoles
) -> Iterator[pa.RecordBatch]:
    """Dictionary-encode sources and destinations, as integers or as strings."""
    locations = {name: ColumnLocation(str(source), name, 0) for name in (roles.src, roles.dst)}
    types = [
        convert_ids(schema.empty_table()[name].combine_chunks(), locations[name]).type for name in locations
    ]
    id_type = pa.string() if pa.string() in types else pa.int64()
    for batch in batches:
        for name, location in locations.items():
            ids = convert_ids(batch.column(name), location).cast(id_type).dictionary_encode()
            batch = batch.set_column(batch.schema.get_field_index(name), name, ids)
        yield batch


def convert_ids(column: pa.Array, location: ColumnLocation) -> pa.Array:
    """Return a column of ids as integers or text (`convert_id_column`); raise FileError if it holds other values."""
    try:
        return convert_id_column(column)
    except ValueError as error:
        raise location.bad_column(first_line(error), "give integers or strings", "column-not-ids") from error


def read_parquet(path: Path, options: ReadOptions) -> "Dataset":
    """Read a Parquet file with one event per row; column types tell numbers from dates."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # pre_buffer would keep all that was read
            names = file.schema_arrow.names
            options = read_table_metadata(file.schema_arrow.metadata).fill_options(options, names)
            roles = assign_roles(path, names, options)

            def open_batches(_: BadRows) -> Iterator[pa.RecordBatch]:
                rows = file.iter_batches(batch_size=BATCH_ROWS, columns=roles.columns)
                batches = encode_id_columns(path, file.schema_arrow, rows, roles)
                return options.watch(batches, 1 + file.metadata.num_rows // BATCH_ROWS)

            return build_dataset(path, *read_table(path, "parquet", open_batches, roles, options))
    except DAMAGED_COLUMNAR_ERRORS as error:
        raise _damaged_error(path, "parquet", error) from error


def read_arrow(path: Path, options: ReadOptions) -> "Dataset":
    """Read an Arrow file with one event per row; column types tell numbers from dates."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            schema = file.schema
            options = read_table_metadata(schema.metadata).fill_options(options, schema.names)
            roles = assign_roles(path, schema.names, options)

            def open_batches(_: BadRows) -> Iterator[pa.RecordBatch]:
                rows = iter_valid_batches(file, roles.columns)
                return options.watch(encode_id_columns(path, schema, rows, roles), file.num_record_batches)

            return build_dataset(path, *read_table(path, "arrow", open_batches, roles, options))
    except DAMAGED_COLUMNAR_ERRORS as error:
        raise _damaged_error(path, "arrow", error) from error


def iter_valid_batches(file: pa.ipc.RecordBatchFileReader, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Iterate over the batches of an Arrow file, with these columns, each validated before its first use.

    Arrow maps the buffers of a file without looking into them, and its kernels trust the offsets of strings and the
    indices of dictionaries: a flipped bit would crash the process.
    """
    for k in range(file.num_record_batches):
        batch = file.get_batch(k).select(names)
        batch.validate(full=True)
        yield batch


def read_columns(path: Path, format: str, choose: Callable[[list[str]], list[str]]) -> pa.Table:
    """Read the columns that `choose` picks from the file's column names."""
    try:
        if format == "parquet":
            with parquet.ParquetFile(path) as file:
                return file.read(columns=choose(file.schema_arrow.names))
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            names = choose(file.schema.names)
            schema = pa.schema([file.schema.field(name) for name in names])
            return pa.Table.from_batches(iter_valid_batches(file, names), schema)
    except DAMAGED_COLUMNAR_ERRORS as error:
        raise _damaged_error(path, format, error) from error


def _damaged_error(path: Path, format: str, error: Exception) -> FileError:
    reason = first_line(error).split(". ")[0]
    return FileError(
        f"{path} is not a complete {COLUMNAR_FORMATS[format]} file ({reason}); write or copy it again",
        code="file-damaged",
    )
