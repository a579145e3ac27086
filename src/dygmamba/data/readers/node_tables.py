"""Tables of node features: a row per node, or per node and time, with numeric and categorical columns.

A row counts for queries strictly later than its time. Without a column of times the rows are known from the start.
"""

# pyarrow.compute creates its functions at import, where pyright cannot see them
# pyright: reportAttributeAccessIssue=false

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.categories import MISSING_VALUE
from dygmamba.data.events.ids import NodeIds, Side
from dygmamba.data.readers.bad_rows import BadRows, ColumnLocation
from dygmamba.data.readers.column_kinds import HOLDS_DATES
from dygmamba.data.readers.options import USUAL_NAMES, Layout, ReadOptions, find_usual_column
from dygmamba.data.readers.other_columns import OtherColumns
from dygmamba.data.readers.queries import read_query_times
from dygmamba.data.readers.roles import find_node_column, require_column
from dygmamba.data.readers.sources import open_source
from dygmamba.data.readers.values import as_category_text, parse_ids

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset


@dataclass(frozen=True, slots=True)
class NodeTableResult:
    """A dataset with node features, and what was not used of their table.

    Attributes:
        dataset: The dataset.
        unknown: Number of rows of nodes that the dataset does not have.
        unused: Columns that are not used, with the reason.
        warning: Why features may be known too early; None if they are not.
    """

    dataset: "Dataset"
    unknown: int
    unused: dict[str, str]
    warning: str | None = None


def add_node_features(
    dataset: "Dataset", table: Any, time: str | None = None, options: ReadOptions | None = None
) -> NodeTableResult:
    """Return a dataset with the node features of a file or table; they replace those that it has.

    Args:
        dataset: The events.
        table: A file, or a table in memory. The node is the column node or id, a column named as the source or the
            destination of the events, or the first one.
        time: Column of times; by default one with a usual name, such as time or date. Without one the features never
            change.
        options: How times, numbers and text are read.

    Raises:
        FileError: The table has no row of a node, or ids that stand for a source and for a destination.
    """
    options = options or ReadOptions()
    source, rows = _read_table(table, options)
    names = rows.column_names
    if not rows.num_rows or len(names) < 2:
        raise FileError(
            f"{source} has {rows.num_rows} rows and {len(names)} columns; give a column of nodes, and node features",
            code="no-rows",
        )
    when = find_usual_column(names, "time") if time is None else require_column(source, names, time)
    who = find_node_column([name for name in names if name != when], dataset.origin)
    instant = None if when is None else _read_times(rows, when, source, dataset, options)
    any_id = options.recall(dataset.origin).any_id
    location = ColumnLocation(source, who)
    ids = parse_ids(rows[who].combine_chunks(), location, any_id).require(location)
    place, node = _find_nodes(source, dataset.ids, ids, who, dataset)
    return _build(dataset, source, rows, (who, when), (place, node), instant, options)


def require_node_table(time: str | None) -> None:
    """Raise ConfigError for a column of times without a table of node features."""
    if time is not None:
        raise ConfigError(
            f"`node_time` is a column of a table of node features, and there is none; got {time!r}. Give "
            "`node_features` too",
            code="option-not-applicable",
        )


def _build(
    dataset: "Dataset",
    source: str,
    rows: pa.Table,
    ends: tuple[str, str | None],
    found: tuple[np.ndarray, np.ndarray],
    instant: np.ndarray | None,
    options: ReadOptions,
) -> NodeTableResult:
    import torch

    from dygmamba.data.events.node_rows import STATIC_TIME, NodeRows
    from dygmamba.data.storage.dataset import Dataset

    place, node = found
    rest = tuple(name for name in rows.column_names if name not in ends)
    layout = Layout(candidates=rest, fill=0.0, decimal=options.decimal)
    others = OtherColumns(BadRows(source, skip=True), layout, kinds={})  # all rows are in one batch
    batch = rows.combine_chunks().to_batches()[0]
    edge, provisional, _ = others.read(batch, {}, np.arange(batch.num_rows))
    finished = others.finish(keep_constants=True)
    value, codes = finished.select(edge, provisional)
    known = [as_category_text(batch.column(name)) for name in finished.names]
    is_known = [pc.not_equal(text, MISSING_VALUE).to_numpy(zero_copy_only=False) for text in known]
    unused = {name: finished.unused[name] for name in rest if name in finished.unused}
    if not finished.names and not finished.categories:
        reasons = "; ".join(f"{name} {reason}" for name, reason in unused.items())
        raise FileError(
            f"{source} has no usable node feature ({reasons}); give numbers or categories",
            code="no-node-features",
        )
    columns = (
        node,
        np.full(len(node), STATIC_TIME) if instant is None else instant[place],
        value[place],
        np.stack(is_known, axis=1)[place] if is_known else np.zeros((len(place), 0), bool),
        codes[place] if codes is not None else np.zeros((len(place), 0), np.int32),
    )
    table = NodeRows.from_unsorted(
        *map(torch.from_numpy, columns), names=finished.names, categories=finished.categories
    )
    features = replace(dataset.store.features, node_rows=table)
    store = dataset.store.derive(features=features)
    result = replace(Dataset.from_events(dataset.name, store, dataset.ids, dataset.origin), path=dataset.path)
    dates = [name for name, reason in unused.items() if reason == HOLDS_DATES]
    warning = _describe_repeated_nodes(source, batch, found, dates) if instant is None else None
    return NodeTableResult(result, rows.num_rows - len(np.unique(place)), unused, warning)


