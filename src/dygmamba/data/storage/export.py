"""Text that is safe in a cell of a spreadsheet: other people's words must not be run as formulas.

An Arrow table as the bytes of a file: CSV, JSON lines, Parquet or Arrow, piece by piece, for the one writer.

Numbers are written so that they read back to the same bits.

A dataset out into a file that others read, and what such a file cannot hold.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dygmamba.core.errors import ConfigError
from dygmamba.core.files.writing import write_file
from dygmamba.data.storage.conversion import LABEL_COLUMN, feature_names, to_arrow
from dygmamba.data.storage.dataset import Dataset

FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 (full-width ones count too)


def escape_formula(text: str) -> str:
    """Text that no spreadsheet takes for a formula: what could be one gets a single quote in front (OWASP)."""
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


TABLE_ENDINGS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
TABLE_ENDINGS |= {".arrow": "arrow", ".feather": "arrow"}
ROWS_PER_BATCH = 1 << 16
WHOLE_NUMBER = r"^-?\d+$"


class ChunkBuffer(io.RawIOBase):
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


def parse_table_format(path: Path) -> str:
    """The format that a file's ending asks for, or a sentence."""
    kind = TABLE_ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"{path} does not say what to write; let its name end in {', '.join(TABLE_ENDINGS)}"
        )
    return kind


def write_table(path: Path, table: pa.Table, raw: bool = False) -> None:
    """The table in the format of the file's ending; text in CSV made harmless for spreadsheets unless `raw`."""
    write_file(path, WRITERS[parse_table_format(path)](table, raw))


def _make_csv_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    names = pa.array(table.column_names, pa.large_string())
    quoted = [_is_text(field.type) for field in table.schema]
    yield _format_csv_lines(
        [_format_text_cells(names[k : k + 1], raw) for k in range(len(names))], [True] * len(names)
    )
    for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
        columns = [
            _format_text_cells(column, raw) if word else _format_number_cells(column)
            for column, word in zip(batch.columns, quoted, strict=True)
        ]
        yield _format_csv_lines(columns, quoted)


def _format_csv_lines(columns: list[pa.Array], quoted: list[bool]) -> bytes:
    """The cells of some rows, in quotes where they are text, separated by commas."""
    cells = [
        _join_text('"', pc.replace_substring(column, '"', '""'), '"') if word else column
        for column, word in zip(columns, quoted, strict=True)
    ]
    return "".join(f"{line}\n" for line in _join_text(*cells, by=",").to_pylist()).encode()


def _join_text(*parts: pa.Array | str, by: str = "") -> pa.Array:
    """Text put together, row by row."""
    typed = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in (*parts, by)]
    return pc.binary_join_element_wise(*typed)


def _format_text_cells(column: pa.Array, raw: bool) -> pa.Array:
    text = column.cast(pa.large_string())
    if raw:
        return text
    risky = np.zeros(len(text), bool)
    for mark in FORMULA_PREFIXES:
        risky |= pc.starts_with(text, mark).to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(risky), _join_text("'", text), text)


def _format_number_cells(column: pa.Array) -> pa.Array:
    """As text that reads back to the same bits; a number with a point keeps it, or it could pass for another kind."""
    text = column.cast(pa.large_string())
    if not pa.types.is_floating(column.type):
        return text
    if pa.types.is_float32(column.type):
        back = text.cast(pa.float64()).cast(pa.float32(), safe=False)
        text = pc.if_else(pc.equal(back, column), text, column.cast(pa.float64()).cast(pa.large_string()))
        return text
    return pc.if_else(pc.match_substring_regex(text, WHOLE_NUMBER), _join_text(text, ".0"), text)


def _make_jsonl_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
        yield "".join(f"{json.dumps(row, default=_format_iso_date)}\n" for row in batch.to_pylist()).encode()


def _format_iso_date(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _make_parquet_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    sink = ChunkBuffer()
    with parquet.ParquetWriter(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH << 4):
            writer.write_batch(batch)
            yield from sink.taken()
    yield from sink.taken()


def _make_arrow_chunks(table: pa.Table, raw: bool) -> Iterator[bytes]:
    sink = ChunkBuffer()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
            writer.write_batch(batch)
            yield from sink.taken()
    yield from sink.taken()


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_large_string(kind) or pa.types.is_string(kind)


WRITERS: dict[str, Callable[[pa.Table, bool], Iterator[bytes]]] = {
    "csv": _make_csv_chunks,
    "jsonl": _make_jsonl_chunks,
    "parquet": _make_parquet_chunks,
    "arrow": _make_arrow_chunks,
}


NPZ_SUFFIX = ".npz"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Where a dataset went, what was lost on the way, and what `read` is to be told to have it back."""

    path: Path
    format: str
    lost: tuple[str, ...]
    options: dict[str, Any]


def parse_export_format(path: Path) -> str:
    """The format that a file's ending asks for, or a sentence."""
    kind = "npz" if path.suffix.lower() == NPZ_SUFFIX else TABLE_ENDINGS.get(path.suffix.lower())
    if kind is None:
        endings = ", ".join([*TABLE_ENDINGS, NPZ_SUFFIX])
        raise ConfigError(f"{path} does not say what to write; let its name end in one of {endings}")
    return kind


def export_dataset(dataset: Dataset, path: Path, raw: bool = False) -> ExportResult:
    """Write the events in the format of the file's ending, whole or not at all.

    In CSV an id that a spreadsheet would run gets a quote in front, unless `raw`.
    """
    kind = parse_export_format(path)
    if kind == "npz":
        write_file(path, _write_npz_chunks(_to_arrays(dataset)))
        return ExportResult(path, kind, (), {})
    write_table(path, to_arrow(dataset), raw)
    options: dict[str, Any] = {}
    if kind in ("csv", "jsonl"):  # Parquet and Arrow say it themselves
        options = {"features": feature_names(dataset), "bipartite": dataset.store.bipartite}
        options["label"] = None if dataset.store.label is None else LABEL_COLUMN
    return ExportResult(
        path, kind, _describe_losses(dataset, kind, raw), {key: v for key, v in options.items() if v}
    )


def _describe_losses(dataset: Dataset, kind: str, raw: bool) -> tuple[str, ...]:
    """What a table of events does not hold of this dataset, in words."""
    store, said = dataset.store, []
    if store.features.node.shape[1]:
        said.append(f"the {store.features.node.shape[1]} features of each node are not in it")
    silent = np.ones(store.num_nodes, bool)
    silent[store.src.numpy()] = silent[store.dst.numpy()] = False
    if silent.any():
        said.append(f"{int(silent.sum()):,} nodes without an event are not in it")
    if kind == "csv" and not raw and dataset.ids.kind == "string":
        count = sum(name.startswith(FORMULA_PREFIXES) for name in dataset.ids.values.to_pylist())
        if count:
            said.append(
                f"{count:,} ids that a spreadsheet would run got a quote in front (`raw=True`: as they are)"
            )
    return tuple(said)


def _to_arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """As the reader of npz files has them: nodes by number, and whose they are where that is not the number."""
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
    """What numpy.savez would write, a piece at a time."""
    sink = ChunkBuffer()
    with zipfile.ZipFile(sink, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
                yield from sink.taken()
    yield from sink.taken()
