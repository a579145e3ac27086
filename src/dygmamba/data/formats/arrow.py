"""Columns that are Arrow's already, of a Parquet file or of a table in memory: one way in for both."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.data.formats.options import Roles
from dygmamba.data.formats.values import is_text
from dygmamba.errors import FileError

ROWS = 1 << 17


def with_id_columns(
    where: Path | str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], roles: Roles
) -> Iterator[pa.RecordBatch]:
    """The batches, their sources and destinations as dictionaries of integers or of strings."""
    kind = _id_type(where, schema, roles)
    for batch in batches:
        for name in (roles.src, roles.dst):
            try:
                ids = _whole(batch.column(name)).cast(kind).dictionary_encode()
            except pa.ArrowInvalid as error:
                raise FileError(
                    f"{where}: column {name!r} is no id ({error}); give integers or strings"
                ) from error
            batch = batch.set_column(batch.schema.get_field_index(name), name, ids)
        yield batch


def _id_type(where: Path | str, schema: pa.Schema, roles: Roles) -> pa.DataType:
    """Integers where both columns hold them; otherwise strings, in which integers too can be written."""
    kinds = []
    for name in (roles.src, roles.dst):
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text(kind)):
            raise FileError(f"{where}: column {name!r} is {kind}, not an id; give integers or strings")
        kinds.append(kind)
    # unsigned 64-bit ids need not fit the signed integers; as strings they always do
    plain = all(not is_text(kind) and kind != pa.uint64() for kind in kinds)
    return pa.int64() if plain else pa.string()


def _whole(column: pa.Array) -> pa.Array:
    """The ids without their dictionary, and as integers where a data frame made floats of them."""
    ids = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    if not pa.types.is_floating(ids.type):
        return ids
    return pc.if_else(pc.is_nan(ids), pa.scalar(None, ids.type), ids).cast(pa.int64())
