"""An Arrow table as the bytes of a file: CSV, JSON lines, Parquet or Arrow, piece by piece, for the one writer.

Numbers are written so that they read back to the same bits.
"""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dygmamba.errors import ConfigError
from dygmamba.files.cells import FORMULAS
from dygmamba.files.writing import write_file

ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
ENDINGS |= {".arrow": "arrow", ".feather": "arrow"}
ROWS = 1 << 16
WHOLE = r"^-?\d+$"


class Sink(io.RawIOBase):
    """Takes what a writer of files writes, and hands it on from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        """Nothing else."""
        return True

    def tell(self) -> int:
        """How much was written so far."""
        return self._at

    def write(self, piece: "bytes | memoryview") -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Hold it."""
        self._held.append(bytes(piece))
        self._at += len(self._held[-1])
        return len(self._held[-1])

    def taken(self) -> list[bytes]:
        """What is held, which is held no more."""
        held, self._held = self._held, []
        return held


def written_as(path: Path) -> str:
    """The format that a file's ending asks for, or a sentence."""
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path} does not say what to write; let its name end in {', '.join(ENDINGS)}")
    return kind


def write_table(path: Path, table: pa.Table, raw: bool = False) -> None:
    """The table in the format of the file's ending; text in CSV made harmless for spreadsheets unless `raw`."""
    write_file(path, WRITERS[written_as(path)](table, raw))


def _csv(table: pa.Table, raw: bool) -> Iterator[bytes]:
    names = pa.array(table.column_names, pa.large_string())
    quoted = [_is_text(field.type) for field in table.schema]
    yield _lines([_cells(names[k : k + 1], raw) for k in range(len(names))], [True] * len(names))
    for batch in table.to_batches(max_chunksize=ROWS):
        columns = [
            _cells(column, raw) if word else _numbers(column)
            for column, word in zip(batch.columns, quoted, strict=True)
        ]
        yield _lines(columns, quoted)


def _lines(columns: list[pa.Array], quoted: list[bool]) -> bytes:
    """The cells of some rows, in quotes where they are text, separated by commas."""
    cells = [
        _joined('"', pc.replace_substring(column, '"', '""'), '"') if word else column
        for column, word in zip(columns, quoted, strict=True)
    ]
    return "".join(f"{line}\n" for line in _joined(*cells, by=",").to_pylist()).encode()


def _joined(*parts: pa.Array | str, by: str = "") -> pa.Array:
    """Text put together, row by row."""
    typed = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in (*parts, by)]
    return pc.binary_join_element_wise(*typed)


def _cells(column: pa.Array, raw: bool) -> pa.Array:
    text = column.cast(pa.large_string())
    if raw:
        return text
    risky = np.zeros(len(text), bool)
    for mark in FORMULAS:
        risky |= pc.starts_with(text, mark).to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(risky), _joined("'", text), text)


def _numbers(column: pa.Array) -> pa.Array:
    """As text that reads back to the same bits; a number with a point keeps it, or it could pass for another kind."""
    text = column.cast(pa.large_string())
    if not pa.types.is_floating(column.type):
        return text
    if pa.types.is_float32(column.type):
        back = text.cast(pa.float64()).cast(pa.float32(), safe=False)
        text = pc.if_else(pc.equal(back, column), text, column.cast(pa.float64()).cast(pa.large_string()))
        return text
    return pc.if_else(pc.match_substring_regex(text, WHOLE), _joined(text, ".0"), text)


def _jsonl(table: pa.Table, raw: bool) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=ROWS):
        yield "".join(f"{json.dumps(row, default=_iso)}\n" for row in batch.to_pylist()).encode()


def _iso(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _parquet(table: pa.Table, raw: bool) -> Iterator[bytes]:
    sink = Sink()
    with parquet.ParquetWriter(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS << 4):
            writer.write_batch(batch)
            yield from sink.taken()
    yield from sink.taken()


def _arrow(table: pa.Table, raw: bool) -> Iterator[bytes]:
    sink = Sink()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS):
            writer.write_batch(batch)
            yield from sink.taken()
    yield from sink.taken()


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_large_string(kind) or pa.types.is_string(kind)


WRITERS: dict[str, Callable[[pa.Table, bool], Iterator[bytes]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "arrow": _arrow,
}
