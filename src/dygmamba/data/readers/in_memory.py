"""Graphs that somebody holds, as columns: PyG's TemporalData and NetworkX; none of the two is imported here.

What this package made of a dataset carries whose nodes they are, so that coming back changes nothing; any other graph
is read as a table of its edges.

Tables that somebody holds: data frames, Arrow tables, columns by name, PyG's TemporalData, graphs, rows.

None of those packages is imported here; an object is known by where its class comes from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.readers.columnar import BATCH_ROWS, encode_id_columns
from dygmamba.data.readers.options import (
    METADATA_KEY,
    ReadOptions,
    TableMetadata,
    assign_roles,
    read_table_metadata,
)
from dygmamba.data.readers.table import build_dataset, read_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

ENDPOINTS = ("src", "dst")
SIDE_ATTRIBUTE, ID_ATTRIBUTE = (
    "bipartite",
    "id",
)  # what NetworkX calls the side of a node; its own id, where two sides share one


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Whose node each number is, and its features; nodes without an event among them."""

    ids: NodeIds
    features: np.ndarray


def has_class(source: Any, package: str, name: str) -> bool:
    """Whether the object's class is, or descends from, that package's class of that name."""
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(source).__mro__
    )


def describe_temporal_data(source: Any, names: Sequence[str]) -> TableMetadata:
    """TemporalData's own names: the messages `msg` as features, `y` as label.

    Its nodes are numbered; where every source comes before every destination there are two sides.
    """
    told = read_table_metadata(vars(source))
    if METADATA_KEY in vars(source):
        return replace(told, features=tuple(n for n in ("msg",) if n in names), label="y")
    sides = bool(len(source.src)) and bool(source.src.max() < source.dst.min())
    return TableMetadata(("msg",) if "msg" in names else (), "y", sides)


def read_temporal_data_nodes(source: Any) -> NodeTable | None:
    """Whose nodes they are; None of data that this package did not make."""
    ids = vars(source).get("ids")
    if not isinstance(ids, NodeIds):
        return None
    features = vars(source).get("x")
    return NodeTable(ids, _empty_features(ids) if features is None else features.detach().cpu().numpy())


def read_graph_columns(graph: Any) -> tuple[dict[str, Any], TableMetadata, NodeTable | None]:
    """The edges as columns, one per attribute; None where an edge lacks one."""
    if METADATA_KEY in graph.graph:
        return _read_exported_graph(graph)
    edges = [(u, v, facts) for u, v, facts in graph.edges(data=True)]
    side = {node: facts.get(SIDE_ATTRIBUTE) for node, facts in graph.nodes(data=True)}
    sides = bool(edges) and all({side[u], side[v]} == {0, 1} for u, v, _ in edges)
    if sides and not graph.is_directed():  # an edge has no direction, but its ends have sides
        edges = [(u, v, facts) if side[u] == 0 else (v, u, facts) for u, v, facts in edges]
    sides = sides and all(side[u] == 0 for u, _, _ in edges)
    return _build_edge_columns(edges), TableMetadata(bipartite=sides), None


def _read_exported_graph(graph: Any) -> tuple[dict[str, Any], TableMetadata, NodeTable]:
    """A graph that this package made: edges in the order of their events, nodes by the order they stand in."""
    told = read_table_metadata(graph.graph)
    place = {node: number for number, node in enumerate(graph)}
    edges = [(key, place[u], place[v], facts) for u, v, key, facts in graph.edges(keys=True, data=True)]
    edges.sort(key=lambda edge: edge[0] if isinstance(edge[0], int) else len(edges))
    names = [facts.get(ID_ATTRIBUTE, node) for node, facts in graph.nodes(data=True)]
    is_source = (
        [facts.get(SIDE_ATTRIBUTE, 0) == 0 for _, facts in graph.nodes(data=True)] if told.bipartite else None
    )
    features = [facts.get("x", ()) for _, facts in graph.nodes(data=True)]
    ids = _build_node_ids(names, is_source)
    table = np.array(features, np.float32).reshape(len(ids), -1) if len(ids) else _empty_features(ids)
    return _build_edge_columns([edge[1:] for edge in edges]), told, NodeTable(ids, table)


