"""Export datasets and tables to files of other programs: CSV, JSON Lines, Parquet, Arrow, npz and Excel.

Numbers are written so that reading them back gives the same bits.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dygmamba.core.errors import ConfigError
from dygmamba.core.files.untrusted import FORMULA_PREFIXES
from dygmamba.core.files.writing import write_file
from dygmamba.data.readers.values import is_text_type
from dygmamba.data.storage.conversion import LABEL_COLUMN, feature_names, to_arrow, type_names
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.locations import parse_table_format

TableWriter = Callable[[pa.Table, bool], Iterator[bytes]]
NPZ_SUFFIX = ".npz"
ROWS_PER_BATCH = 1 << 16
WHOLE_NUMBER = r"^-?\d+$"
MAX_ROWS, MAX_COLUMNS, MAX_LETTERS = 1_048_576, 16_384, 32_767  # of a sheet, and of a cell
MAX_WHOLE_NUMBER = 10**15  # a spreadsheet keeps 15 digits of a number; longer ones, such as ids, become text
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_table(
    path: Path, table: pa.Table, raw: bool = False, writers: "dict[str, TableWriter] | None" = None
) -> None:
    """Write a table in the format of the file's suffix, compressed if it ends in .gz; the one writer of all tables.

    Args:
        path: The file; an unknown suffix raises ConfigError.
        table: The table.
        raw: Leave cells in CSV as they are that a spreadsheet would run as formulas.
        writers: Writers to use in place of `WRITERS`, by format.
    """
    kind, is_compressed = parse_table_format(path)
    chunks = ((writers or {}).get(kind) or WRITERS[kind])(table, raw)
    write_file(path, _compress(chunks) if is_compressed else chunks)


def _compress(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Compress with gzip; without a time stamp, so that the same table gives the same bytes."""
    compressor = zlib.compressobj(wbits=31)
    for chunk in chunks:
        yield compressor.compress(chunk)
    yield compressor.flush()


def _make_csv_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    names = pa.array(table.column_names, pa.large_string())
    quoted = [is_text_type(field.type) for field in table.schema]
    yield _format_csv_lines(
        [_format_text_cells(names[k : k + 1], raw) for k in range(len(names))], [True] * len(names)
    )
    for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
        columns = [
            _format_text_cells(column, raw) if is_text else _format_number_cells(column)
            for column, is_text in zip(batch.columns, quoted, strict=True)
        ]
        yield _format_csv_lines(columns, quoted)


def _format_csv_lines(columns: list[pa.Array], quoted: list[bool]) -> bytes:
    """Join the cells of some rows with commas; text cells get quotes."""
    cells = [
        _join_text('"', pc.replace_substring(column, '"', '""'), '"') if is_text else column
        for column, is_text in zip(columns, quoted, strict=True)
    ]
    return "".join(f"{line}\n" for line in _join_text(*cells, by=",").to_pylist()).encode()


def _join_text(*parts: pa.Array | str, by: str = "") -> pa.Array:
    typed = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in (*parts, by)]
    return pc.binary_join_element_wise(*typed)


def _format_text_cells(column: pa.Array, raw: bool) -> pa.Array:
    text = column.cast(pa.large_string())
    if raw:
        return text
    risky = np.zeros(len(text), bool)
    for prefix in FORMULA_PREFIXES:
        risky |= pc.starts_with(text, prefix).to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(risky), _join_text("'", text), text)


def _format_number_cells(column: pa.Array) -> pa.Array:
    """Format numbers so that they read back to the same bits.

    A float64 without fraction gets '.0'; otherwise a reader would take the column for integers.
    """
    text = column.cast(pa.large_string())
    if not pa.types.is_floating(column.type):
        return text
    if pa.types.is_float32(column.type):
        # The short notation is for float32; readers parse float64 first and round twice, which can differ.
        back = text.cast(pa.float64()).cast(pa.float32(), safe=False)
        return pc.if_else(pc.equal(back, column), text, column.cast(pa.float64()).cast(pa.large_string()))
    return pc.if_else(pc.match_substring_regex(text, WHOLE_NUMBER), _join_text(text, ".0"), text)


def _make_jsonl_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
        yield "".join(f"{json.dumps(row, default=_format_iso_date)}\n" for row in batch.to_pylist()).encode()


