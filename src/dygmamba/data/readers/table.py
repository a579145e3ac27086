"""From batches of Arrow columns to a dataset: shared by the readers of files and of in-memory tables.

A batch is parsed at once if all its rows are good, otherwise without the bad ones. Parsed rows stay in memory while
they are few; beyond `ReadOptions.memory` they are written to disk in runs that are sorted by time and merged at the
end. Node ids always stay in memory, each once.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.id_values import MISSING_ID_WORDS, describe_missing_id
from dygmamba.data.events.ids import NodeIds, NodeNumbering
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.labels import LabelParser
from dygmamba.data.readers.options import ColumnRoles, ReadOptions
from dygmamba.data.readers.other_columns import OtherColumns
from dygmamba.data.readers.times import TimeParser, choose_time_parser
from dygmamba.data.readers.values import BadRows, BadValueError, ColumnLocation, is_text_type

if TYPE_CHECKING:  # torch is imported only after a file was read: errors in a file are reported at once
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.mapped_columns import ScratchColumn

MISSING_ID_HINT = "remove the row or name both its nodes"


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The parsed columns of one batch."""

    src: pa.DictionaryArray
    dst: pa.DictionaryArray
    time: np.ndarray
    edge: np.ndarray
    codes: np.ndarray
    label: np.ndarray | None


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Parser of batches; raises `BadValueError` if a row is bad."""

    path: Path | str
    roles: ColumnRoles
    options: ReadOptions
    time_parser: TimeParser
    others: OtherColumns
    label_parser: LabelParser
    first_row: int

    def read(self, batch: pa.RecordBatch) -> BatchColumns:
        roles, fill, any_id = self.roles, self.options.fill, self.options.any_id
        src, dst = (
            clean_ids(batch.column(name), self._locate(name), any_id) for name in (roles.src, roles.dst)
        )
        time = self.time_parser.parse(batch.column(roles.time), self._locate(roles.time))
        label = None
        if roles.label is not None:
            column = batch.column(roles.label)
            label = self.label_parser.parse(column, self._locate(roles.label), fill, self.options.decimal)
        return BatchColumns(src, dst, time, *self.others.read(batch, self._locate), label)

    def _locate(self, column: str) -> ColumnLocation:
        return ColumnLocation(str(self.path), column, self.first_row)


def drop_bad_rows(reader: BatchReader, batch: pa.RecordBatch, bad_rows: BadRows) -> pa.RecordBatch:
    """Return the good rows and add the others to `bad_rows`."""
    readable = bad_rows.find_good_rows(
        batch.num_rows, lambda start, stop: reader.read(batch.slice(start, stop - start)), reader.first_row
    )
    good = batch.filter(pa.array(readable))
    # encode the ids again: those that only bad rows had must not become nodes
    for name in {reader.roles.src, reader.roles.dst}:
        ids = good.column(name).dictionary_decode().dictionary_encode()
        good = good.set_column(good.schema.get_field_index(name), name, ids)
    return good


def clean_ids(ids: pa.DictionaryArray, location: ColumnLocation, any_id: bool) -> pa.DictionaryArray:
    """Strip whitespace from the ids of a batch; raise `BadValueError` if one is missing (see `id_values`)."""
    if ids.null_count:
        row = pc.index(pc.is_null(ids), True).as_py()
        raise location.bad_value(row, "is empty", MISSING_ID_HINT)
    if not is_text_type(ids.dictionary.type):
        return ids
    pool = pc.utf8_trim_whitespace(ids.dictionary)
    words = pa.array(MISSING_ID_WORDS[:1] if any_id else MISSING_ID_WORDS, pool.type)
    missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=words))
    if len(missing):
        bad = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
        row = pc.index(bad, True).as_py()
        if row >= 0:  # a dictionary may hold words that no row of this batch uses
            written = pool[ids.indices[row].as_py()].as_py()
            raise location.bad_value(row, describe_missing_id(written), MISSING_ID_HINT)
    return pa.DictionaryArray.from_arrays(ids.indices, pool)


MEMORY_FRACTION = 8  # buffered rows take 1/8 of the memory at most: joining, sorting and writing copy them


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of a file; a missing label or node feature table is None.

    `out_of_order` counts the rows that were out of order before sorting; None: the rows are in file order, unsorted.
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

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
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
        return EventColumns(*columns, out_of_order=self._out_of_order, codes=rows["codes"]), ids

    def _spill(self) -> None:
        """Write the buffered rows to disk as a run that is sorted by time."""
        from dygmamba.data.storage.mapped_columns import ScratchColumn

        rows = self._buffer.concatenate(self._numbering)
        self._buffer = _RowBuffer()
        time = rows["time"]
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        out_of_order = int((time < latest).sum())
        self._out_of_order, self._latest = self._out_of_order + out_of_order, latest[-1]
        order = np.argsort(time, kind="stable") if out_of_order else None
        for name, column in rows.items():
            if name not in self._disk:
                self._disk[name] = ScratchColumn(self._folder, column.dtype, column.shape[1:])
            self._disk[name].append(column if order is None else column[order])
        self._runs.append(self._runs[-1] + len(time))

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


CHECK_ROWS = 1 << 16  # rows checked for NaN at a time
DEFAULT_NAME = "data"  # name of a dataset that was not read from a file


@dataclass(slots=True)
class _ReadState:
    """Rows read so far, and how times and labels are parsed, known from the first batch on."""

    others: OtherColumns
    time_parser: TimeParser | None = None
    label_parser: LabelParser = field(default_factory=LabelParser)
    rows: int = 0


def read_table(
    path: Path | str,
    format: str,
    batches: Iterator[pa.RecordBatch],
    roles: ColumnRoles,
    options: ReadOptions,
    bad_rows: BadRows | None = None,
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table with one event per row, in file order unless it had to be sorted on disk.

    Args:
        path: the file, or a few words for a table that has none.
        format: recorded in the origin.
        batches: the columns of `roles`; src and dst are dictionary-encoded.
        roles: which column is what.
        options: how to parse values.
        bad_rows: receives rows that cannot be read.
    """
    bad_rows = BadRows(str(path), options.skip_bad) if bad_rows is None else bad_rows
    collector = RowCollector(options)
    state = _ReadState(OtherColumns(roles, options.fill, options.decimal, bad_rows))
    for batch in batches:
        parsed = _read_batch(state, path, batch, roles, options, bad_rows)
        if parsed is not None:
            collector.add(parsed)
    bad_rows.raise_unless_skipped()
    state.others.check_bad_cells(state.rows)
    if not collector or state.time_parser is None:
        problem = (
            f"no row that can be read ({bad_rows.summarize()})"
            if bad_rows.count
            else "column names but no rows"
        )
        raise FileError(f"{path} has {problem}; give at least one event", code="no-rows")
    columns, ids = collector.finish()
    columns = _finish_other_columns(columns, state.others)
    columns = replace(columns, label=state.label_parser.finish(columns.label))
    unused = state.others.list_unused()
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=format,
        src=roles.src,
        dst=roles.dst,
        time=roles.time,
        label=roles.label or "",
        classes=state.label_parser.classes,
        features=tuple(state.others.numeric[k] for k in state.others.kept_numeric),
        types=tuple(category.name for category in columns.categories),
        decimal="," if {*state.others.marks.values()} - {None} == {","} else "",
        unused_columns=tuple(unused),
        unused_reasons=tuple(unused.values()),
        time_unit="s" if state.time_parser.is_unix_time else "",
        time_origin="1970-01-01T00:00:00Z" if state.time_parser.is_unix_time else "",
        skipped=bad_rows.count,
        skipped_first=tuple(map(str, bad_rows.first)),
        **state.time_parser.describe(),
    )
    return columns, ids, origin


