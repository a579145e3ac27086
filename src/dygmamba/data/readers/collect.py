"""Collect the rows of a file: in memory while they are few, on disk beyond `ReadOptions.memory`.

Rows on disk are sorted runs that are merged at the end. Node ids always stay in memory, each once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dygmamba.data.events.categories import Category
from dygmamba.data.events.ids import NodeIds, NodeNumbering
from dygmamba.data.readers.options import ReadOptions

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.mapped_columns import ScratchColumn

MEMORY_FRACTION = 8  # buffered rows take 1/8 of the memory at most: joining, sorting and writing copy them


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


class RowCollector:
    """Collects all good rows of one file, in memory or, if they are too many, in sorted runs on disk."""

    def __init__(self, options: ReadOptions, keep_rows: bool = False) -> None:
        self._options, self._keep_rows = options, keep_rows
        self._numbering, self._batches, self._size = NodeNumbering(options.bipartite), [], 0
        self._disk: dict[str, ScratchColumn] = {}
        self._runs = [0]  # first row of each run on disk, and the end of the last one
        self._out_of_order, self._latest = 0, -np.inf

    def __bool__(self) -> bool:
        return bool(self._batches or self._disk)

    def add(self, batch: dict[str, Any]) -> None:
        """Add the parsed columns of a batch: `src` and `dst` dictionary-encoded, the others as numpy arrays."""
        self._batches.append(batch)
        self._size += sum(column.nbytes for column in batch.values())
        if self._size * MEMORY_FRACTION > self._options.memory:
            self._spill()

    def finish(self) -> tuple[EventColumns, NodeIds]:
        """Return all columns with final node numbers, sorted by time if they went to disk."""
        if not self._disk:
            rows = self._join_batches()
            node_of, ids = self._numbering.finish()
            rows |= {name: node_of[name][rows[name]] for name in node_of}
            return EventColumns(**rows), ids
        if self._batches:
            self._spill()
        node_of, ids = self._numbering.finish()
        rows = self._merge_runs(node_of)
        if not self._out_of_order:
            rows.pop("row", None)
        return EventColumns(**rows, out_of_order=self._out_of_order), ids

    def _join_batches(self) -> dict[str, Any]:
        """Join the rows in memory; ids become provisional numbers in order of arrival."""
        batches, self._batches, self._size = self._batches, [], 0
        src, dst = self._numbering.add(*([batch[name] for batch in batches] for name in ("src", "dst")))
        rest = [name for name in batches[0] if name not in ("src", "dst")]
        return {"src": src, "dst": dst} | {
            name: np.concatenate([batch[name] for batch in batches]) for name in rest
        }

    def _spill(self) -> None:
        """Write the rows in memory to disk as a run that is sorted by time."""
        from dygmamba.data.storage.mapped_columns import ScratchColumn

        rows = self._join_batches()
        time, start = rows["time"], self._runs[-1]
        if self._keep_rows:
            rows["row"] = np.arange(start, start + len(time))
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        out_of_order = int((time < latest).sum())
        self._out_of_order, self._latest = self._out_of_order + out_of_order, latest[-1]
        order = np.argsort(time, kind="stable") if out_of_order else slice(None)
        for name, column in rows.items():
            if name not in self._disk:
                self._disk[name] = ScratchColumn(self._folder, column.dtype, column.shape[1:])
            self._disk[name].append(column[order])
        self._runs.append(start + len(time))

    def _merge_runs(self, node_of: dict[str, np.ndarray]) -> dict[str, Any]:
        """Map all columns in order of time, with final instead of provisional node numbers.

        If the file was in order, only the columns of nodes are written again. (One sort of all times takes 16 bytes of
        memory per event and was slower at 200 million events.)
        """
        from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_slices, merge_sorted_runs

        width = sum(column.row_bytes for column in self._disk.values()) + 16
        most = max(1, self._options.memory // (MEMORY_FRACTION * width))
        written = {
            name: ScratchColumn(self._folder, np.int64 if name in node_of else column.dtype, column.width)
            for name, column in self._disk.items()
            if self._out_of_order or name in node_of
        }
        if self._out_of_order:
            rounds = merge_sorted_runs(self._disk["time"], self._runs, most)
        else:
            slices = iterate_slices(self._runs[-1], width, most * width)
            rounds = (([(rows.start, rows.stop)], None) for rows in slices)
        for parts, order in rounds:
            for name, column in written.items():
                values = np.concatenate([self._disk[name].read(*part) for part in parts])
                values = node_of[name][values] if name in node_of else values
                column.append(values if order is None else values[order])
        return {name: column.mapped().numpy() for name, column in (self._disk | written).items()}

    @property
    def _folder(self) -> Path:
        from tempfile import gettempdir

        return self._options.scratch or Path(gettempdir())
