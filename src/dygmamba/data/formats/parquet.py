"""Parquet files, a run of rows at a time."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dygmamba.data.formats.options import ReadOptions, Roles, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.formats.values import is_text
from dygmamba.data.store import Dataset
from dygmamba.errors import FileError

ROWS = 1 << 17


def read(path: Path, options: ReadOptions) -> Dataset:
    """A Parquet file with one event per row; its types decide what is a number and what a date."""
    try:
        with parquet.ParquetFile(path) as file:
            roles = assign_roles(path, file.schema_arrow.names, options)
            batches = options.watch(_batches(path, file, roles), 1 + file.metadata.num_rows // ROWS)
            return arranged(path, *read_table(path, "parquet", batches, roles, options))
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0].split(". ")[0]
        raise FileError(f"{path} is not a whole Parquet file ({why}); write or copy it again") from error


def _batches(path: Path, file: parquet.ParquetFile, roles: Roles) -> Iterator[pa.RecordBatch]:
    kind = _id_type(path, file.schema_arrow, roles)
    for batch in file.iter_batches(batch_size=ROWS, columns=roles.columns):
        for name in (roles.src, roles.dst):
            try:
                ids = _whole(batch.column(name)).cast(kind).dictionary_encode()
            except pa.ArrowInvalid as error:
                raise FileError(
                    f"{path}: column {name!r} is no id ({error}); give integers or strings"
                ) from error
            batch = batch.set_column(batch.schema.get_field_index(name), name, ids)
        yield batch


def _id_type(path: Path, schema: pa.Schema, roles: Roles) -> pa.DataType:
    """Integers where both columns hold them; otherwise strings, in which integers too can be written."""
    kinds = []
    for name in (roles.src, roles.dst):
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text(kind)):
            raise FileError(f"{path}: column {name!r} is {kind}, not an id; give integers or strings")
        kinds.append(kind)
    # unsigned 64-bit ids need not fit the signed integers; as strings they always do
    plain = all(not is_text(kind) and kind != pa.uint64() for kind in kinds)
    return pa.int64() if plain else pa.string()


def _whole(column: pa.Array) -> pa.Array:
    """The ids without their dictionary, and as integers where a data frame made floats of them."""
    ids = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    return ids.cast(pa.int64()) if pa.types.is_floating(ids.type) else ids
