"""What a numpy array file says it holds, known before any of it is allocated.

Numpy archives: src, dst (0..N-1), t, and where there are any label, edge_feat, node_feat, ids, is_source.
"""

import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import EventError, FileError, first_line
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.options import COLUMN_OPTIONS, FIXED_OPTIONS, ReadOptions
from dygmamba.data.readers.table import EventColumns, build_dataset

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

# what zipfile, zlib and numpy raise over a damaged file; RuntimeError: encrypted, or of a later version of the format
DAMAGED_FILE_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, ValueError, EOFError, OSError),
    *(KeyError, TypeError, RuntimeError, OverflowError, MemoryError),
)
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The axes and the kind of an array."""

    axes: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.axes)}"[:120]


def read_array_header(file: IO[bytes], size: int) -> ArrayHeader:
    """The header of an array of that many bytes in all; a ValueError where the two do not agree."""
    version = np.lib.format.read_magic(file)
    if version not in HEADER_READERS:
        raise ValueError(f"version {version} is for names that no number has")
    axes, _, dtype = HEADER_READERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if min(axes, default=0) < 0 or prod(axes) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{ArrayHeader(axes, dtype)} does not fit {size - file.tell():,} bytes")
    return ArrayHeader(axes, dtype)


def describe_load_error(error: Exception) -> str:
    """Why an array did not load, without numpy's advice to trust the file."""
    return "it holds Python objects" if "pickle" in str(error) else first_line(error)


MAX_SPARSE_NODES = 1_000_000  # so many nodes any file may have; beyond that at most CROWD per event
MAX_NODES_PER_EVENT = 20
MAX_COMPRESSION = 1100  # deflate makes 1032 bytes of one, never more
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no other


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an array must be: the kinds of its numbers, in letters of numpy's, and how many axes it may have."""

    kinds: str
    axes: tuple[int, ...]
    words: str


ARRAY_SPECS = {
    "src": ArraySpec("iu", (1,), "integers, one per event; save node numbers 0..N-1"),
    "dst": ArraySpec("iu", (1,), "integers, one per event; save node numbers 0..N-1"),
    "t": ArraySpec("fiu", (1,), "numbers, one per event; save seconds"),
    "label": ArraySpec("fiub", (1,), "numbers, one per event; save one label each"),
    "edge_feat": ArraySpec("fiub", (1, 2), "a matrix of numbers; save one row per event"),
    "node_feat": ArraySpec("fiub", (1, 2), "a matrix of numbers; save one row per node"),
    "ids": ArraySpec("iuU", (1,), "integers or strings; save the id of each node"),
    "is_source": ArraySpec("b", (1,), "true or false; save which nodes are sources"),
}
NODE_ARRAYS = ("node_feat", "ids", "is_source")


def read_npz(path: Path, options: ReadOptions) -> "Dataset":
    """The nodes keep their numbers; a stream whose sources all precede its destinations is bipartite.

    With `ids` the nodes are as many, and theirs; with `is_source` there are two sides.
    """
    options.refuse("npz", *COLUMN_OPTIONS, *FIXED_OPTIONS)
    arrays = _read_arrays(path)
    src, dst = (_as_column(arrays[name], np.int64) for name in ("src", "dst"))
    edge, node, label = (arrays.get(name) for name in ("edge_feat", "node_feat", "label"))
    columns = EventColumns(
        src=src,
        dst=dst,
        time=_as_column(arrays["t"], np.float64),
        edge=np.zeros((len(src), 0), np.float32) if edge is None else _as_matrix(edge),
        label=None if label is None else _as_column(label, np.float32),
        node=None if node is None else _as_matrix(node),
    )
    ids = _build_ids(path, arrays) if "ids" in arrays else build_numbered_ids(path, src, dst, columns.node)
    features = tuple(f"edge_feat_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "npz", "src", "dst", "t", "" if label is None else "label", features)
    return build_dataset(path, columns, ids, origin)


def build_numbered_ids(
    path: Path, src: np.ndarray, dst: np.ndarray, node: np.ndarray | None = None
) -> NodeIds:
    """The ids of nodes that are numbered already; whether they have two sides shows in the numbers.

    The tables of nodes are as long as the highest number, so one that leaves nearly all of them empty is refused.
    """
    rows, width = (0, 0) if node is None else node.shape
    if not len(src):
        return NodeIds.identity(rows if width else 0)
    first = int(dst.min())
    bipartite = int(src.max()) < first
    count = max(rows, 1 + int(max(src.max(), dst.max())))
    if count > max(MAX_SPARSE_NODES, MAX_NODES_PER_EVENT * len(src), rows if width else 0):
        raise FileError(
            f"{path} numbers its nodes up to {count - 1:,} for {len(src):,} events; renumber them from 0 "
            "without gaps, or save the events as CSV, where ids may be any"
        )
    return NodeIds.identity(count, first if bipartite else None)


def _build_ids(path: Path, arrays: dict[str, np.ndarray]) -> NodeIds:
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


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
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
            chosen = {name: members[name] for name in ARRAY_SPECS if name in members}
            shapes = {name: _read_member_header(path, archive, info) for name, info in chosen.items()}
            _check_headers(path, shapes)
            return {name: _read_member(archive, info) for name, info in chosen.items()}
    except DAMAGED_FILE_ERRORS as error:
        raise FileError(
            f"{path} is not a whole .npz file ({describe_load_error(error)}); copy it again"
        ) from error


def _check_headers(path: Path, shapes: dict[str, ArrayHeader]) -> None:
    for name, found in shapes.items():
        part = ARRAY_SPECS[name]
        if found.dtype.kind not in part.kinds or len(found.axes) not in part.axes:
            raise FileError(f"{path}: {name} is {found}, not {part.words}")
        if name not in NODE_ARRAYS and found.axes[0] != shapes["src"].axes[0]:
            raise FileError(
                f"{path}: {name} has {found.axes[0]} rows for {shapes['src'].axes[0]} events; "
                "give one row per event"
            )


def _read_member_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    """What a member's first bytes say it is, if so much can be in it."""
    if info.compress_type not in ZIP_METHODS:
        raise ValueError(f"{info.filename} is packed in a way that numpy does not use")
    if info.compress_size > path.stat().st_size or info.file_size > MAX_COMPRESSION * (
        1 + info.compress_size
    ):
        raise ValueError(f"{info.filename} claims {info.file_size:,} bytes, more than can be in the file")
    with archive.open(info) as file:
        return read_array_header(file, info.file_size)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _as_column(array: np.ndarray, kind: type) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=kind)


def _as_matrix(array: np.ndarray) -> np.ndarray:
    """Features with one row each; a plain column is one feature."""
    with np.errstate(over="ignore"):  # what is beyond 32 bits is infinite, and refused as such
        return _as_column(array.reshape(len(array), prod(array.shape[1:])), np.float32)
