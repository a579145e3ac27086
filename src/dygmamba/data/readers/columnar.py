"""Parquet and Arrow (Feather) files: read whole as events, or some of their columns."""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dygmamba.core.errors import FileError, first_line
from dygmamba.data.readers.options import ColumnRoles, ReadOptions, assign_roles, read_table_metadata
from dygmamba.data.readers.table import build_dataset, read_table
from dygmamba.data.readers.values import is_text_type

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
    id_type = _choose_id_type(source, schema, roles)
    for batch in batches:
        for name in (roles.src, roles.dst):
            try:
                ids = _as_whole_ids(batch.column(name)).cast(id_type).dictionary_encode()
            except pa.ArrowInvalid as error:
                raise FileError(
                    f"{source}: column {name!r} holds values that are not ids ({first_line(error)}); give integers "
                    "or strings",
                    code="column-not-ids",
                ) from error
            batch = batch.set_column(batch.schema.get_field_index(name), name, ids)
        yield batch


def _choose_id_type(source: Path | str, schema: pa.Schema, roles: ColumnRoles) -> pa.DataType:
    """Choose integers if both columns hold them, else strings."""
    types = []
    for name in (roles.src, roles.dst):
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text_type(kind)):
            raise FileError(
                f"{source}: column {name!r} has type {kind}, not an id; give integers or strings",
                code="column-not-ids",
            )
        types.append(kind)
    # unsigned 64-bit ids need not fit the signed integers; as strings they always do
    all_integers = all(not is_text_type(kind) and kind != pa.uint64() for kind in types)
    return pa.int64() if all_integers else pa.string()


def _as_whole_ids(column: pa.Array) -> pa.Array:
    """Decode the dictionary, and turn the floats that data frames make of integers with gaps back into integers."""
    ids = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    if not pa.types.is_floating(ids.type):
        return ids
    return pc.if_else(pc.is_nan(ids), pa.scalar(None, ids.type), ids).cast(pa.int64())


def read_parquet(path: Path, options: ReadOptions) -> "Dataset":
    """Read a Parquet file with one event per row; column types tell numbers from dates."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # pre_buffer would keep all that was read
            names = file.schema_arrow.names
            options = read_table_metadata(file.schema_arrow.metadata).fill_options(options, names)
            roles = assign_roles(path, names, options)
            rows = file.iter_batches(batch_size=BATCH_ROWS, columns=roles.columns)
            batches = encode_id_columns(path, file.schema_arrow, rows, roles)
            batches = options.watch(batches, 1 + file.metadata.num_rows // BATCH_ROWS)
            return build_dataset(path, *read_table(path, "parquet", batches, roles, options))
    except DAMAGED_COLUMNAR_ERRORS as error:
        raise _damaged_error(path, "parquet", error) from error


def read_arrow(path: Path, options: ReadOptions) -> "Dataset":
    """Read an Arrow file with one event per row; column types tell numbers from dates."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            schema = file.schema
            options = read_table_metadata(schema.metadata).fill_options(options, schema.names)
            roles = assign_roles(path, schema.names, options)
            rows = iter_valid_batches(file, roles.columns)
            batches = options.watch(encode_id_columns(path, schema, rows, roles), file.num_record_batches)
            return build_dataset(path, *read_table(path, "arrow", batches, roles, options))
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
