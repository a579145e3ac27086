"""From batches of Arrow columns to a dataset: shared by the readers of files and of in-memory tables.

Every column of a batch is parsed once, with a mask of its bad rows; rows that are bad in one of them are dropped or
refused here and nowhere else. Parsed rows stay in memory while they are few; beyond `ReadOptions.memory` they are
written to disk in runs that are sorted by time and merged at the end. Node ids always stay in memory, each once.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from dygmamba.data.readers.other_columns import OtherColumns, TextKind
from dygmamba.data.readers.text import undecodable_error
from dygmamba.data.readers.times import TimeParser, choose_time_parser
from dygmamba.data.readers.values import (
    BadRows,
    ColumnLocation,
    Parsed,
    find_bad_rows,
    find_nulls,
    is_text_type,
)

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
    label: np.ndarray | None = None


def clean_ids(ids: pa.DictionaryArray, any_id: bool) -> Parsed:
    """Strip whitespace from the ids of a batch; a missing one is bad (see `id_values`)."""
    bad, pool = find_nulls(ids), ids.dictionary
    if is_text_type(pool.type):
        pool = pc.utf8_trim_whitespace(pool)
        words = pa.array(MISSING_ID_WORDS[:1] if any_id else MISSING_ID_WORDS, pool.type)
        missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=words))
        if len(missing):
            is_missing = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
            bad = bad | is_missing.to_numpy(zero_copy_only=False)
        ids = pa.DictionaryArray.from_arrays(ids.indices, pool)

    def explain(row: int) -> tuple[str, str]:
        written = ids[row].as_py()
        return "is empty" if written is None else describe_missing_id(written), MISSING_ID_HINT

    return Parsed(ids, bad, explain)


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


CHECK_ROWS = 1 << 16  # rows checked for NaN at a time
DEFAULT_NAME = "data"  # name of a dataset that was not read from a file


class RowReader:
    """Reads the rows of one table: parses each column of a batch once, and leaves out the bad rows."""

    def __init__(
        self,
        path: Path | str,
        roles: ColumnRoles,
        options: ReadOptions,
        kinds: Mapping[str, TextKind] | None = None,
    ) -> None:
        self._source, self._roles, self._options = str(path), roles, options
        self.bad_rows = BadRows(self._source, options.skip_bad)
        self.others = OtherColumns(roles, options.fill, options.decimal, keep_numeric=True, kinds=kinds)
        self.label_parser = LabelParser()
        self.time_parser: TimeParser | None = None  # chosen by the first batch
        self._rows = 0

    def read(self, batch: pa.RecordBatch) -> BatchColumns | None:
        """Parse a batch; None if it has no good row."""
        if not batch.num_rows:
            return None
        positions = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        ends, chosen = self._parse_ends(batch), self.others.parse_chosen(batch, self._locate)
        named = [(getattr(self._roles, role), column) for role, column in ends.items()]
        found = find_bad_rows([*named, *chosen.items()], len(batch))
        if found.bad.any():
            self.bad_rows.add_bad_values(positions, found)
            good = ~found.bad
            batch, positions = batch.filter(pa.array(good)), positions[good]
            ends, chosen = ({k: column.keep(good) for k, column in part.items()} for part in (ends, chosen))
        if not batch.num_rows:
            return None
        edge, codes, found = self.others.read(batch, chosen, self._locate, positions)
        if found.bad.any():
            self.bad_rows.add_bad_values(positions, found, certain=False)
            ends = {role: column.keep(~found.bad) for role, column in ends.items()}
        values = {role: column.values for role, column in ends.items()}
        if self._roles.label is not None:
            values["label"] = self.label_parser.encode(values["label"], self._locate(self._roles.label))
        return BatchColumns(**values, edge=edge, codes=codes) if len(edge) else None

    def _parse_ends(self, batch: pa.RecordBatch) -> dict[str, Parsed]:
        """Parse sources, destinations, times and labels, by role."""
        roles, options = self._roles, self._options
        src, dst = (clean_ids(batch.column(name), options.any_id) for name in (roles.src, roles.dst))
        time, location = batch.column(roles.time), self._locate(roles.time)
        if self.time_parser is None:
            self.time_parser = choose_time_parser(
                time,
                options.time_unit,
                location,
                time_format=options.time_format,
                order=options.date_order,
                guess=True,
            )
        ends = {"src": src, "dst": dst, "time": self.time_parser.parse(time, location)}
        if roles.label is not None:
            column, location = batch.column(roles.label), self._locate(roles.label)
            ends["label"] = self.label_parser.parse(column, location, options.fill, options.decimal)
        return ends

    def _locate(self, column: str) -> ColumnLocation:
        return ColumnLocation(self._source, column, 0)


# opens the batches of a table with the columns of some roles; rows without the right columns go to `BadRows`
OpenBatches = Callable[[BadRows], Iterable[pa.RecordBatch]]


def read_table(
    path: Path | str,
    format: str,
    open_batches: OpenBatches,
    roles: ColumnRoles,
    options: ReadOptions,
    keep_rows: bool = False,
) -> tuple[EventColumns, NodeIds, Origin]:
    """Read a table with one event per row, in file order unless it had to be sorted on disk.

    Args:
        path: the file, or a few words for a table that has none.
        format: recorded in the origin.
        open_batches: opens the columns of `roles`; src and dst are dictionary-encoded. The table is read a second time
            if its later rows show that a column is not what the first ones look like.
        roles: which column is what.
        options: how to parse values.
        keep_rows: whether other files have values by row, so that events that were sorted must remember theirs.
    """
    collector = RowCollector(options, keep_rows)
    reader = _read_rows(path, open_batches, roles, options, collector)
    if kinds := reader.others.revise_kinds():
        collector = RowCollector(options, keep_rows)
        reader = _read_rows(path, open_batches, roles, options, collector, kinds)
    bad_rows, others, time_parser = reader.bad_rows, reader.others, reader.time_parser
    bad_rows.raise_unless_skipped()
    others.raise_for_bad_cells(bad_rows)
    if not collector or time_parser is None:
        if isinstance(path, Path) and bad_rows.are_undecodable:
            raise undecodable_error(path, options.encoding, options.skip_bad)
        problem = (
            f"no row that can be read ({bad_rows.summarize()})"
            if bad_rows.count
            else "column names but no rows"
        )
        raise FileError(f"{path} has {problem}; give at least one event", code="no-rows")
    columns, ids = collector.finish()
    columns = _finish_other_columns(columns, others)
    columns = replace(columns, label=reader.label_parser.finish(columns.label))
    unused = others.list_unused()
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=format,
        src=roles.src,
        dst=roles.dst,
        time=roles.time,
        label=roles.label or "",
        classes=reader.label_parser.classes,
        features=tuple(others.numeric[k] for k in others.kept_numeric),
        types=tuple(category.name for category in columns.categories),
        decimal="," if {*others.marks.values()} - {None} == {","} else "",
        unused_columns=tuple(unused),
        unused_reasons=tuple(unused.values()),
        time_unit="s" if time_parser.is_unix_time else "",
        time_origin="1970-01-01T00:00:00Z" if time_parser.is_unix_time else "",
        skipped=bad_rows.count,
        skipped_first=tuple(map(str, bad_rows.first)),
        **time_parser.describe(),
    )
    return columns, ids, origin


def _read_rows(
    path: Path | str,
    open_batches: OpenBatches,
    roles: ColumnRoles,
    options: ReadOptions,
    collector: RowCollector,
    kinds: Mapping[str, TextKind] | None = None,
) -> RowReader:
    """Collect all good rows, once."""
    reader = RowReader(path, roles, options, kinds)
    try:
        for batch in open_batches(reader.bad_rows):
            if (columns := reader.read(batch)) is not None:
                collector.add(columns)
    except FileError as error:
        is_encoding = error.code == "mostly-bad-rows" and reader.bad_rows.are_undecodable
        if isinstance(path, Path) and is_encoding:
            raise undecodable_error(path, options.encoding, options.skip_bad) from error
        raise
    return reader


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
