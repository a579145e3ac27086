"""Parquet and Arrow (Feather) files, whose columns have types."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dygmamba.core.errors import first_line
from dygmamba.core.files.untrusted import report_damage
from dygmamba.data.readers.bad_rows import BadRows
from dygmamba.data.readers.options import Layout, parse_metadata
from dygmamba.data.readers.source import Source

BATCH_ROWS = 1 << 17
ARROW_MAGIC = b"ARROW1"
# what a damaged file raises; UnicodeDecodeError comes from column names
DAMAGED_COLUMNAR_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


@contextmanager
def open_parquet(path: Path) -> Iterator[Source]:
    """Open a Parquet file."""
    # pre_buffer would keep all that was read
    with _report_damage(path, "Parquet"), parquet.ParquetFile(path, pre_buffer=False) as file:

        def iterate(layout: Layout, _: BadRows) -> Iterator[pa.RecordBatch]:
            return file.iter_batches(batch_size=BATCH_ROWS, columns=layout.needed)

        schema, expected = file.schema_arrow, 1 + file.metadata.num_rows // BATCH_ROWS
        hints = parse_metadata(schema.metadata)
        yield Source("parquet", tuple(schema.names), iterate, path, expected, hints=hints)


@contextmanager
def open_arrow(path: Path) -> Iterator[Source]:
    """Open an Arrow file."""
    with _report_damage(path, "Arrow"), pa.OSFile(str(path)) as stream, pa.ipc.open_file(stream) as file:

        def iterate(layout: Layout, _: BadRows) -> Iterator[pa.RecordBatch]:
            return iter_valid_batches(file, layout.needed)

        schema, expected = file.schema, file.num_record_batches
        hints = parse_metadata(schema.metadata)
        yield Source("arrow", tuple(schema.names), iterate, path, expected, hints=hints)


def iter_valid_batches(file: pa.ipc.RecordBatchFileReader, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Iterate over the batches of an Arrow file, with these columns, each validated before its first use.

    Arrow maps the buffers of a file without looking into them, and its kernels trust the offsets of strings and the
    indices of dictionaries: a flipped bit would crash the process.
    """
    for k in range(file.num_record_batches):
        batch = file.get_batch(k).select(names)
        batch.validate(full=True)
        yield batch


def _report_damage(path: Path, format: str) -> AbstractContextManager[None]:
    what, advice = f"a complete {format} file", "write or copy it again"
    return report_damage(
        path, what, DAMAGED_COLUMNAR_ERRORS, advice, lambda error: first_line(error).split(". ")[0]
    )
