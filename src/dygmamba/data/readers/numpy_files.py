"""Numpy files: matrices in .npy files, and .npz archives of events.

An archive has src, dst (node numbers 0..N-1) and t, and optionally label, edge_feat, node_feat, ids and is_source.
"""

import struct
import tokenize
import warnings
import zipfile
import zlib
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dygmamba.core.errors import EventError, FileError, first_line
from dygmamba.core.files.untrusted import report_damage, require_regular_file
from dygmamba.core.memory_budget import format_bytes, require_memory
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.collect import EventColumns
from dygmamba.data.readers.options import COLUMN_OPTIONS, FIXED_OPTIONS, ReadOptions
from dygmamba.data.readers.table import build_dataset

if TYPE_CHECKING:
    from dygmamba.data.storage.dataset import Dataset

# what zipfile, zlib and numpy raise over a damaged file; RuntimeError: encrypted, or a later version of the format
DAMAGED_FILE_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, ValueError, EOFError, OSError),
    *(KeyError, TypeError, RuntimeError, OverflowError, MemoryError),
)


def _report_damage(path: Path, what: str) -> AbstractContextManager[None]:
    """Say why an array did not load, without numpy's advice to allow pickles."""

    def describe(error: Exception) -> str:
        return "it holds Python objects" if "pickle" in str(error) else first_line(error)

    return report_damage(path, what, DAMAGED_FILE_ERRORS, "copy it again", describe)


def _read_array(file: IO[bytes]) -> np.ndarray:
    # the size of an absurd shape overflows, and the values then do not fit it; a header of Python 2 is read slowly
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return np.lib.format.read_array(file, allow_pickle=False)


