"""Some columns of a Parquet or Arrow file, for those who ask questions with one."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dygmamba.errors import FileError

COLUMNAR = {"parquet": "Parquet", "arrow": "Arrow"}  # format: what it is called


def read_columns(path: Path, kind: str, choose: Callable[[list[str]], list[str]]) -> pa.Table:
    """The columns that `choose` picks among the file's names."""
    try:
        if kind == "parquet":
            with parquet.ParquetFile(path) as file:
                return file.read(columns=choose(file.schema_arrow.names))
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
            return file.read_all().select(choose(file.schema.names))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not a whole {COLUMNAR[kind]} file; write or copy it again") from error
