"""One dataset, one file: a safetensors file that is mapped into memory, without pickle.

Node numbers are stored as 64-bit integers although 32 would do: a third of the file, in exchange for a load
that copies nothing, so processes that read the same dataset share its pages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError, first_line
from dygmamba.core.files.writing import make_folder
from dygmamba.core.settings import check_value
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.origin import Origin as Origin
from dygmamba.data.events.origin import parse_origin
from dygmamba.data.events.statistics import Statistics, compute_statistics
from dygmamba.data.storage import conversion
from dygmamba.data.storage.locations import SUFFIX as SUFFIX
from dygmamba.data.storage.locations import checked_name as checked_name
from dygmamba.data.storage.mapped_columns import iterate_chunks
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.data.storage.tensor_file import map_tensors, write_tensors

if TYPE_CHECKING:
    import networkx
    import pandas
    from torch_geometric.data import TemporalData

    from dygmamba.data.storage.export import ExportResult

FORMAT = "dygmamba-events"
FORMAT_VERSION = 1
VERSION_LENGTH = 8
VERSION_SEPARATOR = "@"  # NAME@VERSION.safetensors is an older dataset of that name
# what each column is, and of how many dimensions: right digests do not make it so
COLUMN_TYPES = {
    **dict.fromkeys(("src", "dst"), (torch.int64, 1)),
    "time": (torch.float64, 1),
    **dict.fromkeys(("edge", "node"), (torch.float32, 2)),
    "label": (torch.float32, 1),
    **dict.fromkeys(("ids", "ids_offsets"), (torch.int64, 1)),
    **dict.fromkeys(("ids_bytes", "ids_source"), (torch.uint8, 1)),
}
ID_COLUMNS = ("ids", "ids_bytes", "ids_offsets", "ids_source")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named stream with its users' ids; `digest` is the sha256 of the events' columns."""

    name: str
    store: EventStore
    ids: NodeIds
    digest: str
    origin: Origin = field(default_factory=Origin)
    path: Path | None = field(default=None, compare=False)  # the file it was opened from, where there is one

    def __post_init__(self) -> None:
        if len(self.ids) != self.store.num_nodes:
            raise EventError(
                f"{len(self.ids)} ids for {self.store.num_nodes} nodes; give each node one id of its own"
            )

    @staticmethod
    def of(name: str, store: EventStore, ids: NodeIds, origin: Origin | None = None) -> "Dataset":
        """A dataset from its parts, with its digest worked out."""
        return Dataset(name, store, ids, _hash_columns(_get_event_columns(store)), origin or Origin())

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"<Dataset {self.name!r}: {self.store.num_nodes:,} nodes, {len(self):,} events>"

    @property
    def content(self) -> str:
        """sha256 of the events and of whose they are; `digest` is of the events alone."""
        about = f"{self.digest} {self.ids.sources}".encode()
        return _hash_columns({**_get_id_columns(self.ids), "about": np.frombuffer(about, np.uint8)})

    @property
    def version(self) -> str:
        """What tells it from other datasets of its name."""
        return self.content[:VERSION_LENGTH]

    def describe(self) -> Statistics:
        """What the stream looks like in numbers: sizes, period, ties, repeats, surprise, degrees, gaps."""
        return compute_statistics(self.store)

    def export(self, to: Path | str, raw: bool = False) -> "ExportResult":
        """Write the events into a file in the format of its ending: .csv, .jsonl, .parquet, .arrow, .feather, .npz.

        The answer says where it is, what the format could not hold, and what `read` is to be told to have it back.
        """
        from dygmamba.data.storage.export import export_dataset

        return export_dataset(self, Path(to), raw)

    def to_arrow(self) -> pa.Table:
        """One row per event in the user's ids and times; `read` gives the events back (docs/interoperate.md)."""
        return conversion.to_arrow(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """The same as a data frame."""
        return conversion.to_pandas(self)

    def to_pyg(self) -> "TemporalData":
        """PyG's TemporalData with src, dst, t, msg, y; its `ids` say whose node a number is."""
        return conversion.to_pyg(self)

    def to_networkx(self) -> "networkx.MultiDiGraph":
        """A graph of the user's ids, an edge per event with its time, label and features."""
        return conversion.to_networkx(self)


def save_dataset(dataset: Dataset, folder: Path) -> Path:
    """Write NAME.safetensors whole or not at all, and say where it is."""
    path = folder / (checked_name(dataset.name) + SUFFIX)
    dataset.store.check_unchanged()
    ids = _get_id_columns(dataset.ids)
    about = json.dumps(
        {
            "bipartite": dataset.store.bipartite,
            "sources": dataset.ids.sources,
            "origin": asdict(dataset.origin),
        }
    )
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "digest": dataset.digest, "about": about}
    metadata |= {"ids_digest": _hash_ids(ids, about), "content": dataset.content}
    id_tensors = {
        name: torch.from_numpy(np.require(column, requirements="W")) for name, column in ids.items()
    }
    make_folder(folder)
    write_tensors(path, _get_event_columns(dataset.store) | id_tensors, metadata)
    return path


