"""TGB-Seq's tables (Yi et al., ICLR 2025): NAME.csv of src, dst, time and split, features as arrays beside it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dygmamba.data.folders import splits_of
from dygmamba.data.formats.csv import read_header, read_rows
from dygmamba.data.formats.npy import BROKEN, read_shape, reason
from dygmamba.data.formats.npz import identity_ids
from dygmamba.data.formats.options import COLUMNS, ReadOptions, Roles
from dygmamba.data.formats.table import Columns, arranged
from dygmamba.data.origin import Origin
from dygmamba.errors import FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

FORMAT = "tgb-seq"
PERIOD = "split"


def read(path: Path, options: ReadOptions) -> "Dataset":
    """The events; nodes keep their numbers, and two sides where every source comes before every destination."""
    options.refuse("TGB-Seq", *COLUMNS, "bipartite", "header")
    table = splits_of(path)
    columns, origin = table_of(table, options)
    edge, node = (matrix(beside(table, f"{kind}_feat")) for kind in ("edge", "node"))
    ids = identity_ids(table, columns.src, columns.dst, node)
    columns = replace(columns, edge=columns.edge[:, :0] if edge is None else edge, label=None, node=node)
    if len(columns.edge) != len(columns.src):
        raise FileError(
            f"{beside(table, 'edge_feat')} has {len(columns.edge):,} rows for {len(columns.src):,} events"
        )
    return arranged(table, columns, ids, replace(origin, label=""))


def table_of(table: Path, options: ReadOptions) -> tuple[Columns, Origin]:
    """The table's rows in its own order, the period of each as its label."""
    header = read_header(table, replace(options, header=True))
    if PERIOD not in header.names:
        raise FileError(
            f"{table} has no column '{PERIOD}', as TGB-Seq's tables do; read it with `format='csv'`"
        )
    roles = Roles("src", "dst", "time", (), PERIOD)
    columns, ids, origin = read_rows(table, FORMAT, header, roles, replace(options, bipartite=False))
    if ids.kind != "int":
        raise FileError(f"{table} names its nodes, which TGB-Seq numbers; read it with `format='csv'`")
    number = ids.values.to_numpy()
    return replace(columns, src=number[columns.src], dst=number[columns.dst]), origin


def beside(table: Path, what: str) -> Path:
    """A companion of a table: NAME_what.npy, of a version NAME_what_v1.npy or NAME_v1_what.npy."""
    name, mark, version = table.stem.rpartition("_v")
    if not mark or not version.isdigit():
        return table.with_name(f"{table.stem}_{what}.npy")
    behind = table.with_name(f"{name}_{what}_v{version}.npy")
    return behind if behind.exists() else table.with_name(f"{table.stem}_{what}.npy")


def matrix(path: Path, kinds: str = "fiu", kind: type = np.float32) -> np.ndarray | None:
    """An array of numbers with one row each, checked before it is read; None where there is none."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            shape = read_shape(file, path.stat().st_size)
            if len(shape.axes) != 2 or shape.dtype.kind not in kinds:
                raise FileError(f"{path} is {shape}; it must be a matrix of numbers")
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False).astype(kind, copy=False)
    except BROKEN as error:
        raise FileError(f"{path} is not a whole .npy file ({reason(error)}); copy it again") from error
