"""Columns that are Arrow's already, of a Parquet file or of a table in memory: one way in for both.

Parquet files, a run of rows at a time.

Arrow's own files, also called Feather: read by the rules of Parquet.

Some columns of a Parquet or Arrow file, for those who ask questions with one.
"""

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

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


BATCH_ROWS = 1 << 17


def encode_id_columns(
    where: Path | str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], roles: ColumnRoles
) -> Iterator[pa.RecordBatch]:
    """The batches, their sources and destinations as dictionaries of integers or of strings."""
    kind = _choose_id_type(where, schema, roles)
    for batch in batches:
        for name in (roles.src, roles.dst):
            try:
                ids = _as_whole_ids(batch.column(name)).cast(kind).dictionary_encode()
            except pa.ArrowInvalid as error:
                raise FileError(
                    f"{where}: column {name!r} is no id ({error}); give integers or strings"
                ) from error
            batch = batch.set_column(batch.schema.get_field_index(name), name, ids)
        yield batch


def _choose_id_type(where: Path | str, schema: pa.Schema, roles: ColumnRoles) -> pa.DataType:
    """Integers where both columns hold them; otherwise strings, in which integers too can be written."""
    kinds = []
    for name in (roles.src, roles.dst):
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text_type(kind)):
            raise FileError(f"{where}: column {name!r} is {kind}, not an id; give integers or strings")
        kinds.append(kind)
    # unsigned 64-bit ids need not fit the signed integers; as strings they always do
    plain = all(not is_text_type(kind) and kind != pa.uint64() for kind in kinds)
    return pa.int64() if plain else pa.string()


def _as_whole_ids(column: pa.Array) -> pa.Array:
    """The ids without their dictionary, and as integers where a data frame made floats of them."""
    ids = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    if not pa.types.is_floating(ids.type):
        return ids
    return pc.if_else(pc.is_nan(ids), pa.scalar(None, ids.type), ids).cast(pa.int64())


def read_parquet(path: Path, options: ReadOptions) -> "Dataset":
    """A Parquet file with one event per row; its types decide what is a number and what a date."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # which would keep all that was read
            names = file.schema_arrow.names
            options = read_table_metadata(file.schema_arrow.metadata).fill(options, names)
            roles = assign_roles(path, names, options)
            rows = file.iter_batches(batch_size=BATCH_ROWS, columns=roles.columns)
            batches = encode_id_columns(path, file.schema_arrow, rows, roles)
            batches = options.watch(batches, 1 + file.metadata.num_rows // BATCH_ROWS)
            return build_dataset(path, *read_table(path, "parquet", batches, roles, options))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last, of column names
        why = first_line(error).split(". ")[0]
        raise FileError(f"{path} is not a whole Parquet file ({why}); write or copy it again") from error


ARROW_MAGIC = b"ARROW1"


def read_arrow(path: Path, options: ReadOptions) -> "Dataset":
    """An Arrow file with one event per row; its types decide what is a number and what a date."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            schema = file.schema
            options = read_table_metadata(schema.metadata).fill(options, schema.names)
            roles = assign_roles(path, schema.names, options)
            rows = (file.get_batch(k).select(roles.columns) for k in range(file.num_record_batches))
            batches = options.watch(encode_id_columns(path, schema, rows, roles), file.num_record_batches)
            return build_dataset(path, *read_table(path, "arrow", batches, roles, options))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last, of column names
        why = first_line(error).split(". ")[0]
        raise FileError(f"{path} is not a whole Arrow file ({why}); write or copy it again") from error


COLUMNAR_FORMATS = {"parquet": "Parquet", "arrow": "Arrow"}  # format: what it is called


def read_columns(path: Path, kind: str, choose: Callable[[list[str]], list[str]]) -> pa.Table:
    """The columns that `choose` picks among the file's names."""
    try:
        if kind == "parquet":
            with parquet.ParquetFile(path) as file:
                return file.read(columns=choose(file.schema_arrow.names))
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            return file.read_all().select(choose(file.schema.names))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path} is not a whole {COLUMNAR_FORMATS[kind]} file; write or copy it again"
        ) from error