def _finish_other_columns(columns: EventColumns, others: OtherColumns) -> EventColumns:
    """Drop the candidates that are not usable after all, and give values of categorical columns their final codes."""
    others.finish()
    edge, codes = columns.edge, columns.codes
    if len(others.kept_numeric) < edge.shape[1]:
        edge = np.ascontiguousarray(edge[:, others.kept_numeric])
    finished = [others.vocabularies[k].finish() for k in others.kept_vocabularies]
    if codes is None or not finished:
        return replace(columns, edge=edge, codes=None)
    final = [order[codes[:, k]] for k, (_, order) in zip(others.kept_vocabularies, finished, strict=True)]
    categories = tuple(category for category, _ in finished)
    return replace(columns, edge=edge, codes=np.stack(final, axis=1), categories=categories)


def build_dataset(path: Path | str, columns: EventColumns, ids: NodeIds, origin: Origin) -> "Dataset":
    """Build a dataset named after its file, with events sorted by time; ties keep their order."""
    if not len(columns.time):
        raise FileError(f"{path} has no rows; give at least one event", code="no-rows")
    node = np.zeros((len(ids), 0), np.float32) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        if values is not None and not all(np.isfinite(values[rows]).all() for rows in _iter_slices(values)):
            raise FileError(
                f"{path} has {name} that are not finite; replace NaN and infinite values",
                code="values-not-finite",
            )

    import torch

    from dygmamba.data.events.event_store import EventStore, FeatureTable
    from dygmamba.data.storage.dataset import Dataset

    src, dst, time, edge = map(
        torch.from_numpy,
        (columns.src, columns.dst, columns.time.astype(np.float64, copy=False), columns.edge),
    )
    is_sorted = columns.out_of_order is not None
    out_of_order = (
        columns.out_of_order
        if columns.out_of_order is not None
        else int((time < time.cummax(0).values).sum())
    )
    try:
        store = (EventStore.from_unsorted if out_of_order and not is_sorted else EventStore.from_columns)(
            src,
            dst,
            time,
            features=FeatureTable(
                torch.from_numpy(node).to(torch.float32),
                edge.to(torch.float32),
                None if columns.codes is None else torch.from_numpy(columns.codes),
                origin.features if len(origin.features) == edge.shape[1] else (),
                columns.categories,
            ),
            label=None if columns.label is None else torch.from_numpy(columns.label),
            num_nodes=len(ids),
            bipartite=ids.sources is not None,
        )
    except EventError as error:
        raise FileError(f"{path}: {error}", code=error.code) from error
    name = path.name.split(".")[0] if isinstance(path, Path) else DEFAULT_NAME
    return Dataset.from_events(name, store, ids, replace(origin, out_of_order=out_of_order))


