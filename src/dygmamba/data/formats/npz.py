"""Numpy archives: src, dst (0..N-1), t, and where there are any label, edge_feat, node_feat, ids, is_source."""

import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.npy import BROKEN, Shape, read_shape, reason
from dygmamba.data.formats.options import COLUMNS, FIXED, ReadOptions
from dygmamba.data.formats.table import Columns, arranged
from dygmamba.data.ids import NodeIds
from dygmamba.data.origin import Origin
from dygmamba.errors import EventError, FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

SPARSE = 1_000_000  # so many nodes any file may have; beyond that at most CROWD per event
CROWD = 20
SQUEEZE = 1100  # deflate makes 1032 bytes of one, never more
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no other


@dataclass(frozen=True, slots=True)
class Part:
    """What an array must be: the kinds of its numbers, in letters of numpy's, and how many axes it may have."""

    kinds: str
    axes: tuple[int, ...]
    words: str


PARTS = {
    "src": Part("iu", (1,), "integers, one per event; save node numbers 0..N-1"),
    "dst": Part("iu", (1,), "integers, one per event; save node numbers 0..N-1"),
    "t": Part("fiu", (1,), "numbers, one per event; save seconds"),
    "label": Part("fiub", (1,), "numbers, one per event; save one label each"),
    "edge_feat": Part("fiub", (1, 2), "a matrix of numbers; save one row per event"),
    "node_feat": Part("fiub", (1, 2), "a matrix of numbers; save one row per node"),
    "ids": Part("iuU", (1,), "integers or strings; save the id of each node"),
    "is_source": Part("b", (1,), "true or false; save which nodes are sources"),
}
OF_NODES = ("node_feat", "ids", "is_source")


def read(path: Path, options: ReadOptions) -> "Dataset":
    """The nodes keep their numbers; a stream whose sources all precede its destinations is bipartite.

    With `ids` the nodes are as many, and theirs; with `is_source` there are two sides.
    """
    options.refuse("npz", *COLUMNS, *FIXED)
    arrays = _arrays(path)
    src, dst = (_column(arrays[name], np.int64) for name in ("src", "dst"))
    edge, node, label = (arrays.get(name) for name in ("edge_feat", "node_feat", "label"))
    columns = Columns(
        src=src,
        dst=dst,
        time=_column(arrays["t"], np.float64),
        edge=np.zeros((len(src), 0), np.float32) if edge is None else _matrix(edge),
        label=None if label is None else _column(label, np.float32),
        node=None if node is None else _matrix(node),
    )
    ids = _ids(path, arrays) if "ids" in arrays else identity_ids(path, src, dst, columns.node)
    features = tuple(f"edge_feat_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "npz", "src", "dst", "t", "" if label is None else "label", features)
    return arranged(path, columns, ids, origin)


def identity_ids(path: Path, src: np.ndarray, dst: np.ndarray, node: np.ndarray | None = None) -> NodeIds:
    """The ids of nodes that are numbered already; whether they have two sides shows in the numbers.

    The tables of nodes are as long as the highest number, so one that leaves nearly all of them empty is refused.
    """
    rows, width = (0, 0) if node is None else node.shape
    if not len(src):
        return NodeIds.identity(rows if width else 0)
    first = int(dst.min())
    bipartite = int(src.max()) < first
    count = max(rows, 1 + int(max(src.max(), dst.max())))
    if count > max(SPARSE, CROWD * len(src), rows if width else 0):
        raise FileError(
            f"{path} numbers its nodes up to {count - 1:,} for {len(src):,} events; renumber them from 0 "
            "without gaps, or save the events as CSV, where ids may be any"
        )
    return NodeIds.identity(count, first if bipartite else None)


def _ids(path: Path, arrays: dict[str, np.ndarray]) -> NodeIds:
    """The ids that the file has."""
    names, sides = arrays["ids"], arrays.get("is_source")
    values = (
        pa.array(names.tolist(), pa.large_string())
        if names.dtype.kind == "U"
        else pa.array(names, pa.int64())
    )
    try:
        if sides is None:
            return NodeIds(values)
        return NodeIds(values, int(sides.sum()), pa.array(sides))
    except EventError as error:
        raise FileError(f"{path}: {error}") from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays that have a meaning, each checked for kind and size before it is read; others are left alone."""
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path} is not a whole .npz file; save it with numpy.savez, or copy it again")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in ("src", "dst", "t"):
                if name not in members:
                    listed = ", ".join(repr(one)[:40] for one in list(members)[:20])
                    raise FileError(f"{path}: the .npz has no {name!r}, only {listed}; save src, dst and t")
            chosen = {name: members[name] for name in PARTS if name in members}
            shapes = {name: _shape(path, archive, info) for name, info in chosen.items()}
            _check(path, shapes)
            return {name: _read(archive, info) for name, info in chosen.items()}
    except BROKEN as error:
        raise FileError(f"{path} is not a whole .npz file ({reason(error)}); copy it again") from error


def _check(path: Path, shapes: dict[str, Shape]) -> None:
    for name, found in shapes.items():
        part = PARTS[name]
        if found.dtype.kind not in part.kinds or len(found.axes) not in part.axes:
            raise FileError(f"{path}: {name} is {found}, not {part.words}")
        if name not in OF_NODES and found.axes[0] != shapes["src"].axes[0]:
            raise FileError(
                f"{path}: {name} has {found.axes[0]} rows for {shapes['src'].axes[0]} events; "
                "give one row per event"
            )


def _shape(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Shape:
    """What a member's first bytes say it is, if so much can be in it."""
    if info.compress_type not in METHODS:
        raise ValueError(f"{info.filename} is packed in a way that numpy does not use")
    if info.compress_size > path.stat().st_size or info.file_size > SQUEEZE * (1 + info.compress_size):
        raise ValueError(f"{info.filename} claims {info.file_size:,} bytes, more than can be in the file")
    with archive.open(info) as file:
        return read_shape(file, info.file_size)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _column(array: np.ndarray, kind: type) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=kind)


def _matrix(array: np.ndarray) -> np.ndarray:
    """Features with one row each; a plain column is one feature."""
    with np.errstate(over="ignore"):  # what is beyond 32 bits is infinite, and refused as such
        return _column(array.reshape(len(array), prod(array.shape[1:])), np.float32)
