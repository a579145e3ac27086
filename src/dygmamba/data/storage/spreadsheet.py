"""Tables as Excel workbooks of one sheet, written with openpyxl.

Text is stored as text, so no cell is run as a formula.
"""

import io
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from dygmamba.core.errors import ConfigError

MAX_ROWS, MAX_COLUMNS, MAX_LETTERS = 1_048_576, 16_384, 32_767  # of a sheet, and of a cell
MAX_WHOLE_NUMBER = 10**15  # a spreadsheet keeps 15 digits of a number; longer ones, such as ids, become text
ROWS_PER_BATCH = 1 << 14
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


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
        for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
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
    text = value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
    if len(text) > MAX_LETTERS:
        raise ConfigError(
            f"a cell of {len(text):,} characters does not fit into a spreadsheet; write .csv or .parquet",
            code="cell-too-long",
        )
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
