"""Tables that somebody holds: data frames, Arrow tables, columns by name, PyG's TemporalData, graphs, rows.

None of those packages is imported here; an object is known by where its class comes from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.arrow import ROWS, with_id_columns
from dygmamba.data.formats.graphs import Nodes, graph_columns, is_a, owned, pyg_nodes, pyg_told
from dygmamba.data.formats.options import ReadOptions, assign_roles
from dygmamba.data.formats.table import arranged, read_table
from dygmamba.data.formats.told import Told, told_by
from dygmamba.errors import ConfigError, FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

FORMAT = "table"
ROW_NAMES = ("src", "dst", "time")


@dataclass(frozen=True, slots=True)
class Held:
    """A table in memory: what to call it, its columns' names, and the Arrow table of some of them.

    `matrices` are the names that stand for several columns each, `features` the columns that can be nothing else.
    `told` is what the table says of itself; where it numbers its nodes, `nodes` are whose they are.
    """

    where: str
    names: tuple[str, ...]
    select: Callable[[list[str]], pa.Table]
    matrices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    told: Told = field(default_factory=Told)
    nodes: Nodes | None = None

    def table(self, columns: Iterable[str]) -> pa.Table:
        """These columns; one whose values are of several kinds is an error with its name."""
        parts: dict[str, pa.ChunkedArray] = {}
        for name in columns:
            try:
                parts[name] = self.select([name]).column(0)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                why = str(error).splitlines()[0]
                raise FileError(
                    f"{self.where}: column {name!r} is no column of one kind ({why}); make its values alike"
                ) from error
        sizes = {name: len(part) for name, part in parts.items()}
        if len(set(sizes.values())) > 1:
            raise FileError(f"{self.where} has columns of several lengths, {sizes}; give one value per event")
        return pa.table(parts)


def is_held(source: Any) -> bool:
    """Whether the source is an object rather than the path of a file."""
    return not isinstance(source, str | Path)


def read_held(source: Any, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """The events of a table in memory, by the rules of a Parquet file; `bipartite` None: as TemporalData shows it."""
    held = hold(source)
    options = held.told.fill(options, (*held.names, *held.matrices), bipartite)
    chosen = options.features or held.features
    features = tuple(column for name in chosen for column in held.matrices.get(name, (name,)))
    options = replace(options, features=features)
    roles = assign_roles(held.where, held.names, options)
    table = held.table(roles.columns)
    batches = with_id_columns(held.where, table.schema, table.to_batches(max_chunksize=ROWS), roles)
    dataset = arranged(held.where, *read_table(held.where, FORMAT, batches, roles, options))
    return dataset if held.nodes is None else owned(dataset, held.nodes)


def hold(source: Any) -> Held:
    """What the object holds, whatever it is."""
    if is_a(source, "pandas", "DataFrame"):
        names = tuple(map(str, source.columns))
        told = told_by(source.attrs)
        return Held("the pandas DataFrame", names, lambda some: _from_pandas(source, names, some), told=told)
    if is_a(source, "polars", "LazyFrame"):
        source = source.collect()
    if is_a(source, "polars", "DataFrame"):
        names = tuple(source.columns)
        return Held("the polars DataFrame", names, lambda some: source.select(some).to_arrow())
    if is_a(source, "torch_geometric", "TemporalData"):
        columns = {name: source[name] for name in source.keys()}  # noqa: SIM118 (no dict)
        held = _columns("the TemporalData", columns)
        return replace(held, told=pyg_told(source, (*held.names, *held.matrices)), nodes=pyg_nodes(source))
    if is_a(source, "networkx", "Graph"):
        columns, told, nodes = graph_columns(source)
        return replace(_columns("the graph", columns), told=told, nodes=nodes)
    if isinstance(source, Mapping):
        return _columns("the table", source)
    if isinstance(source, pa.Table | pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        table = source if isinstance(source, pa.Table) else pa.table(source)
        told = told_by(table.schema.metadata)
        return Held("the Arrow table", tuple(table.column_names), table.select, told=told)
    if isinstance(source, Sequence) and not isinstance(source, str) and all(map(_is_row, source)):
        return _rows(source)
    raise ConfigError(
        f"cannot read a table from {type(source).__name__}; give a path, a pandas or polars DataFrame, an Arrow table, "
        "a dict of columns, a TemporalData, a NetworkX graph, or a list of (src, dst, time)"
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) >= 2


def _rows(source: Sequence[Any]) -> Held:
    """Rows of src, dst, time and, from there on, features."""
    widths = {len(row) for row in source} or {len(ROW_NAMES)}
    if len(widths) > 1:
        raise FileError(f"the list has rows of {min(widths)} to {max(widths)} values; give all of them alike")
    features = tuple(f"feature_{k}" for k in range(max(widths) - len(ROW_NAMES)))
    names = (*ROW_NAMES, *features)[: max(widths)]
    columns = zip(*source, strict=True) if source else ([] for _ in names)
    return replace(_columns("the list", dict(zip(names, columns, strict=True))), features=features)


def _from_pandas(frame: Any, names: tuple[str, ...], some: list[str]) -> pa.Table:
    chosen = frame.iloc[:, [names.index(name) for name in some]].set_axis(some, axis=1)
    return pa.Table.from_pandas(chosen, preserve_index=False)


def _columns(where: str, given: Mapping[Any, Any]) -> Held:
    """Columns by name; a matrix is a column for each of its own, NAME_0, NAME_1 and so on."""
    found: dict[str, Any] = {}
    matrices: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        array = _host(values)
        if isinstance(array, np.ndarray) and array.ndim == 2:
            matrices[str(name)] = tuple(f"{name}_{k}" for k in range(array.shape[1]))
            found |= dict(zip(matrices[str(name)], array.T, strict=True))
        else:
            found[str(name)] = array

    def select(some: list[str]) -> pa.Table:
        return pa.table({name: _array(found[name]) for name in some})

    return Held(where, tuple(found), select, matrices)


def _host(values: Any) -> Any:
    """A tensor as a numpy array; all else as it is."""
    return values.detach().cpu().numpy() if is_a(values, "torch", "Tensor") else values


def _array(values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, np.ndarray):
        return pa.array(np.ascontiguousarray(values), from_pandas=True)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    return pa.array(values if is_a(values, "pandas", "Series") else list(values), from_pandas=True)