def _describe_array(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"[:120]


def load_matrix(path: Path, kinds: str = "fiu", dtype: type = np.float32) -> np.ndarray | None:
    """Read a matrix of numbers from an .npy file; None if there is no such file."""
    if not path.exists():
        return None
    require_regular_file(path)
    with _report_damage(path, "a complete .npy file"), path.open("rb") as file:
        matrix = _read_array(file)
        if matrix.ndim != 2 or matrix.dtype.kind not in kinds:
            raise FileError(
                f"{path} is {_describe_array(matrix)}; it must be a matrix of numbers",
                code="wrong-array-type",
            )
        if file.read(1):
            raise ValueError("it goes on behind the matrix")
        return matrix.astype(dtype, copy=False)


MAX_SPARSE_NODES = 1_000_000  # any file may have this many nodes; beyond, MAX_NODES_PER_EVENT limits them
MAX_NODES_PER_EVENT = 20
MAX_UNPACKED_BYTES = 1 << 30  # any archive may unpack to this much; beyond, MAX_UNPACKED_SHARE limits it
MAX_UNPACKED_SHARE = 100  # events compress to a tenth or so, nothing but zeros to a thousandth


class ArraySpec(NamedTuple):
    """Requirements of an array of the archive: letters of numpy dtype kinds, numbers of axes, and a description."""

    kinds: str
    axes: tuple[int, ...]
    description: str


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
    """Read an archive of arrays; nodes keep their numbers.

    Without `is_source` the graph is bipartite if every source has a lower number than every destination.
    """
    options.reject("npz", *COLUMN_OPTIONS, *FIXED_OPTIONS)
    arrays = _read_arrays(path)
    src, dst = (np.ascontiguousarray(arrays[name], np.int64) for name in ("src", "dst"))
    edge, node, label = (arrays.get(name) for name in ("edge_feat", "node_feat", "label"))
    columns = EventColumns(
        src=src,
        dst=dst,
        time=np.ascontiguousarray(arrays["t"], np.float64),
        edge=np.zeros((len(src), 0), np.float32) if edge is None else _as_matrix(edge),
        label=None if label is None else np.ascontiguousarray(label, np.float32),
        node=None if node is None else _as_matrix(node),
    )
    ids = _build_ids(path, arrays) if "ids" in arrays else build_numbered_ids(path, src, dst, columns.node)
    features = tuple(f"edge_feat_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "npz", "src", "dst", "t", "" if label is None else "label", features)
    return build_dataset(path, columns, ids, origin)


def build_numbered_ids(
    path: Path, src: np.ndarray, dst: np.ndarray, node: np.ndarray | None = None
) -> NodeIds:
    """Build the ids of nodes that are already numbered; detect from the numbers whether the graph is bipartite.

    Per-node tables are as long as the highest number, so a file that leaves nearly all numbers unused is rejected.
    """
    rows, width = (0, 0) if node is None else node.shape
    if not len(src):
        return NodeIds.identity(rows if width else 0)
    first_destination = int(dst.min())
    is_bipartite = int(src.max()) < first_destination
    count = max(rows, 1 + int(max(src.max(), dst.max())))
    if count > max(MAX_SPARSE_NODES, MAX_NODES_PER_EVENT * len(src), rows if width else 0):
        raise FileError(
            f"{path} has node numbers up to {count - 1:,} but only {len(src):,} events; renumber the nodes from 0 "
            "without gaps, or save the events as CSV, which allows any ids",
            code="node-numbers-too-sparse",
        )
    return NodeIds.identity(count, first_destination if is_bipartite else None)


def _build_ids(path: Path, arrays: dict[str, np.ndarray]) -> NodeIds:
    names, is_source = arrays["ids"], arrays.get("is_source")
    is_text = names.dtype.kind == "U"
    values = pa.array(names.tolist(), pa.large_string()) if is_text else pa.array(names, pa.int64())
    try:
        if is_source is None:
            return NodeIds(values)
        return NodeIds(values, int(is_source.sum()), pa.array(is_source))
    except EventError as error:
        raise FileError(f"{path}: {error}", code=error.code) from error


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of `ARRAY_SPECS`."""
    if not zipfile.is_zipfile(path):
        raise FileError(
            f"{path} is not a complete .npz file; save it with numpy.savez, or copy it again",
            code="file-damaged",
        )
    with _report_damage(path, "a complete .npz file"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in ("src", "dst", "t"):
            if name not in members:
                present = ", ".join(repr(member)[:40] for member in list(members)[:20])
                raise FileError(
                    f"{path}: the .npz has no {name!r}, only {present}; save src, dst and t",
                    code="missing-array",
                )
        chosen = {name: members[name] for name in ARRAY_SPECS if name in members}
        _check_unpacked_size(path, sum(info.file_size for info in chosen.values()))
        arrays = {name: _read_array(archive.open(info)) for name, info in chosen.items()}
    _check_arrays(path, arrays)
    return arrays


def _check_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        spec = ARRAY_SPECS[name]
        if array.dtype.kind not in spec.kinds or array.ndim not in spec.axes:
            raise FileError(
                f"{path}: {name} is {_describe_array(array)}, not {spec.description}", code="wrong-array-type"
            )
        events = len(arrays["src"])
        if name not in NODE_ARRAYS and len(array) != events:
            raise FileError(
                f"{path}: {name} has {len(array)} rows for {events} events; give one row per event",
                code="row-count-differs",
            )


def _check_unpacked_size(path: Path, size: int) -> None:
    """Raise FileError for an archive that unpacks to absurdly much, MemoryBudgetError for more than is free."""
    packed = path.stat().st_size
    if size > max(MAX_UNPACKED_BYTES, MAX_UNPACKED_SHARE * packed):
        raise FileError(
            f"{path} has {format_bytes(packed)} and unpacks to {format_bytes(size)}, which events do not; if it is "
            "right, save it uncompressed with numpy.savez",
            code="unpacks-to-too-much",
        )
    require_memory(size, f"reading {path}")


def _as_matrix(array: np.ndarray) -> np.ndarray:
    """Convert to float32 with one row per item; a plain column is one feature."""
    with np.errstate(over="ignore"):  # overflow becomes infinite and is rejected later
        return np.ascontiguousarray(array.reshape(len(array), prod(array.shape[1:])), np.float32)
