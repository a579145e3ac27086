"""Parquet and Arrow (Feather) files, whose columns have types."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.events.id_values import convert_id_column
from dygmamba.data.readers.options import ColumnRoles, read_table_metadata
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.values import BadRows, ColumnLocation

BATCH_ROWS = 1 << 17
COLUMNAR_FORMATS = {"parquet": "Parquet", "arrow": "Arrow"}  # format: its name in messages
ARROW_MAGIC = b"ARROW1"
# what a damaged file raises; UnicodeDecodeError comes from column names
DAMAGED_COLUMNAR_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


def encode_id_columns(
    source: Path | str, batches: Iterable[pa.RecordBatch], roles: ColumnRoles
) -> Iterator[pa.RecordBatch]:
    """Dictionary-encode sources and destinations, as integers or as strings."""
    locations = {name: ColumnLocation(str(source), name, 0) for name in (roles.src, roles.dst)}
    id_type = None
    for batch in batches:
        ids = {name: convert_ids(batch.column(name), location) for name, location in locations.items()}
        if id_type is None:
            id_type = pa.string() if pa.string() in [column.type for column in ids.values()] else pa.int64()
        for name, column in ids.items():
            encoded = column.cast(id_type).dictionary_encode()
            batch = batch.set_column(batch.schema.get_field_index(name), name, encoded)
        yield batch


def convert_ids(column: pa.Array, location: ColumnLocation) -> pa.Array:
    """Return a column of ids as integers or text (`convert_id_column`); raise FileError if it holds other values."""
    try:
        return convert_id_column(column)
    except ValueError as error:
        raise location.bad_column(first_line(error), "give integers or strings", "column-not-ids") from error


@contextmanager
def open_parquet(path: Path) -> Iterator[Source]:
    """Open a Parquet file."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # pre_buffer would keep all that was read

            def iterate(roles: ColumnRoles, _: BadRows) -> Iterator[pa.RecordBatch]:
                return file.iter_batches(batch_size=BATCH_ROWS, columns=roles.columns)

            schema, expected = file.schema_arrow, 1 + file.metadata.num_rows // BATCH_ROWS
            metadata = read_table_metadata(schema.metadata)
            yield Source("parquet", tuple(schema.names), iterate, path, expected, metadata=metadata)
    except DAMAGED_COLUMNAR_ERRORS as error:
        raise _damaged_error(path, "parquet", error) from error


@contextmanager
def open_arrow(path: Path) -> Iterator[Source]:
    """Open an Arrow file."""
    try:
        with pa.OSFile(str(path)) as stream, pa.ipc.open_file(stream) as file:

            def iterate(roles: ColumnRoles, _: BadRows) -> Iterator[pa.RecordBatch]:
                return iter_valid_batches(file, roles.columns)

            schema, expected = file.schema, file.num_record_batches
            metadata = read_table_metadata(schema.metadata)
            yield Source("arrow", tuple(schema.names), iterate, path, expected, metadata=metadata)
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


def _damaged_error(path: Path, format: str, error: Exception) -> FileError:
    reason = first_line(error).split(". ")[0]
    return FileError(
        f"{path} is not a complete {COLUMNAR_FORMATS[format]} file ({reason}); write or copy it again",
        code="file-damaged",
    )
