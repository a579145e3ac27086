"""From batches of columns to a dataset: what the readers of files and of tables in memory share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.choosing import choose_clock
from dygmamba.data.formats.clocks import Clock
from dygmamba.data.formats.faults import Faults
from dygmamba.data.formats.gathering import Columns as Columns
from dygmamba.data.formats.gathering import Gathering
from dygmamba.data.formats.options import ReadOptions, Roles
from dygmamba.data.formats.rows import RowReader, Values, without_bad
from dygmamba.data.formats.values import BadValue, Place
from dygmamba.data.ids import NodeIds
from dygmamba.data.origin import Origin
from dygmamba.errors import EventError, FileError

if TYPE_CHECKING:  # torch waits until a file is read to its end: what is wrong with it is said at once
    from dygmamba.data.store import Dataset

LOOK = 1 << 16  # rows
UNNAMED = "data"  # what a dataset is called whose source has no name


@dataclass(slots=True)
class _Reading:
    """How far a file was read, and how its times are, once there was one."""

    clock: Clock | None = None
    rows: int = 0


def read_table(
    path: Path | str,
    kind: str,
    batches: Iterator[pa.RecordBatch],
    roles: Roles,
    options: ReadOptions,
    faults: Faults | None = None,
) -> tuple[Columns, NodeIds, Origin]:
    """The columns of a file with one event per row, in the file's order; src and dst come as dictionaries.

    What has no path is called by a few words. Rows that cannot be read are told to `faults`.
    """
    gathered, reading = Gathering(roles, options), _Reading()
    faults = Faults(str(path), options.skip_bad) if faults is None else faults
    for batch in batches:
        values = _values(reading, path, batch, roles, options, faults)
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


def arranged(path: Path | str, columns: Columns, ids: NodeIds, origin: Origin) -> "Dataset":
    """The dataset of loose columns, named after its file and sorted by time; ties keep their order."""
    if not len(columns.time):
        raise FileError(f"{path} has no rows; give at least one event")
    node = np.zeros((len(ids), 0), np.float32) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        if values is not None and not all(np.isfinite(values[rows]).all() for rows in _cuts(values)):
            raise FileError(f"{path} has {name} that are not finite; replace what is NaN or infinite")

    import torch

    from dygmamba.data.events import EventStore, FeatureTable
    from dygmamba.data.store import Dataset

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
    name = path.name.split(".")[0] if isinstance(path, Path) else UNNAMED
    return Dataset.of(name, store, ids, replace(origin, out_of_order=late))


def _cuts(values: np.ndarray) -> Iterator[slice]:
    """Runs of rows that are few enough to be looked at together."""
    for start in range(0, len(values), LOOK):
        yield slice(start, start + LOOK)


def without_zeros(columns: Columns) -> Columns:
    """The same columns, all-zero features and labels dropped: the field's files pad with them."""

    def kept(matrix: np.ndarray) -> np.ndarray:
        return matrix if matrix.any() else matrix[:, :0]

    return replace(
        columns,
        edge=kept(columns.edge),
        node=None if columns.node is None else kept(columns.node),
        label=columns.label if columns.label is not None and bool(columns.label.any()) else None,
    )


def _values(
    reading: _Reading,
    path: Path | str,
    batch: pa.RecordBatch,
    roles: Roles,
    options: ReadOptions,
    faults: Faults,
) -> Values | None:
    """Another batch: at once if all its rows are good, otherwise without the bad ones; None where none is left."""
    if not batch.num_rows:
        return None
    if reading.clock is None:
        place = Place(str(path), roles.time, 0)
        how = {"form": options.time_format, "order": options.date_order, "guess": True}
        reading.clock = choose_clock(batch.column(roles.time), options.time_unit, place, **how)
    reader = RowReader(path, roles, options, reading.clock, reading.rows)
    reading.rows += batch.num_rows
    try:
        return reader.read(batch)
    except BadValue:
        good = without_bad(reader, batch, faults)
        return reader.read(good) if good.num_rows else None