def _build_edge_columns(edges: list[tuple[Any, Any, dict[Any, Any]]]) -> dict[str, Any]:
    names = dict.fromkeys(str(name) for _, _, facts in edges for name in facts)
    ends = {"src": [edge[0] for edge in edges], "dst": [edge[1] for edge in edges]}
    return {name: [edge[2].get(name) for edge in edges] for name in names if name not in ENDPOINTS} | ends


def _build_node_ids(names: list[Any], is_source: list[bool] | None) -> NodeIds:
    whole = all(isinstance(name, int) and not isinstance(name, bool) for name in names)
    values = pa.array(names, pa.int64()) if whole else pa.array(map(str, names), pa.large_string())
    if is_source is None:
        return NodeIds(values)
    return NodeIds(values, sum(is_source), pa.array(is_source, pa.bool_()))


def _empty_features(ids: NodeIds) -> np.ndarray:
    return np.zeros((len(ids), 0), np.float32)


def restore_nodes(dataset: "Dataset", nodes: NodeTable) -> "Dataset":
    """A dataset whose ids are numbers of nodes, with the nodes in their place: whose they are, and their features."""
    import torch

    from dygmamba.data.events.event_store import FeatureTable
    from dygmamba.data.storage.dataset import Dataset

    number = dataset.ids.values.to_numpy(zero_copy_only=False)
    if len(number) and not 0 <= number.min() <= number.max() < len(nodes.ids):
        raise FileError(
            f"the events are of nodes {number.min()} to {number.max()}, but {len(nodes.ids):,} have an id; "
            "delete its `ids`, or give it one for each node"
        )
    src, dst = (torch.from_numpy(number[column.numpy()]) for column in (dataset.store.src, dataset.store.dst))
    features = FeatureTable(
        torch.from_numpy(np.ascontiguousarray(nodes.features, np.float32)), dataset.store.features.edge
    )
    store = replace(
        dataset.store,
        src=src,
        dst=dst,
        features=features,
        num_nodes=len(nodes.ids),
        bipartite=nodes.ids.sources is not None,
    )
    return Dataset.of(dataset.name, store, nodes.ids, dataset.origin)


TABLE_FORMAT = "table"
ROW_NAMES = ("src", "dst", "time")


@dataclass(frozen=True, slots=True)
class InMemoryTable:
    """A table in memory: what to call it, its columns' names, and the Arrow table of some of them.

    `matrices` are the names that stand for several columns each, `features` the columns that can be nothing else.
    `told` is what the table says of itself; where it numbers its nodes, `nodes` are whose they are.
    """

    where: str
    names: tuple[str, ...]
    select: Callable[[list[str]], pa.Table]
    matrices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    told: TableMetadata = field(default_factory=TableMetadata)
    nodes: NodeTable | None = None

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


def is_in_memory(source: Any) -> bool:
    """Whether the source is an object rather than the path of a file."""
    return not isinstance(source, str | Path)


