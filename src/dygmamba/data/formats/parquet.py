"""Parquet files, a run of rows at a time."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from dygmamba.data.formats.arrow import ROWS, with_id_columns
from dygmamba.data.formats.options import ReadOptions, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.formats.told import told_by
from dygmamba.errors import FileError, first_line

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset


def read(path: Path, options: ReadOptions) -> "Dataset":
    """A Parquet file with one event per row; its types decide what is a number and what a date."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # which would keep all that was read
            names = file.schema_arrow.names
            options = told_by(file.schema_arrow.metadata).fill(options, names)
            roles = assign_roles(path, names, options)
            rows = file.iter_batches(batch_size=ROWS, columns=roles.columns)
            batches = with_id_columns(path, file.schema_arrow, rows, roles)
            batches = options.watch(batches, 1 + file.metadata.num_rows // ROWS)
            return arranged(path, *read_table(path, "parquet", batches, roles, options))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last, of column names
        why = first_line(error).split(". ")[0]
        raise FileError(f"{path} is not a whole Parquet file ({why}); write or copy it again") from error
