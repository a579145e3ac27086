"""Tables as Excel workbooks (Office Open XML, ECMA-376) of one sheet, written with the standard library.

Text is stored as text, so no cell is run as a formula. The same table gives the same bytes.
"""

import json
import math
import re
import zipfile
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa

from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.chunk_buffer import ChunkBuffer

MAX_ROWS, MAX_COLUMNS, MAX_LETTERS = 1_048_576, 16_384, 32_767  # of a sheet, and of a cell
MAX_WHOLE_NUMBER = 10**15  # a spreadsheet keeps 15 digits of a number; longer ones, such as ids, become text
ROWS_PER_BATCH = 1 << 14
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{TYPES}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{TYPES}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}">'
    '<sheets><sheet name="table" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}


def make_workbook_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    """Yield a workbook of the table, chunk by chunk; `raw` changes nothing, as no cell is a formula."""
    if table.num_rows >= MAX_ROWS or table.num_columns > MAX_COLUMNS:
        raise ConfigError(
            f"{table.num_rows:,} rows and {table.num_columns:,} columns do not fit into a spreadsheet of "
            f"{MAX_ROWS:,} rows and {MAX_COLUMNS:,} columns; write .csv or .parquet",
            code="too-many-rows",
        )
    sink = ChunkBuffer()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in PARTS.items():
            archive.writestr(_make_entry(name), DECLARATION + text)
        with archive.open(_make_entry("xl/worksheets/sheet1.xml"), "w") as sheet:
            sheet.write(f'{DECLARATION}<worksheet xmlns="{MAIN}"><sheetData>'.encode())
            sheet.write(_format_row(table.column_names))
            for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                sheet.write(b"".join(map(_format_row, rows)))
                yield from sink.take()
            sheet.write(b"</sheetData></worksheet>")
    yield from sink.take()


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # without the time of writing
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _format_row(values: Any) -> bytes:
    return f"<row>{''.join(map(_format_cell, values))}</row>".encode()


def _format_cell(value: Any) -> str:
    if value is None:
        return "<c/>"
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    is_number = (isinstance(value, int) and abs(value) < MAX_WHOLE_NUMBER) or (
        isinstance(value, float) and math.isfinite(value)
    )
    if is_number:
        return f"<c><v>{value!r}</v></c>"
    text = escape(NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", _format_text(value)))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _format_text(value: Any) -> str:
    if isinstance(value, list | dict):
        value = json.dumps(value)
    text = value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
    if len(text) > MAX_LETTERS:
        raise ConfigError(
            f"a cell of {len(text):,} characters does not fit into a spreadsheet; write .csv or .parquet",
            code="cell-too-long",
        )
    return text
