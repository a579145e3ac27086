"""Tables in memory: data frames, Arrow tables, dicts of columns, PyG's TemporalData, NetworkX graphs, lists of rows.

pandas, polars, PyG and NetworkX are not imported; an object is recognized by the module and name of its class. A graph
is read as a table of its edges.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers.bad_rows import BadRows
from dygmamba.data.readers.columnar import BATCH_ROWS
from dygmamba.data.readers.options import ROLES, TABLE_FORMAT, Layout, ReadOptions, parse_metadata
from dygmamba.data.readers.source import Source

ENDPOINTS = ("src", "dst")
SIDE_ATTRIBUTE = "bipartite"  # NetworkX's convention: 0 for sources, 1 for destinations


def is_in_memory(source: Any) -> bool:
    """Return whether the source is an object rather than the path of a file."""
    return not isinstance(source, str | Path)


def open_in_memory(source: Any) -> Source:
    """Open an object of a supported type, which is read like a Parquet file; raise ConfigError for others."""
    if has_class(source, "pandas", "DataFrame"):
        names = tuple(map(str, source.columns))

        def convert(name: str) -> pa.ChunkedArray:
            frame = source.iloc[:, names.index(name)].rename(name).to_frame()
            return pa.Table.from_pandas(frame, preserve_index=False).column(0)

        return _build_source("the pandas DataFrame", names, convert, hints=parse_metadata(source.attrs))
    if has_class(source, "polars", "LazyFrame"):
        source = source.collect()
    if has_class(source, "polars", "DataFrame"):
        names = tuple(source.columns)
        return _build_source(
            "the polars DataFrame", names, lambda name: source.select(name).to_arrow().column(0)
        )
    if has_class(source, "torch_geometric", "TemporalData"):
        columns = {name: source[name] for name in source.keys()}  # noqa: SIM118 (no dict)
        # messages are features; the graph is bipartite if every source has a lower number than every destination
        is_bipartite = bool(len(source.src)) and bool(source.src.max() < source.dst.min())
        features = ("msg",) if "msg" in columns else ()
        hints = Layout(features=features, label="y", bipartite=is_bipartite)
        return _open_columns("the TemporalData", columns, hints=hints)
    if has_class(source, "networkx", "Graph"):
        columns, hints = _read_graph_columns(source)
        return _open_columns("the graph", columns, hints=hints)
    if isinstance(source, Mapping):
        return _open_columns("the table", source)
    if isinstance(source, pa.Table | pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        table = source if isinstance(source, pa.Table) else pa.table(source)
        hints = parse_metadata(table.schema.metadata)
        return _build_source("the Arrow table", tuple(table.column_names), table.column, hints=hints)
    is_list = isinstance(source, Sequence) and not isinstance(source, str)
    if is_list and all(isinstance(row, tuple | list) and len(row) >= 2 for row in source):
        return _open_rows(source)
    raise ConfigError(
        f"cannot read a table from {type(source).__name__}; give a path, a pandas or polars DataFrame, an Arrow table, "
        "a dict of columns, a TemporalData, a NetworkX graph, or a list of (src, dst, time)",
        code="unsupported-table",
    )


def drop_mixed_candidates(source: Source, layout: ReadOptions) -> ReadOptions:
    """Leave out candidates whose values have several types: they were not asked for."""
    mixed = {}
    for name in layout.candidates:
        try:
            source.iterate(Layout(types=(name,)), BadRows(source.name, skip=True))
        except FileError:
            mixed[name] = "has values of several types"
    kept = tuple(name for name in layout.candidates if name not in mixed)
    return replace(layout, candidates=kept, unused={**layout.unused, **mixed})


def _build_source(
    name: str, names: tuple[str, ...], convert: Callable[[str], pa.Array | pa.ChunkedArray], **more: Any
) -> Source:
    """Build the source of a table whose columns are converted to Arrow when they are read, each once."""
    converted: dict[str, pa.ChunkedArray] = {}

    def get_column(column: str) -> pa.ChunkedArray:
        try:
            if column not in converted:
                converted[column] = pa.table({column: convert(column)}).column(0)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise FileError(
                f"{name}: column {column!r} has values of several types ({reason}); give one type",
                code="mixed-column-types",
            ) from error
        return converted[column]

    def iterate(layout: Layout, _: BadRows) -> Iterator[pa.RecordBatch]:
        columns = {column: get_column(column) for column in layout.needed}
        sizes = {column: len(values) for column, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise FileError(
                f"{name} has columns of different lengths, {sizes}; give one value per event",
                code="column-lengths-differ",
            )
        return iter(pa.table(columns).to_batches(max_chunksize=BATCH_ROWS))

    return Source(TABLE_FORMAT, names, iterate, name, **more)


def has_class(source: Any, package: str, name: str) -> bool:
    """Return whether the object's class is, or derives from, the class of that name in that package."""
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(source).__mro__
    )


def _open_rows(source: Sequence[Any]) -> Source:
    """Open rows of src, dst, time and, after them, features."""
    widths = {len(row) for row in source} or {len(ROLES)}
    if len(widths) > 1:
        raise FileError(
            f"the list has rows of {min(widths)} to {max(widths)} values; give rows of equal length",
            code="row-lengths-differ",
        )
    features = tuple(f"feature_{k}" for k in range(max(widths) - len(ROLES)))
    names = (*ROLES, *features)[: max(widths)]
    columns = zip(*source, strict=True) if source else ([] for _ in names)
    return _open_columns("the list", dict(zip(names, columns, strict=True)), features=features)


def _open_columns(source: str, given: Mapping[Any, Any], **more: Any) -> Source:
    """Open columns by name; a matrix becomes the columns NAME_0, NAME_1 and so on."""
    columns: dict[str, Any] = {}
    matrices: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        array = values.detach().cpu().numpy() if has_class(values, "torch", "Tensor") else values
        if isinstance(array, np.ndarray) and array.ndim == 2:
            matrices[str(name)] = tuple(f"{name}_{k}" for k in range(array.shape[1]))
            columns |= dict(zip(matrices[str(name)], array.T, strict=True))
        else:
            columns[str(name)] = array
    return _build_source(
        source, tuple(columns), lambda name: _to_arrow(columns[name]), matrices=matrices, **more
    )


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


def _read_graph_columns(graph: Any) -> tuple[dict[str, Any], Layout]:
    """Turn the edges of a NetworkX graph into columns, one per attribute; None where an edge lacks it."""
    edges = [(u, v, attributes) for u, v, attributes in graph.edges(data=True)]
    side = {node: attributes.get(SIDE_ATTRIBUTE) for node, attributes in graph.nodes(data=True)}
    is_bipartite = bool(edges) and all({side[u], side[v]} == {0, 1} for u, v, _ in edges)
    if is_bipartite and not graph.is_directed():  # edges have no direction, but their nodes have sides
        edges = [(u, v, attributes) if side[u] == 0 else (v, u, attributes) for u, v, attributes in edges]
    is_bipartite = is_bipartite and all(side[u] == 0 for u, _, _ in edges)
    names = dict.fromkeys(str(name) for _, _, attributes in edges for name in attributes)
    columns = {name: [edge[2].get(name) for edge in edges] for name in names}
    columns |= {name: [edge[k] for edge in edges] for k, name in enumerate(ENDPOINTS)}
    return columns, Layout(bipartite=is_bipartite)
