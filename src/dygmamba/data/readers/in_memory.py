"""Tables in memory: data frames, Arrow tables, dicts of columns, PyG's TemporalData, NetworkX graphs, lists of rows.

pandas, polars, PyG and NetworkX are not imported; an object is recognized by the module and name of its class. A graph
or TemporalData that this package exported carries its node table, so that reading it again changes nothing; any other
one is read as a table of its edges.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.id_values import as_integers
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.readers.columnar import BATCH_ROWS, encode_id_columns
from dygmamba.data.readers.options import (
    METADATA_KEY,
    TABLE_FORMAT,
    ColumnRoles,
    ReadOptions,
    TableMetadata,
    assign_roles,
    read_table_metadata,
)
from dygmamba.data.readers.table import build_dataset, read_table

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

ROW_NAMES = ("src", "dst", "time")
ENDPOINTS = ("src", "dst")
SIDE_ATTRIBUTE = "bipartite"  # NetworkX's convention: 0 for sources, 1 for destinations
ID_ATTRIBUTE = "id"  # the node's own id, where sources and destinations share ids


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Ids and features of all nodes, also of those without an event."""

    ids: NodeIds
    features: np.ndarray


@dataclass(frozen=True, slots=True)
class InMemoryTable:
    """A table in memory, with columns converted to Arrow on demand.

    Attributes:
        source: what to call the table in messages.
        names: its columns; those of a matrix are NAME_0, NAME_1 and so on.
        select: converts some columns to an Arrow table.
        matrices: the columns of each matrix, by its name.
        features: the feature columns, if the layout fixes them.
        metadata: what the table says about itself.
        nodes: the node table, if the columns src and dst hold node numbers.
    """

    source: str
    names: tuple[str, ...]
    select: Callable[[list[str]], pa.Table]
    matrices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    metadata: TableMetadata = field(default_factory=TableMetadata)
    nodes: NodeTable | None = None

    def drop_mixed_candidates(self, roles: ColumnRoles) -> ColumnRoles:
        """Leave out candidates whose values have several types: they were not asked for."""
        mixed = {}
        for name in roles.candidates:
            try:
                self.select([name])
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                mixed[name] = "has values of several types"
        kept = tuple(name for name in roles.candidates if name not in mixed)
        return replace(roles, candidates=kept, unused={**roles.unused, **mixed})

    def to_arrow(self, columns: Iterable[str]) -> pa.Table:
        """Convert these columns; raise FileError naming a column whose values have several types."""
        parts: dict[str, pa.ChunkedArray] = {}
        for name in columns:
            try:
                parts[name] = self.select([name]).column(0)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                reason = str(error).splitlines()[0]
                raise FileError(
                    f"{self.source}: column {name!r} has values of several types ({reason}); give one type",
                    code="mixed-column-types",
                ) from error
        sizes = {name: len(part) for name, part in parts.items()}
        if len(set(sizes.values())) > 1:
            raise FileError(
                f"{self.source} has columns of different lengths, {sizes}; give one value per event",
                code="column-lengths-differ",
            )
        return pa.table(parts)


def is_in_memory(source: Any) -> bool:
    """Return whether the source is an object rather than the path of a file."""
    return not isinstance(source, str | Path)


def read_in_memory(source: Any, options: ReadOptions, bipartite: bool | None = None) -> "Dataset":
    """Read the events of a table in memory, by the rules of a Parquet file.

    `bipartite` is the caller's setting; None means that the table's metadata decides.
    """
    wrapped = wrap_table(source)
    options = wrapped.metadata.fill_options(options, (*wrapped.names, *wrapped.matrices), bipartite)
    chosen = options.features if options.features or options.types else wrapped.features
    features = tuple(column for name in chosen for column in wrapped.matrices.get(name, (name,)))
    options = replace(options, features=features)
    roles = wrapped.drop_mixed_candidates(assign_roles(wrapped.source, wrapped.names, options))
    table = wrapped.to_arrow(roles.columns)
    rows = table.to_batches(max_chunksize=BATCH_ROWS)
    batches = encode_id_columns(wrapped.source, table.schema, rows, roles)
    dataset = build_dataset(
        wrapped.source, *read_table(wrapped.source, TABLE_FORMAT, batches, roles, options)
    )
    return dataset if wrapped.nodes is None else restore_nodes(dataset, wrapped.nodes)