def _describe_repeated_nodes(
    source: str, batch: pa.RecordBatch, found: tuple[np.ndarray, np.ndarray], dates: Sequence[str]
) -> str | None:
    """Warn of nodes with several rows in a table without times, and name the column that probably holds them.

    Of such a node the last row counts from the start, so that a query may see what was not known at its time.
    """
    place, node = found
    _, number, count = np.unique(node, return_inverse=True, return_counts=True)
    repeated = int((count > 1).sum())
    if not repeated:
        return None

    def changes(name: str) -> bool:
        """Return whether the column differs between the rows of a node, as the date of birth does not."""
        value = as_category_text(batch.column(name)).dictionary_encode().indices.to_numpy()[place]
        return len(np.unique(np.stack([number, value]), axis=1).T) > len(count)

    likely = next((name for name in dates if changes(name)), None)
    nodes, have = ("1 node", "has") if repeated == 1 else (f"{repeated:,} nodes", "have")
    return (
        f"{nodes} {have} several rows in {source}, and the last one counts from the start, also for earlier queries; "
        f"give the column of their times with `node_time={likely or 'COLUMN'!r}`, or one row per node"
    )


def _read_table(table: Any, options: ReadOptions) -> tuple[str, pa.Table]:
    """Return the name of the source for messages, and all its columns."""
    plain = replace(options, src=None, dst=None, time=None, features=(), types=(), label=None, header=None)
    with open_source(table, plain) as source:
        if source.header is not None and not source.header.named:
            raise FileError(
                f"{source.name} does not name its columns; give a first line such as node,time,city",
                code="column-not-recognized",
            )
        every = Layout(types=source.names)  # each as it is written
        rows = source.read(every, BadRows(source.name, False)) if source.names else pa.table({})
        return source.name, rows


def _read_times(
    rows: pa.Table, name: str, source: str, dataset: "Dataset", options: ReadOptions
) -> np.ndarray:
    from dygmamba.data.storage.extension import check_time_scale

    times = read_query_times(
        rows[name].combine_chunks(), ColumnLocation(source, name), options, dataset.origin
    )
    if len(dataset.store):
        check_time_scale(dataset, source, times.is_unix_time, times.value)
    return times.value.astype(np.float64)


def _find_nodes(
    source: str, ids: NodeIds, wanted: pa.Array, column: str, dataset: "Dataset"
) -> tuple[np.ndarray, np.ndarray]:
    """Return row and node of each row whose node has events; a bipartite stream has two kinds of ids."""
    sides = ("src",) if ids.is_source is None else _choose_sides(column, dataset)
    node = [ids.to_node(wanted, side) for side in sides]
    if len(node) == 2 and bool(((node[0] >= 0) & (node[1] >= 0)).any()):
        both = wanted[int(((node[0] >= 0) & (node[1] >= 0)).argmax())].as_py()
        raise ConfigError(
            f"{source}: the id {both!r} is a source and a destination of '{dataset.name}'; name the column of nodes "
            f"{dataset.origin.src or 'src'!r} or {dataset.origin.dst or 'dst'!r}",
            code="ambiguous-node",
        )
    found = [np.flatnonzero(own >= 0) for own in node]
    place = np.concatenate(found)
    if not len(place):
        raise FileError(
            f"{source} has no row of a node of '{dataset.name}'; its column {column!r} must hold the ids of the events",
            code="unknown-nodes",
        )
    return place, np.concatenate([own[rows] for own, rows in zip(node, found, strict=True)])


def _choose_sides(column: str, dataset: "Dataset") -> "tuple[Side, ...]":
    for side in ("src", "dst"):
        if column == getattr(dataset.origin, side) or column.lower() in USUAL_NAMES[side]:
            return (side,)
    return ("src", "dst")
