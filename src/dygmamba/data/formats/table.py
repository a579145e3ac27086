"""From batches of columns to a dataset: what the readers of files and of tables in memory share."""

# pyarrow.compute makes its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dygmamba.data.events import EventStore, FeatureTable
from dygmamba.data.formats.options import ReadOptions, Roles
from dygmamba.data.formats.values import Clock, Place, choose_clock, is_text, numbers
from dygmamba.data.ids import NodeIds, number_nodes
from dygmamba.data.store import Dataset, Origin
from dygmamba.errors import EventError, FileError

UNNAMED = "data"  # what a dataset is called whose source has no name


@dataclass(frozen=True, slots=True)
class Columns:
    """The events of a file before they are sorted; an absent label or node table is None."""

    src: Tensor
    dst: Tensor
    time: Tensor
    edge: Tensor
    label: Tensor | None = None
    node: Tensor | None = None


@dataclass(slots=True)
class _Gathered:
    """The columns so far, one entry per batch; text is gone once a batch is in, so memory stays small."""

    src: list[pa.DictionaryArray] = field(default_factory=list)
    dst: list[pa.DictionaryArray] = field(default_factory=list)
    time: list[np.ndarray] = field(default_factory=list)
    edge: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    clock: Clock | None = None
    rows: int = 0


def read_table(
    path: Path | str, kind: str, batches: Iterator[pa.RecordBatch], roles: Roles, options: ReadOptions
) -> tuple[Columns, NodeIds, Origin]:
    """The columns of a file with one event per row, in the file's order; src and dst come as dictionaries.

    What has no path is called by a few words.
    """
    gathered = _Gathered()
    for batch in batches:
        _gather(gathered, path, batch, roles, options)
    if not gathered.rows or gathered.clock is None:
        raise FileError(f"{path} has column names but no rows; give at least one event")
    src, dst, ids = number_nodes(gathered.src, gathered.dst, options.bipartite)
    origin = Origin(
        file=path.name if isinstance(path, Path) else "",
        format=kind,
        src=roles.src,
        dst=roles.dst,
        time=roles.time,
        label=roles.label or "",
        features=roles.features,
        time_unit="s" if gathered.clock.epoch else "",
        time_origin="1970-01-01T00:00:00Z" if gathered.clock.epoch else "",
    )
    columns = Columns(
        src=torch.from_numpy(src),
        dst=torch.from_numpy(dst),
        time=torch.from_numpy(np.concatenate(gathered.time)),
        edge=torch.from_numpy(np.concatenate(gathered.edge)),
        label=torch.from_numpy(np.concatenate(gathered.label)) if roles.label is not None else None,
    )
    return columns, ids, origin


def arranged(path: Path | str, columns: Columns, ids: NodeIds, origin: Origin) -> Dataset:
    """The dataset of loose columns, named after its file and sorted by time; ties keep their order."""
    time = columns.time.to(torch.float64)
    if not len(time):
        raise FileError(f"{path} has no rows; give at least one event")
    late = int((time < time.cummax(0).values).sum())
    node = torch.zeros(len(ids), 0) if columns.node is None else columns.node
    for name, values in (("edge features", columns.edge), ("node features", node), ("labels", columns.label)):
        if values is not None and not bool(torch.isfinite(values).all()):
            raise FileError(f"{path} has {name} that are not finite; replace what is NaN or infinite")
    try:
        store = (EventStore.sorted if late else EventStore.of)(
            columns.src,
            columns.dst,
            time,
            features=FeatureTable(node.to(torch.float32), columns.edge.to(torch.float32)),
            label=columns.label,
            num_nodes=len(ids),
            bipartite=ids.sources is not None,
        )
    except EventError as error:
        raise FileError(f"{path}: {error}") from error
    name = path.name.split(".")[0] if isinstance(path, Path) else UNNAMED
    return Dataset.of(name, store, ids, replace(origin, out_of_order=late))


def without_zeros(columns: Columns) -> Columns:
    """The same columns, all-zero features and labels dropped: the field's files pad with them."""

    def kept(matrix: Tensor) -> Tensor:
        return matrix if bool(matrix.any()) else matrix[:, :0]

    return replace(
        columns,
        edge=kept(columns.edge),
        node=None if columns.node is None else kept(columns.node),
        label=columns.label if columns.label is not None and bool(columns.label.any()) else None,
    )


def _gather(
    gathered: _Gathered, path: Path | str, batch: pa.RecordBatch, roles: Roles, options: ReadOptions
) -> None:
    if not batch.num_rows:
        return

    def place(column: str) -> Place:
        return Place(str(path), column, gathered.rows)

    gathered.src.append(_identifiers(batch.column(roles.src), place(roles.src)))
    gathered.dst.append(_identifiers(batch.column(roles.dst), place(roles.dst)))
    time = batch.column(roles.time)
    if gathered.clock is None:
        gathered.clock = choose_clock(time, options.time_unit, place(roles.time))
    gathered.time.append(gathered.clock.seconds(time, place(roles.time)))
    edge = np.empty((batch.num_rows, len(roles.features)), np.float32)
    for k, name in enumerate(roles.features):
        edge[:, k] = numbers(batch.column(name), place(name), options.fill)
    gathered.edge.append(edge)
    if roles.label is not None:
        gathered.label.append(numbers(batch.column(roles.label), place(roles.label), options.fill))
    gathered.rows += batch.num_rows


def _identifiers(ids: pa.DictionaryArray, place: Place) -> pa.DictionaryArray:
    """The ids of a batch, white space around them ignored, none of them missing."""
    if ids.null_count:
        row = pc.index(pc.is_null(ids), True).as_py()
        raise place.error(row, "is empty", "remove the row or name both its nodes")
    if not is_text(ids.dictionary.type):
        return ids
    pool = pc.utf8_trim_whitespace(ids.dictionary)
    empty = pc.index(pool, "").as_py()
    if empty >= 0:
        row = pc.index(ids.indices, empty).as_py()
        raise place.error(row, "is empty", "remove the row or name both its nodes")
    return pa.DictionaryArray.from_arrays(ids.indices, pool)