def _format_iso_date(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


class _ChunkBuffer(io.RawIOBase):
    """A file object between writers of whole files and `write_file`, which takes chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, chunk: "bytes | memoryview") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._chunks.append(bytes(chunk))
        self._position += len(self._chunks[-1])
        return len(self._chunks[-1])

    def take(self) -> list[bytes]:
        """Return the chunks written since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks


def _make_batch_chunks(
    open_writer: Callable[..., Any], rows: int, table: pa.Table, raw: bool
) -> Iterator[bytes]:
    """Yield the file of a writer that takes record batches, of `rows` each."""
    sink = _ChunkBuffer()
    with open_writer(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
            yield from sink.take()
    yield from sink.take()


def make_workbook_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    """Yield a workbook of the table; `raw` changes nothing, as no cell is a formula."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    if table.num_rows >= MAX_ROWS or table.num_columns > MAX_COLUMNS:
        raise ConfigError(
            f"{table.num_rows:,} rows and {table.num_columns:,} columns do not fit into a spreadsheet of "
            f"{MAX_ROWS:,} rows and {MAX_COLUMNS:,} columns; write .csv or .parquet",
            code="too-many-rows",
        )
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet("table")

    def make_cell(value: Any) -> Any:
        if _is_plain(value):
            return value
        cell = WriteOnlyCell(sheet, _format_text(value))
        cell.data_type = "s"  # openpyxl takes text that begins with = for a formula
        return cell

    try:
        sheet.append([make_cell(name) for name in table.column_names])
        for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH >> 2):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                sheet.append([make_cell(value) for value in row])
    finally:
        sheet.close()  # also after an error: openpyxl writes rows to a temporary file
    sink = io.BytesIO()
    workbook.save(sink)
    yield sink.getvalue()


def _is_plain(value: Any) -> bool:
    """Return whether a spreadsheet holds the value as it is: empty, true or false, or a number it can represent."""
    return (
        value is None
        or isinstance(value, bool)
        or (isinstance(value, int) and abs(value) < MAX_WHOLE_NUMBER)
        or (isinstance(value, float) and math.isfinite(value))
    )


def _format_text(value: Any) -> str:
    if isinstance(value, list | dict):
        value = json.dumps(value)
    text = _format_iso_date(value) if isinstance(value, datetime) else str(value)
    if len(text) > MAX_LETTERS:
        raise ConfigError(
            f"a cell of {len(text):,} characters does not fit into a spreadsheet; write .csv or .parquet",
            code="cell-too-long",
        )
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


WRITERS: dict[str, TableWriter] = {
    "csv": _make_csv_chunks,
    "jsonl": _make_jsonl_chunks,
    "parquet": partial(_make_batch_chunks, parquet.ParquetWriter, ROWS_PER_BATCH << 4),
    "arrow": partial(_make_batch_chunks, pa.ipc.new_file, ROWS_PER_BATCH),
    "xlsx": make_workbook_chunks,
}


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export."""

    path: Path
    format: str
    lost: tuple[str, ...]  # messages about what the format cannot hold
    options: dict[str, Any]  # of `read`, to restore the dataset


def parse_export_format(path: Path) -> str:
    """Return the export format by the file's suffix; raise ConfigError for an unknown one."""
    if path.suffix.lower() == ".xlsx":
        raise ConfigError(
            f"a dataset is not exported to {path}, because a spreadsheet cannot be imported again; spreadsheets open "
            ".csv",
            code="unknown-file-suffix",
        )
    return "npz" if path.suffix.lower() == NPZ_SUFFIX else parse_table_format(path, NPZ_SUFFIX)[0]


def export_dataset(dataset: Dataset, path: Path, raw: bool = False) -> ExportResult:
    """Write the events atomically in the format of the file's suffix.

    In CSV, ids that a spreadsheet would run as formulas get a quote in front, unless `raw`.
    """
    kind = parse_export_format(path)
    if kind == "npz":
        write_file(path, _write_npz_chunks(_to_arrays(dataset)))
    else:
        write_table(path, to_arrow(dataset), raw)
    options: dict[str, Any] = {}
    if kind in ("csv", "jsonl"):  # Parquet and Arrow files hold these options as metadata
        options = {"features": feature_names(dataset), "types": type_names(dataset)}
        options["bipartite"] = dataset.store.bipartite
        options["label"] = None if dataset.store.label is None else LABEL_COLUMN
    return ExportResult(
        path, kind, _describe_losses(dataset, kind, raw), {key: v for key, v in options.items() if v}
    )


def _describe_losses(dataset: Dataset, kind: str, raw: bool) -> tuple[str, ...]:
    """Return messages about what the format cannot hold."""
    store, messages, is_npz = dataset.store, [], kind == "npz"
    if is_npz and store.features.categories:
        messages.append(f"the {len(store.features.categories)} categorical columns were not exported")
    if not is_npz and store.features.node.shape[1]:
        messages.append(f"the {store.features.node.shape[1]} node features were not exported")
    if (rows := store.features.node_rows) is not None:
        messages.append(f"the table of node features ({', '.join(rows.column_names)}) was not exported")
    isolated = np.ones(store.num_nodes, bool)
    isolated[store.src.numpy()] = isolated[store.dst.numpy()] = False
    if not is_npz and isolated.any():
        messages.append(f"{int(isolated.sum()):,} nodes without events were not exported")
    if kind == "csv" and not raw and dataset.ids.kind == "string":
        count = sum(name.startswith(FORMULA_PREFIXES) for name in dataset.ids.values.to_pylist())
        if count:
            messages.append(
                f"{count:,} ids that a spreadsheet would run as formulas got a quote in front "
                "(`raw=True` leaves them as they are)"
            )
    return tuple(messages)


def _to_arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the arrays that the npz reader expects: nodes as numbers, and the user's ids."""
    store, ids = dataset.store.check_unchanged(), dataset.ids
    arrays = {"src": store.src.numpy(), "dst": store.dst.numpy(), "t": store.time.numpy()}
    if store.label is not None:
        arrays["label"] = store.label.numpy()
    if store.features.edge.shape[1]:
        arrays["edge_feat"] = store.features.edge.numpy()
    if store.features.node.shape[1]:
        arrays["node_feat"] = store.features.node.numpy()
    arrays["ids"] = ids.values.to_numpy(zero_copy_only=False)
    if ids.kind == "string":
        arrays["ids"] = arrays["ids"].astype("U")
    if ids.is_source is not None:
        arrays["is_source"] = ids.is_source.to_numpy(zero_copy_only=False)
    return arrays


def _write_npz_chunks(arrays: dict[str, np.ndarray]) -> Iterator[bytes]:
    """Yield what numpy.savez would write, chunk by chunk."""
    sink = _ChunkBuffer()
    with zipfile.ZipFile(sink, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
                yield from sink.take()
    yield from sink.take()
