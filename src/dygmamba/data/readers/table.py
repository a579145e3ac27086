"""Rows of text as values: a batch at once if all its rows are good, otherwise without the bad ones.

The rows of a file as they come: in memory while they are few, beyond that in sorted runs on the disk.

What is on the disk is written once if the file is in order of time; otherwise every run is sorted as it is written and
all of them are merged at the end. Ids stay in memory, each once.

From batches of columns to a dataset: what the readers of files and of tables in memory share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import EventError, FileError
from dygmamba.data.events.ids import NodeIds, NodeNumbering
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.options import ColumnRoles, ReadOptions
from dygmamba.data.readers.times import TimeParser, choose_time_parser
from dygmamba.data.readers.values import BadRows, BadValueError, ColumnLocation, is_text_type, parse_floats

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset
    from dygmamba.data.storage.mapped_columns import ScratchColumn

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false


# what programs write for nothing
MISSING_ID_WORDS = pa.array(["", "nan", "null", "none", "n/a", "#n/a", "<na>", "\\n"])
EMPTY_ID = MISSING_ID_WORDS.slice(0, 1)
MISSING_ID_HINT = "remove the row or name both its nodes"


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The columns of one batch."""

    src: pa.DictionaryArray
    dst: pa.DictionaryArray
    time: np.ndarray
    edge: np.ndarray
    label: np.ndarray | None


@dataclass(frozen=True, slots=True)
class BatchReader:
    """How the columns of a file become values, or a `BadValue`."""

    path: Path | str
    roles: ColumnRoles
    options: ReadOptions
    clock: TimeParser
    first_row: int

    def read(self, batch: pa.RecordBatch) -> BatchColumns:
        """All columns of some rows."""
        roles, fill = self.roles, self.options.fill
        missing = EMPTY_ID if self.options.any_id else MISSING_ID_WORDS
        src, dst = (
            _clean_ids(batch.column(name), self._place(name), missing) for name in (roles.src, roles.dst)
        )
        time = self.clock.seconds(batch.column(roles.time), self._place(roles.time))
        edge = np.empty((batch.num_rows, len(roles.features)), np.float32)
        for k, name in enumerate(roles.features):
            edge[:, k] = parse_floats(batch.column(name), self._place(name), fill)
        label = None
        if roles.label is not None:
            label = parse_floats(batch.column(roles.label), self._place(roles.label), fill)
        return BatchColumns(src, dst, time, edge, label)

    def _place(self, column: str) -> ColumnLocation:
        return ColumnLocation(str(self.path), column, self.first_row)


def drop_bad_rows(reader: BatchReader, batch: pa.RecordBatch, faults: BadRows) -> pa.RecordBatch:
    """The rows that can be read, the others told; found by halving, so that few bad rows cost little."""
    bad: list[int] = []

    def look(start: int, stop: int) -> None:
        try:
            reader.read(batch.slice(start, stop - start))
        except BadValueError as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                look(start, middle)
                look(middle, stop)
            else:
                bad.append(start)
                faults.bad(reader.first_row + start, error.why, error.do)

    look(0, batch.num_rows)
    good = batch.filter(pa.array(np.isin(np.arange(batch.num_rows), bad, invert=True)))
    for name in {reader.roles.src, reader.roles.dst}:  # ids that only bad rows had must not become nodes
        column = good.column(name)
        fresh = column.dictionary_decode().dictionary_encode()
        good = good.set_column(good.schema.get_field_index(name), name, fresh)
    return good


def _clean_ids(ids: pa.DictionaryArray, place: ColumnLocation, nothing: pa.Array) -> pa.DictionaryArray:
    """The ids of a batch, white space around them ignored, none of them a word for nothing."""
    if ids.null_count:
        row = pc.index(pc.is_null(ids), True).as_py()
        raise place.error(row, "is empty", MISSING_ID_HINT)
    if not is_text_type(ids.dictionary.type):
        return ids
    pool = pc.utf8_trim_whitespace(ids.dictionary)
    missing = pc.indices_nonzero(pc.is_in(pc.utf8_lower(pool), value_set=nothing.cast(pool.type)))
    if len(missing):
        bad = pc.is_in(ids.indices, value_set=missing.cast(ids.indices.type))
        row = pc.index(bad, True).as_py()
        if row >= 0:
            written = pool[ids.indices[row].as_py()].as_py()
            raise place.error(row, f"is {written!r}, no id" if written else "is empty", MISSING_ID_HINT)
    return pa.DictionaryArray.from_arrays(ids.indices, pool)