def wrap_table(source: Any) -> InMemoryTable:
    """Wrap an object of any supported type; raise ConfigError for others."""
    if has_class(source, "pandas", "DataFrame"):
        names = tuple(map(str, source.columns))
        metadata = read_table_metadata(source.attrs)
        return InMemoryTable(
            "the pandas DataFrame", names, lambda some: _from_pandas(source, names, some), metadata=metadata
        )
    if has_class(source, "polars", "LazyFrame"):
        source = source.collect()
    if has_class(source, "polars", "DataFrame"):
        names = tuple(source.columns)
        return InMemoryTable("the polars DataFrame", names, lambda some: source.select(some).to_arrow())
    if has_class(source, "torch_geometric", "TemporalData"):
        columns = {name: source[name] for name in source.keys()}  # noqa: SIM118 (no dict)
        wrapped = _wrap_columns("the TemporalData", columns)
        metadata = describe_temporal_data(source, (*wrapped.names, *wrapped.matrices))
        return replace(wrapped, metadata=metadata, nodes=read_temporal_data_nodes(source))
    if has_class(source, "networkx", "Graph"):
        columns, metadata, nodes = read_graph_columns(source)
        return replace(_wrap_columns("the graph", columns), metadata=metadata, nodes=nodes)
    if isinstance(source, Mapping):
        return _wrap_columns("the table", source)
    if isinstance(source, pa.Table | pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        table = source if isinstance(source, pa.Table) else pa.table(source)
        metadata = read_table_metadata(table.schema.metadata)
        return InMemoryTable("the Arrow table", tuple(table.column_names), table.select, metadata=metadata)
    if isinstance(source, Sequence) and not isinstance(source, str) and all(map(_is_row, source)):
        return _wrap_rows(source)
    raise ConfigError(
        f"cannot read a table from {type(source).__name__}; give a path, a pandas or polars DataFrame, an Arrow table, "
        "a dict of columns, a TemporalData, a NetworkX graph, or a list of (src, dst, time)",
        code="unsupported-table",
    )


def has_class(source: Any, package: str, name: str) -> bool:
    """Return whether the object's class is, or derives from, the class of that name in that package."""
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(source).__mro__
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) >= 2


def _wrap_rows(source: Sequence[Any]) -> InMemoryTable:
    """Wrap rows of src, dst, time and, after them, features."""
    widths = {len(row) for row in source} or {len(ROW_NAMES)}
    if len(widths) > 1:
        raise FileError(
            f"the list has rows of {min(widths)} to {max(widths)} values; give rows of equal length",
            code="row-lengths-differ",
        )
    features = tuple(f"feature_{k}" for k in range(max(widths) - len(ROW_NAMES)))
    names = (*ROW_NAMES, *features)[: max(widths)]
    columns = zip(*source, strict=True) if source else ([] for _ in names)
    return replace(_wrap_columns("the list", dict(zip(names, columns, strict=True))), features=features)


def _from_pandas(frame: Any, names: tuple[str, ...], some: list[str]) -> pa.Table:
    chosen = frame.iloc[:, [names.index(name) for name in some]].set_axis(some, axis=1)
    return pa.Table.from_pandas(chosen, preserve_index=False)


def _wrap_columns(source: str, given: Mapping[Any, Any]) -> InMemoryTable:
    """Wrap columns by name; a matrix becomes the columns NAME_0, NAME_1 and so on."""
    columns: dict[str, Any] = {}
    matrices: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        array = _to_host(values)
        if isinstance(array, np.ndarray) and array.ndim == 2:
            matrices[str(name)] = tuple(f"{name}_{k}" for k in range(array.shape[1]))
            columns |= dict(zip(matrices[str(name)], array.T, strict=True))
        else:
            columns[str(name)] = array

    def select(some: list[str]) -> pa.Table:
        return pa.table({name: _to_arrow(columns[name]) for name in some})

    return InMemoryTable(source, tuple(columns), select, matrices)


def _to_host(values: Any) -> Any:
    """Turn a tensor into a numpy array; anything else stays."""
    return values.detach().cpu().numpy() if has_class(values, "torch", "Tensor") else values


def _to_arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, np.ndarray):
        return pa.array(np.ascontiguousarray(values), from_pandas=True)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = values if has_class(values, "pandas", "Series") else list(values)
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:  # integers beyond 64 bits
        return pa.array([None if value is None else str(value) for value in values])


def describe_temporal_data(source: Any, names: Sequence[str]) -> TableMetadata:
    """Describe a TemporalData: messages `msg` are features, `y` is the label.

    If every source has a lower number than every destination, the graph is bipartite.
    """
    metadata = read_table_metadata(vars(source))
    if METADATA_KEY in vars(source):
        return replace(metadata, features=tuple(n for n in ("msg",) if n in names), label="y")
    is_bipartite = bool(len(source.src)) and bool(source.src.max() < source.dst.min())
    return TableMetadata(("msg",) if "msg" in names else (), "y", is_bipartite)


