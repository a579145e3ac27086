"""TGB's tables (Huang et al., NeurIPS 2023): a folder with NAME_edgelist.csv, and what is published beside it.

Nodes get the numbers that TGB gives them, for its files of negatives speak of these: in the order in which they appear,
or of tables in JODIE's layout the number that stands there, destinations behind the sources.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.data.folders import edges_of
from dygmamba.data.formats.csv import read_header, read_rows
from dygmamba.data.formats.jodie import NAMES
from dygmamba.data.formats.npz import CROWD, SPARSE
from dygmamba.data.formats.options import COLUMNS, ReadOptions, Roles
from dygmamba.data.formats.table import Columns, arranged, without_zeros
from dygmamba.data.formats.tgb_layouts import JODIES, LAYOUTS, LETTERS, airports, letters, text_columns
from dygmamba.data.ids import NodeIds
from dygmamba.data.origin import Origin
from dygmamba.errors import FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

FORMAT = "tgb"


def read(path: Path, options: ReadOptions) -> "Dataset":
    """The events of a folder, or of its table, named as TGB names it."""
    options.refuse("TGB", *COLUMNS, "bipartite", "header")
    table, name, version = edges_of(path)
    options = replace(options, any_id=True)
    if name in JODIES:
        columns, ids, origin = _as_jodie(table, options)
    elif name in LAYOUTS:
        columns, ids, origin = _as_listed(table, name, version, options)
    else:
        raise FileError(f"{table} is of no known set of TGB's; read it with `format='csv'`")
    return replace(arranged(table, columns, ids, replace(origin, format=FORMAT)), name=name)


def _as_jodie(table: Path, options: ReadOptions) -> tuple[Columns, NodeIds, Origin]:
    header = read_header(table, replace(options, header=True))
    if header.width < len(NAMES):
        raise FileError(
            f"{table} has {header.width} columns, a table of TGB's in this layout {len(NAMES)}; copy it again"
        )
    features = tuple(f"feature_{k}" for k in range(header.width - len(NAMES)))
    roles = Roles(*NAMES[:3], features, NAMES[3])
    header = replace(header, names=NAMES + features)
    columns, ids, origin = read_rows(table, FORMAT, header, roles, replace(options, bipartite=True))
    columns, ids = _as_numbered(table, columns, ids)
    columns = without_zeros(columns)
    return columns, ids, replace(origin, features=features[: columns.edge.shape[1]])


def _as_numbered(table: Path, columns: Columns, ids: NodeIds) -> tuple[Columns, NodeIds]:
    """The numbers in the table, those of destinations behind the highest source."""
    if ids.kind != "int":
        raise FileError(
            f"{table} names its nodes, which tables of TGB's in this layout number; copy it again"
        )
    number = ids.values.to_numpy()
    src, dst = number[columns.src], number[columns.dst]
    sources, others = int(src.max()) + 1, int(dst.max()) + 1
    if min(src.min(), dst.min()) < 0 or sources + others > max(SPARSE, CROWD * len(src)):
        raise FileError(
            f"{table} has {sources:,} sources for {len(src):,} events; number them from 0 without gaps"
        )
    every = np.concatenate([np.arange(sources), np.arange(others)])
    return replace(columns, src=src, dst=dst + sources), NodeIds(pa.array(every), sources)


def _as_listed(table: Path, name: str, version: str, options: ReadOptions) -> tuple[Columns, NodeIds, Origin]:
    layout = LAYOUTS[name]
    header = read_header(table, replace(options, header=True))
    needed = 1 + max((2, *layout.features, *layout.texts))
    if header.width < needed:
        raise FileError(f"{table} has {header.width} columns, TGB's {name} at least {needed}; copy it again")
    names = tuple(header.names[place] for place in layout.features)
    roles = Roles(header.names[1], header.names[2], header.names[0], names)
    how = replace(options, bipartite=layout.bipartite)
    columns, ids, origin = read_rows(table, FORMAT, header, roles, how)
    edge = layout.made(columns.edge)
    if layout.texts:
        edge = np.column_stack(
            [letters(text, LETTERS, k > 0) for k, text in enumerate(text_columns(table, layout.texts))]
        )
        _require_rows(table, edge, columns)
    columns = replace(columns, edge=np.ascontiguousarray(edge, np.float32))
    if not layout.bipartite:
        columns, ids = as_they_appear(columns, ids)
    known = table.with_name(f"{layout.nodes}{version}.csv")
    if layout.nodes and known.is_file():
        columns = replace(columns, node=airports(known, list(map(str, ids.values.to_pylist()))))
    return columns, ids, replace(origin, features=names or _letters(layout.texts, header.names))


def _require_rows(table: Path, edge: np.ndarray, columns: Columns) -> None:
    if len(edge) != len(columns.src):
        raise FileError(f"{table} has rows that cannot be read; copy it again")


def _letters(texts: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{names[place]}_{k}" for place in texts for k in range(LETTERS))


def as_they_appear(columns: Columns, ids: NodeIds) -> tuple[Columns, NodeIds]:
    """Nodes numbered by their first appearance, row by row, a source before its destination."""
    seen = np.column_stack([columns.src, columns.dst]).ravel()
    first = np.empty(len(ids), np.int64)
    first[seen[::-1]] = np.arange(len(seen) - 1, -1, -1)  # of several the last one stays: the earliest
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return replace(columns, src=number[columns.src], dst=number[columns.dst]), NodeIds(
        ids.values.take(pa.array(order))
    )