MEMORY_FRACTION = (
    8  # rows that are held at a time take this part of the memory at most: they are joined, sorted, written
)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of a file; an absent label or node table is None.

    `late` is how many rows were out of order before they were sorted; None: they are in the order of the file.
    """

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    edge: np.ndarray
    label: np.ndarray | None = None
    node: np.ndarray | None = None
    late: int | None = None


@dataclass(slots=True)
class _RowBuffer:
    """Rows in memory, one entry per batch; text is gone once a batch is in."""

    src: list[pa.DictionaryArray] = field(default_factory=list)
    dst: list[pa.DictionaryArray] = field(default_factory=list)
    time: list[np.ndarray] = field(default_factory=list)
    edge: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    size: int = 0

    def add(self, values: BatchColumns) -> None:
        for name in ("src", "dst", "time", "edge", "label"):
            if (column := getattr(values, name)) is not None:
                getattr(self, name).append(column)
                self.size += column.nbytes

    def joined(self, numbers: NodeNumbering) -> dict[str, np.ndarray]:
        """Ids by the order of their arrival; the others as they are."""
        src, dst = numbers.add(self.src, self.dst)
        rest = {"time": self.time, "edge": self.edge, "label": self.label}
        return {"src": src, "dst": dst} | {k: np.concatenate(v) for k, v in rest.items() if v}


class RowCollector:
    """All good rows of one file, in whatever way there is room for them."""

    def __init__(self, roles: ColumnRoles, options: ReadOptions) -> None:
        self._roles, self._options = roles, options
        self._numbers, self._held = NodeNumbering(options.bipartite), _RowBuffer()
        self._disk: dict[str, ScratchColumn] = {}
        self._runs: list[int] = [0]  # where each begins, and where the last one ends
        self._late, self._latest = 0, -np.inf

    def __bool__(self) -> bool:
        return bool(self._held.time) or len(self._runs) > 1

    def add(self, values: BatchColumns) -> None:
        """The rows of another batch."""
        self._held.add(values)
        if self._held.size * MEMORY_FRACTION > self._options.memory:
            self._spill()

    def finish(self) -> tuple[EventColumns, NodeIds]:
        """Every column, with the nodes numbered."""
        if len(self._runs) == 1:
            found = self._held.joined(self._numbers)
            node_of, ids = self._numbers.finish()
            src, dst = (node_of[name][found[name]] for name in ("src", "dst"))
            return EventColumns(src, dst, found["time"], found["edge"], found.get("label")), ids
        if self._held.time:
            self._spill()
        node_of, ids = self._numbers.finish()
        self._disk = self._merged(node_of)
        found = {name: column.mapped().numpy() for name, column in self._disk.items()}
        columns = (found["src"], found["dst"], found["time"], found["edge"], found.get("label"))
        return EventColumns(*columns, late=self._late), ids

    def _spill(self) -> None:
        """What is held becomes a run on the disk, in order of time."""
        from dygmamba.data.storage.mapped_columns import ScratchColumn

        rows = self._held.joined(self._numbers)
        self._held = _RowBuffer()
        time = rows["time"]
        latest = np.maximum.accumulate(np.maximum(time, self._latest))
        late = int((time < latest).sum())
        self._late, self._latest = self._late + late, latest[-1]
        order = np.argsort(time, kind="stable") if late else None
        for name, column in rows.items():
            if name not in self._disk:
                self._disk[name] = ScratchColumn(self._folder, column.dtype, column.shape[1:])
            self._disk[name].append(column if order is None else column[order])
        self._runs.append(self._runs[-1] + len(time))

    def _merged(self, node_of: dict[str, np.ndarray]) -> dict[str, "ScratchColumn"]:
        """The runs as one, and nodes in place of ids; columns that are in order already stay where they are."""
        from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_slices, merge_sorted_runs

        width = sum(column.row_bytes for column in self._disk.values()) + 16
        most = max(1, self._options.memory // (MEMORY_FRACTION * width))
        moved = [name for name in self._disk if self._late or name in node_of]
        kinds = {name: np.dtype(np.int64) if name in node_of else self._disk[name].dtype for name in moved}
        out = {name: ScratchColumn(self._folder, kinds[name], self._disk[name].width) for name in moved}
        if self._late:
            rounds = merge_sorted_runs(self._disk["time"], self._runs, most)
        else:
            rounds = (
                ([(rows.start, rows.stop)], None)
                for rows in iterate_slices(self._runs[-1], width, most * width)
            )
        for parts, order in rounds:
            for name in moved:
                found = np.concatenate([self._disk[name].read(*part) for part in parts])
                found = node_of[name][found] if name in node_of else found
                out[name].append(found if order is None else found[order])
        return self._disk | out

    @property
    def _folder(self) -> Path:
        from tempfile import gettempdir

        return self._options.scratch or Path(gettempdir())


CHECK_ROWS = 1 << 16  # rows
DEFAULT_NAME = "data"  # what a dataset is called whose source has no name


@dataclass(slots=True)
class _ReadState:
    """How far a file was read, and how its times are, once there was one."""

    clock: TimeParser | None = None
    rows: int = 0


def read_table(
    path: Path | str,
    kind: str,
    batches: Iterator[pa.RecordBatch],
    roles: ColumnRoles,
    options: ReadOptions,
    faults: BadRows | None = None,
) -> tuple[EventColumns, NodeIds, Origin]:
    """The columns of a file with one event per row, in the file's order; src and dst come as dictionaries.

    What has no path is called by a few words. Rows that cannot be read are told to `faults`.
    """
    gathered, reading = RowCollector(roles, options), _ReadState()
    faults = BadRows(str(path), options.skip_bad) if faults is None else faults
    for batch in batches:
        values = _read_batch(reading, path, batch, roles, options, faults)
        if values is not None:
            gathered.add(values)
    faults.settle()
    if not gathered or reading.clock is None:
        lost = f"no row that can be read ({faults.listed()})" if faults.count else "column names but no rows"
        raise FileError(f"{path} has {lost}; give at least one event")
    columns, ids = gathered.finish()
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=kind,
        src=roles.src,
        dst=roles.dst,
        time=roles.time,
        label=roles.label or "",
        features=roles.features,
        time_unit="s" if reading.clock.epoch else "",
        time_origin="1970-01-01T00:00:00Z" if reading.clock.epoch else "",
        skipped=faults.count,
        skipped_first=tuple(map(str, faults.first)),
        **reading.clock.words(),
    )
    return columns, ids, origin


def build_dataset(path: Path | str, columns: EventColumns, ids: NodeIds, origin: Origin) -> "Dataset":
    """The dataset of loose columns, named after its file and sorted by time; ties keep their order."""
    if not len(columns.time):
        raise FileError(f"{path} has no rows; give at least one event")
    node = np.zeros((len(ids), 0), np.float32) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        if values is not None and not all(np.isfinite(values[rows]).all() for rows in _iter_slices(values)):
            raise FileError(f"{path} has {name} that are not finite; replace what is NaN or infinite")

    import torch

    from dygmamba.data.events.event_store import EventStore, FeatureTable
    from dygmamba.data.storage.dataset import Dataset

    src, dst, time, edge = map(
        torch.from_numpy,
        (columns.src, columns.dst, columns.time.astype(np.float64, copy=False), columns.edge),
    )
    known = columns.late is not None  # then they are sorted
    late = columns.late if columns.late is not None else int((time < time.cummax(0).values).sum())
    try:
        store = (EventStore.sorted if late and not known else EventStore.of)(
            src,
            dst,
            time,
            features=FeatureTable(torch.from_numpy(node).to(torch.float32), edge.to(torch.float32)),
            label=None if columns.label is None else torch.from_numpy(columns.label),
            num_nodes=len(ids),
            bipartite=ids.sources is not None,
        )
    except EventError as error:
        raise FileError(f"{path}: {error}") from error
    name = path.name.split(".")[0] if isinstance(path, Path) else DEFAULT_NAME
    return Dataset.of(name, store, ids, replace(origin, out_of_order=late))


def _iter_slices(values: np.ndarray) -> Iterator[slice]:
    """Runs of rows that are few enough to be looked at together."""
    for start in range(0, len(values), CHECK_ROWS):
        yield slice(start, start + CHECK_ROWS)


def drop_zero_columns(columns: EventColumns) -> EventColumns:
    """The same columns, all-zero features and labels dropped: the field's files pad with them."""

    def kept(matrix: np.ndarray) -> np.ndarray:
        return matrix if matrix.any() else matrix[:, :0]

    return replace(
        columns,
        edge=kept(columns.edge),
        node=None if columns.node is None else kept(columns.node),
        label=columns.label if columns.label is not None and bool(columns.label.any()) else None,
    )


def _read_batch(
    reading: _ReadState,
    path: Path | str,
    batch: pa.RecordBatch,
    roles: ColumnRoles,
    options: ReadOptions,
    faults: BadRows,
) -> BatchColumns | None:
    """Another batch: at once if all its rows are good, otherwise without the bad ones; None where none is left."""
    if not batch.num_rows:
        return None
    if reading.clock is None:
        place = ColumnLocation(str(path), roles.time, 0)
        how = {"form": options.time_format, "order": options.date_order, "guess": True}
        reading.clock = choose_time_parser(batch.column(roles.time), options.time_unit, place, **how)
    reader = BatchReader(path, roles, options, reading.clock, reading.rows)
    reading.rows += batch.num_rows
    try:
        return reader.read(batch)
    except BadValueError:
        good = drop_bad_rows(reader, batch, faults)
        return reader.read(good) if good.num_rows else None