def read_temporal_data_nodes(source: Any) -> NodeTable | None:
    """Return the node table of a TemporalData that this package exported; None for any other."""
    ids = vars(source).get("ids")
    if not isinstance(ids, NodeIds):
        return None
    features = vars(source).get("x")
    return NodeTable(ids, _empty_features(ids) if features is None else features.detach().cpu().numpy())


def read_graph_columns(graph: Any) -> tuple[dict[str, Any], TableMetadata, NodeTable | None]:
    """Turn the edges of a NetworkX graph into columns, one per attribute; None where an edge lacks it."""
    if METADATA_KEY in graph.graph:
        return _read_exported_graph(graph)
    edges = [(u, v, attributes) for u, v, attributes in graph.edges(data=True)]
    side = {node: attributes.get(SIDE_ATTRIBUTE) for node, attributes in graph.nodes(data=True)}
    is_bipartite = bool(edges) and all({side[u], side[v]} == {0, 1} for u, v, _ in edges)
    if is_bipartite and not graph.is_directed():  # edges have no direction, but their nodes have sides
        edges = [(u, v, attributes) if side[u] == 0 else (v, u, attributes) for u, v, attributes in edges]
    is_bipartite = is_bipartite and all(side[u] == 0 for u, _, _ in edges)
    return _build_edge_columns(edges), TableMetadata(bipartite=is_bipartite), None


def _read_exported_graph(graph: Any) -> tuple[dict[str, Any], TableMetadata, NodeTable]:
    """Read a graph that this package exported: edge keys are event numbers, the order of nodes their numbers."""
    metadata = read_table_metadata(graph.graph)
    number = {node: position for position, node in enumerate(graph)}
    edges = [
        (key, number[u], number[v], attributes) for u, v, key, attributes in graph.edges(keys=True, data=True)
    ]
    edges.sort(key=lambda edge: edge[0] if isinstance(edge[0], int) else len(edges))
    nodes = list(graph.nodes(data=True))
    names = [attributes.get(ID_ATTRIBUTE, node) for node, attributes in nodes]
    is_source = (
        [attributes.get(SIDE_ATTRIBUTE, 0) == 0 for _, attributes in nodes] if metadata.bipartite else None
    )
    features = [attributes.get("x", ()) for _, attributes in nodes]
    ids = _build_node_ids(names, is_source)
    table = np.array(features, np.float32).reshape(len(ids), -1) if len(ids) else _empty_features(ids)
    return _build_edge_columns([edge[1:] for edge in edges]), metadata, NodeTable(ids, table)


def _build_edge_columns(edges: list[tuple[Any, Any, dict[Any, Any]]]) -> dict[str, Any]:
    names = dict.fromkeys(str(name) for _, _, attributes in edges for name in attributes)
    endpoints = {"src": [edge[0] for edge in edges], "dst": [edge[1] for edge in edges]}
    columns = {name: [edge[2].get(name) for edge in edges] for name in names if name not in ENDPOINTS}
    return columns | endpoints


def _build_node_ids(names: list[Any], is_source: list[bool] | None) -> NodeIds:
    whole = all(isinstance(name, int) and not isinstance(name, bool) for name in names)
    texts = pa.array(map(str, names), pa.large_string())
    integers = as_integers(texts) if whole else None
    values = texts if integers is None else integers
    if is_source is None:
        return NodeIds(values)
    return NodeIds(values, sum(is_source), pa.array(is_source, pa.bool_()))


def _empty_features(ids: NodeIds) -> np.ndarray:
    return np.zeros((len(ids), 0), np.float32)


def restore_nodes(dataset: "Dataset", nodes: NodeTable) -> "Dataset":
    """Replace ids that are node numbers by the ids and features of the node table."""
    import torch

    from dygmamba.data.storage.dataset import Dataset

    number = dataset.ids.values.to_numpy(zero_copy_only=False)
    if len(number) and not 0 <= number.min() <= number.max() < len(nodes.ids):
        raise FileError(
            f"the events use nodes {number.min()} to {number.max()}, but only {len(nodes.ids):,} nodes have an id; "
            "delete the attribute `ids`, or give one id per node",
            code="node-without-id",
        )
    src, dst = (torch.from_numpy(number[column.numpy()]) for column in (dataset.store.src, dataset.store.dst))
    node = torch.from_numpy(np.ascontiguousarray(nodes.features, np.float32))
    store = replace(
        dataset.store,
        src=src,
        dst=dst,
        features=replace(dataset.store.features, node=node),
        num_nodes=len(nodes.ids),
        bipartite=nodes.ids.sources is not None,
    )
    return Dataset.from_events(dataset.name, store, nodes.ids, dataset.origin)
