"""Arrow's own files, also called Feather: read by the rules of Parquet."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dygmamba.data.formats.arrow import with_id_columns
from dygmamba.data.formats.options import ReadOptions, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.formats.told import told_by
from dygmamba.errors import FileError, first_line

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

MAGIC = b"ARROW1"


def read(path: Path, options: ReadOptions) -> "Dataset":
    """An Arrow file with one event per row; its types decide what is a number and what a date."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            schema = file.schema
            options = told_by(schema.metadata).fill(options, schema.names)
            roles = assign_roles(path, schema.names, options)
            rows = (file.get_batch(k).select(roles.columns) for k in range(file.num_record_batches))
            batches = options.watch(with_id_columns(path, schema, rows, roles), file.num_record_batches)
            return arranged(path, *read_table(path, "arrow", batches, roles, options))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last, of column names
        why = first_line(error).split(". ")[0]
        raise FileError(f"{path} is not a whole Arrow file ({why}); write or copy it again") from error
