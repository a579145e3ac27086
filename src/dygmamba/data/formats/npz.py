"""Numpy archives: src, dst (0..N-1), t, and where there are any label, edge_feat, node_feat."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from dygmamba.data.formats.options import COLUMNS, ReadOptions
from dygmamba.data.formats.table import Columns, arranged
from dygmamba.data.ids import NodeIds
from dygmamba.data.store import Dataset, Origin
from dygmamba.errors import FileError


def read(path: Path, options: ReadOptions) -> Dataset:
    """The nodes keep their numbers; a stream whose sources all precede its destinations is bipartite."""
    options.refuse("npz", *COLUMNS, "bipartite", "time_unit", "fill")
    arrays = _arrays(path)
    for name in ("src", "dst", "t"):
        if name not in arrays:
            raise FileError(
                f"{path}: the .npz has no {name!r}, only {', '.join(arrays)}; save src, dst and t"
            )
    for name in ("src", "dst"):
        if arrays[name].dtype.kind not in "iu":
            raise FileError(f"{path}: {name} is {arrays[name].dtype}, not integers; save node numbers 0..N-1")
    src, dst = (_tensor(arrays[name], np.int64) for name in ("src", "dst"))
    edge, node, label = (arrays.get(name) for name in ("edge_feat", "node_feat", "label"))
    columns = Columns(
        src=src,
        dst=dst,
        time=_tensor(arrays["t"], np.float64),
        edge=torch.zeros(len(src), 0) if edge is None else _matrix(edge),
        label=None if label is None else _tensor(label, np.float32),
        node=None if node is None else _matrix(node),
    )
    ids = identity_ids(src, dst, 0 if columns.node is None else columns.node.shape[0])
    features = tuple(f"edge_feat_{k}" for k in range(columns.edge.shape[1]))
    origin = Origin(path.name, "npz", "src", "dst", "t", "" if label is None else "label", features)
    return arranged(path, columns, ids, origin)


def identity_ids(src: torch.Tensor, dst: torch.Tensor, at_least: int) -> NodeIds:
    """The ids of nodes that are numbered already; whether they have two sides shows in the numbers."""
    if not len(src):
        return NodeIds.identity(at_least)
    first = int(dst.min())
    bipartite = int(src.max()) < first
    return NodeIds.identity(max(at_least, 1 + int(max(src.max(), dst.max()))), first if bipartite else None)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise FileError(f"{path} is not a whole .npz file; save it with numpy.savez, or copy it again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError) as error:
        raise FileError(f"{path} is not a whole .npz file ({reason(error)}); copy it again") from error


def reason(error: Exception) -> str:
    """Why an array did not load, without numpy's advice to trust the file."""
    return "it holds Python objects" if "pickle" in str(error) else str(error).split("\n")[0]


def _tensor(array: np.ndarray, kind: type) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=kind))


def _matrix(array: np.ndarray) -> torch.Tensor:
    """Features with one row each; a plain column is one feature."""
    return _tensor(array.reshape(len(array), -1), np.float32)