def _iter_slices(values: np.ndarray) -> Iterator[slice]:
    for start in range(0, len(values), CHECK_ROWS):
        yield slice(start, start + CHECK_ROWS)


def drop_zero_columns(columns: EventColumns) -> EventColumns:
    """Drop feature tables and labels that are zero throughout; published files use them as padding."""

    def drop_if_zero(matrix: np.ndarray) -> np.ndarray:
        return matrix if matrix.any() else matrix[:, :0]

    return replace(
        columns,
        edge=drop_if_zero(columns.edge),
        node=None if columns.node is None else drop_if_zero(columns.node),
        label=columns.label if columns.label is not None and bool(columns.label.any()) else None,
    )


def _read_batch(
    state: _ReadState,
    path: Path | str,
    batch: pa.RecordBatch,
    roles: ColumnRoles,
    options: ReadOptions,
    bad_rows: BadRows,
) -> BatchColumns | None:
    """Parse a batch, without its bad rows if there are any; None if no row is left."""
    if not batch.num_rows:
        return None
    if state.time_parser is None:
        state.time_parser = choose_time_parser(
            batch.column(roles.time),
            options.time_unit,
            ColumnLocation(str(path), roles.time, 0),
            time_format=options.time_format,
            order=options.date_order,
            guess=True,
        )
    parsers = (state.time_parser, state.others, state.label_parser)
    reader = BatchReader(path, roles, options, *parsers, state.rows)
    state.others.begin_batch(batch, state.rows)
    state.rows += batch.num_rows
    try:
        return reader.read(batch)
    except BadValueError:
        good = drop_bad_rows(reader, batch, bad_rows)
        return reader.read(good) if good.num_rows else None