def read_in_memory(source: Any, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """The events of a table in memory, by the rules of a Parquet file; `bipartite` None: as TemporalData shows it."""
    held = wrap_table(source)
    options = held.told.fill(options, (*held.names, *held.matrices), bipartite)
    chosen = options.features or held.features
    features = tuple(column for name in chosen for column in held.matrices.get(name, (name,)))
    options = replace(options, features=features)
    roles = assign_roles(held.where, held.names, options)
    table = held.table(roles.columns)
    batches = encode_id_columns(held.where, table.schema, table.to_batches(max_chunksize=BATCH_ROWS), roles)
    dataset = build_dataset(held.where, *read_table(held.where, TABLE_FORMAT, batches, roles, options))
    return dataset if held.nodes is None else restore_nodes(dataset, held.nodes)


def wrap_table(source: Any) -> InMemoryTable:
    """What the object holds, whatever it is."""
    if has_class(source, "pandas", "DataFrame"):
        names = tuple(map(str, source.columns))
        told = read_table_metadata(source.attrs)
        return InMemoryTable(
            "the pandas DataFrame", names, lambda some: _from_pandas(source, names, some), told=told
        )
    if has_class(source, "polars", "LazyFrame"):
        source = source.collect()
    if has_class(source, "polars", "DataFrame"):
        names = tuple(source.columns)
        return InMemoryTable("the polars DataFrame", names, lambda some: source.select(some).to_arrow())
    if has_class(source, "torch_geometric", "TemporalData"):
        columns = {name: source[name] for name in source.keys()}  # noqa: SIM118 (no dict)
        held = _wrap_columns("the TemporalData", columns)
        return replace(
            held,
            told=describe_temporal_data(source, (*held.names, *held.matrices)),
            nodes=read_temporal_data_nodes(source),
        )
    if has_class(source, "networkx", "Graph"):
        columns, told, nodes = read_graph_columns(source)
        return replace(_wrap_columns("the graph", columns), told=told, nodes=nodes)
    if isinstance(source, Mapping):
        return _wrap_columns("the table", source)
    if isinstance(source, pa.Table | pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        table = source if isinstance(source, pa.Table) else pa.table(source)
        told = read_table_metadata(table.schema.metadata)
        return InMemoryTable("the Arrow table", tuple(table.column_names), table.select, told=told)
    if isinstance(source, Sequence) and not isinstance(source, str) and all(map(_is_row, source)):
        return _wrap_rows(source)
    raise ConfigError(
        f"cannot read a table from {type(source).__name__}; give a path, a pandas or polars DataFrame, an Arrow table, "
        "a dict of columns, a TemporalData, a NetworkX graph, or a list of (src, dst, time)"
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) >= 2


def _wrap_rows(source: Sequence[Any]) -> InMemoryTable:
    """Rows of src, dst, time and, from there on, features."""
    widths = {len(row) for row in source} or {len(ROW_NAMES)}
    if len(widths) > 1:
        raise FileError(f"the list has rows of {min(widths)} to {max(widths)} values; give all of them alike")
    features = tuple(f"feature_{k}" for k in range(max(widths) - len(ROW_NAMES)))
    names = (*ROW_NAMES, *features)[: max(widths)]
    columns = zip(*source, strict=True) if source else ([] for _ in names)
    return replace(_wrap_columns("the list", dict(zip(names, columns, strict=True))), features=features)


def _from_pandas(frame: Any, names: tuple[str, ...], some: list[str]) -> pa.Table:
    chosen = frame.iloc[:, [names.index(name) for name in some]].set_axis(some, axis=1)
    return pa.Table.from_pandas(chosen, preserve_index=False)


def _wrap_columns(where: str, given: Mapping[Any, Any]) -> InMemoryTable:
    """Columns by name; a matrix is a column for each of its own, NAME_0, NAME_1 and so on."""
    found: dict[str, Any] = {}
    matrices: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        array = _to_host(values)
        if isinstance(array, np.ndarray) and array.ndim == 2:
            matrices[str(name)] = tuple(f"{name}_{k}" for k in range(array.shape[1]))
            found |= dict(zip(matrices[str(name)], array.T, strict=True))
        else:
            found[str(name)] = array

    def select(some: list[str]) -> pa.Table:
        return pa.table({name: _to_arrow(found[name]) for name in some})

    return InMemoryTable(where, tuple(found), select, matrices)


def _to_host(values: Any) -> Any:
    """A tensor as a numpy array; all else as it is."""
    return values.detach().cpu().numpy() if has_class(values, "torch", "Tensor") else values


def _to_arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, np.ndarray):
        return pa.array(np.ascontiguousarray(values), from_pandas=True)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    return pa.array(values if has_class(values, "pandas", "Series") else list(values), from_pandas=True)
