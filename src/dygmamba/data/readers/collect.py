"""Collect the rows of a file: in memory while they are few, on disk beyond `ReadOptions.memory`.

Rows on disk are written in runs that are sorted by time and merged at the end. Node ids always stay in memory, each
once.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.data.events.categories import Category
from dygmamba.data.events.ids import NodeIds, NodeNumbering
from dygmamba.data.readers.options import ReadOptions

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.mapped_columns import ScratchColumn

MEMORY_FRACTION = 8  # buffered rows take 1/8 of the memory at most: joining, sorting and writing copy them


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The parsed columns of one batch."""

    src: pa.DictionaryArray
    dst: pa.DictionaryArray
    time: np.ndarray
    edge: np.ndarray
    codes: np.ndarray
    label: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of a file; a missing label or node feature table is None.

    `out_of_order` counts the rows that were out of order before sorting; None: the rows are in file order, unsorted.
    `row` is the row of each event in the file if they were sorted on the way and the caller keeps it; None: file order.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    edge: np.ndarray
    label: np.ndarray | None = None
    node: np.ndarray | None = None
    out_of_order: int | None = None
    codes: np.ndarray | None = None
    categories: tuple[Category, ...] = ()
    row: np.ndarray | None = None

    def sort_like(self, values: np.ndarray) -> np.ndarray:
        """Return values of another file with one per row, in the order of these events."""
        return values if self.row is None else values[self.row]


@dataclass(slots=True)
class _RowBuffer:
    """Rows in memory, one list entry per batch."""

    src: list[pa.DictionaryArray] = field(default_factory=list)
    dst: list[pa.DictionaryArray] = field(default_factory=list)
    time: list[np.ndarray] = field(default_factory=list)
    edge: list[np.ndarray] = field(default_factory=list)
    codes: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    size: int = 0

    def add(self, batch: BatchColumns) -> None:
        for name in ("src", "dst", "time", "edge", "codes", "label"):
            if (column := getattr(batch, name)) is not None:
                getattr(self, name).append(column)
                self.size += column.nbytes

    def concatenate(self, numbering: NodeNumbering) -> dict[str, np.ndarray]:
        """Join the batches; ids become provisional numbers in order of arrival."""
        src, dst = numbering.add(self.src, self.dst)
        rest = {"time": self.time, "edge": self.edge, "codes": self.codes, "label": self.label}
        return {"src": src, "dst": dst} | {k: np.concatenate(v) for k, v in rest.items() if v}


class RowCollector:
    """Collects all good rows of one file, in memory or, if they are too many, in sorted runs on disk."""

    def __init__(self, options: ReadOptions, keep_rows: bool = False) -> None:
        self._options, self._keep_rows = options, keep_rows
        self._numbering, self._buffer = NodeNumbering(options.bipartite), _RowBuffer()
        self._disk: dict[str, ScratchColumn] = {}
        self._runs: list[int] = [0]  # first row of each run on disk, and the end of the last one
        self._out_of_order, self._latest = 0, -np.inf

    def __bool__(self) -> bool:
        return bool(self._buffer.time) or len(self._runs) > 1

    def add(self, batch: BatchColumns) -> None:
        self._buffer.add(batch)
        if self._buffer.size * MEMORY_FRACTION > self._options.memory:
            self._spill()

    def finish(self) -> tuple[EventColumns, NodeIds]:
        """Return all columns with final node numbers, sorted by time if they went to disk."""
        if len(self._runs) == 1:
            rows = self._buffer.concatenate(self._numbering)
            node_of, ids = self._numbering.finish()
            src, dst = (node_of[name][rows[name]] for name in ("src", "dst"))
            columns = EventColumns(src, dst, rows["time"], rows["edge"], rows.get("label"))
            return replace(columns, codes=rows["codes"]), ids
        if self._buffer.time:
            self._spill()
        node_of, ids = self._numbering.finish()
        self._disk = self._merge_runs(node_of)
        rows = {name: column.mapped().numpy() for name, column in self._disk.items()}
        columns = (rows["src"], rows["dst"], rows["time"], rows["edge"], rows.get("label"))
        columns = EventColumns(*columns, out_of_order=self._out_of_order, codes=rows["codes"])
        return replace(columns, row=rows.get("row") if self._out_of_order else None), ids

    def _spill(self) -> None:
        """Write the buffered rows to disk as a run that is sorted by time."""
        from dygmamba.data.storage.mapped_columns import ScratchColumn

        rows = self._buffer.concatenate(self._numbering)
        self._buffer = _RowBuffer()
        time, start = rows["time"], self._runs[-1]
        if self._keep_rows:
            rows["row"] = np.arange(start, start + len(time))
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        out_of_order = int((time < latest).sum())
        self._out_of_order, self._latest = self._out_of_order + out_of_order, latest[-1]
        order = np.argsort(time, kind="stable") if out_of_order else None
        for name, column in rows.items():
            if name not in self._disk:
                self._disk[name] = ScratchColumn(self._folder, column.dtype, column.shape[1:])
            self._disk[name].append(column if order is None else column[order])
        self._runs.append(start + len(time))

    def _merge_runs(self, node_of: dict[str, np.ndarray]) -> dict[str, "ScratchColumn"]:
        """Merge the runs by time and replace provisional by final node numbers.

        If the file was in order, only the columns of nodes are written again.
        """
        from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_slices, merge_sorted_runs

        width = sum(column.row_bytes for column in self._disk.values()) + 16
        most = max(1, self._options.memory // (MEMORY_FRACTION * width))
        rewritten = [name for name in self._disk if self._out_of_order or name in node_of]
        dtypes = {
            name: np.dtype(np.int64) if name in node_of else self._disk[name].dtype for name in rewritten
        }
        out = {name: ScratchColumn(self._folder, dtypes[name], self._disk[name].width) for name in rewritten}
        if self._out_of_order:
            rounds = merge_sorted_runs(self._disk["time"], self._runs, most)
        else:
            rounds = (
                ([(rows.start, rows.stop)], None)
                for rows in iterate_slices(self._runs[-1], width, most * width)
            )
        for parts, order in rounds:
            for name in rewritten:
                values = np.concatenate([self._disk[name].read(*part) for part in parts])
                values = node_of[name][values] if name in node_of else values
                out[name].append(values if order is None else values[order])
        return self._disk | out

    @property
    def _folder(self) -> Path:
        from tempfile import gettempdir

        return self._options.scratch or Path(gettempdir())