def load_dataset(path: Path) -> Dataset:
    """Map a dataset into memory, having checked that it still holds what was saved."""
    mend = "import or fetch it again"
    if not path.is_file():
        raise FileError(f"{path} is {'a folder' if path.is_dir() else 'missing'}; give a {SUFFIX} file")
    try:
        source = MappedFile.of(path)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); allow it, or {mend}") from error
    try:
        tensors, metadata = map_tensors(path, source.handle.number)
        source.check_name()
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is not a whole {SUFFIX} file ({first_line(error)}); {mend}") from error
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is a {SUFFIX} file, but holds no events; give one that data import wrote")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise FileError(
            f"{path} has format version {metadata.get('version')}, this program reads {FORMAT_VERSION}; {mend}"
        )
    try:
        source = replace(source, digest=metadata["digest"])
        dataset = _parse_dataset(path.stem.partition(VERSION_SEPARATOR)[0], tensors, metadata, source)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, EventError, ConfigError) as error:
        raise FileError(f"{path} is corrupt ({first_line(error)}); {mend}") from error
    source.check()  # what was checked above is what will be read
    return dataset


def _parse_dataset(
    name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], source: MappedFile
) -> Dataset:
    for key, column in tensors.items():
        _check_column(key, column)
    ids = {key: tensors[key].clone().numpy() for key in ID_COLUMNS if key in tensors}
    if _hash_ids(ids, metadata["about"]) != metadata["ids_digest"]:
        raise ValueError("its ids differ from their checksum")
    about = json.loads(metadata["about"])
    store = EventStore(
        src=tensors["src"],
        dst=tensors["dst"],
        time=tensors["time"],
        features=FeatureTable(tensors["node"], tensors["edge"]),
        num_nodes=tensors["node"].shape[0],
        label=tensors.get("label"),
        bipartite=check_value("bipartite", about["bipartite"], bool),
        source=source,
    )
    origin = parse_origin(about["origin"])
    is_source = pa.array(ids["ids_source"].astype(bool)) if "ids_source" in ids else None
    dataset = Dataset.of(name, store, NodeIds(_make_id_array(ids), about["sources"], is_source), origin)
    if dataset.digest != metadata["digest"]:
        raise ValueError("its events differ from their checksum")
    if metadata.get("content", dataset.content) != dataset.content:
        raise ValueError("its events and ids differ from their checksum")
    return replace(dataset, path=source.path)


def _check_column(name: str, column: Tensor) -> None:
    """Refuse a column that is not what it must be; numbers that are none are found without a copy."""
    kind, dimensions = COLUMN_TYPES.get(name, (None, 0))
    if (column.dtype, column.dim()) != (kind, dimensions):
        raise ValueError(f"its column {name[:60]!r} is {column.dtype} of {column.dim()} dimensions")
    looked = iterate_chunks(column.numpy()) if column.is_floating_point() and column.numel() else ()
    if not all(np.isfinite(piece.min()) and np.isfinite(piece.max()) for piece in looked):
        raise ValueError(f"its column {name!r} holds a value that is no finite number")


def _get_event_columns(store: EventStore) -> dict[str, Tensor]:
    columns = {"src": store.src, "dst": store.dst, "time": store.time}
    columns |= {"edge": store.features.edge, "node": store.features.node}
    return columns if store.label is None else columns | {"label": store.label}


def _get_id_columns(ids: NodeIds) -> dict[str, np.ndarray]:
    """The ids, and where sources are not the first nodes, which are."""
    if ids.is_source is None:
        return _get_id_value_columns(ids)
    is_source = ids.is_source.to_numpy(zero_copy_only=False)
    sides = {} if is_source[: ids.sources].all() else {"ids_source": is_source.astype(np.uint8)}
    return _get_id_value_columns(ids) | sides


def _get_id_value_columns(ids: NodeIds) -> dict[str, np.ndarray]:
    if ids.kind == "int":
        return {"ids": ids.values.to_numpy(zero_copy_only=False)}
    # a fresh array: slices of a larger one would drag its whole buffer along
    fresh = pa.concat_arrays([ids.values, pa.array([], pa.large_string())])
    _, offsets, text = fresh.buffers()
    count = len(fresh) + 1
    edges = np.frombuffer(offsets, np.int64, count) if offsets else np.zeros(1, np.int64)
    letters = np.frombuffer(text, np.uint8) if text else np.zeros(0, np.uint8)
    return {"ids_bytes": letters[: edges[-1]], "ids_offsets": edges}


def _make_id_array(columns: Mapping[str, np.ndarray]) -> pa.Array:
    if "ids" in columns:
        return pa.array(columns["ids"])
    offsets, text = columns["ids_offsets"], columns["ids_bytes"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    array = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
    array.validate(full=True)
    return array


def _hash_ids(ids: Mapping[str, np.ndarray], about: str) -> str:
    """sha256 of what the events' digest leaves out: the ids, and where it all came from."""
    return _hash_columns({**ids, "about": np.frombuffer(about.encode(), np.uint8)})


def _hash_columns(columns: Mapping[str, Tensor] | Mapping[str, np.ndarray]) -> str:
    """sha256 over each column's name, dtype, shape and bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        array = column.cpu().contiguous().numpy() if isinstance(column, Tensor) else column
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        for piece in iterate_chunks(np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
            digest.update(piece.data)
    return digest.hexdigest()
