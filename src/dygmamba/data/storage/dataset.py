"""The dataset: a named event stream with the user's ids, saved as one safetensors file.

The file is mapped into memory, not read; no pickle is involved. Nodes are stored as 64-bit integers although 32 bits
would do. That costs a third of the file, but loading copies nothing and processes that use the same dataset share its
pages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, FileError, first_line
from dygmamba.core.files.writing import make_folder
from dygmamba.core.notebook_html import format_facts, format_table
from dygmamba.core.settings import check_value
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.node_rows import NodeRows
from dygmamba.data.events.origin import Origin, parse_origin
from dygmamba.data.events.statistics import Statistics, compute_statistics
from dygmamba.data.events.times import format_date, looks_like_epoch_seconds
from dygmamba.data.storage import conversion
from dygmamba.data.storage.locations import DATASET_SUFFIX, check_dataset_name
from dygmamba.data.storage.mapped_columns import iterate_chunks
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.data.storage.tensor_file import map_tensors, write_tensors

if TYPE_CHECKING:
    import pandas

    from dygmamba.data.storage.export import ExportResult

FORMAT = "dygmamba-events"
FORMAT_VERSION = 1
NODE_ROWS_VERSION = 2  # of files with named node features, which earlier programs do not read
SHOWN_EVENTS, SHOWN_COLUMNS = 5, 8  # in a notebook
VERSION_LENGTH = 8  # hex digits of the content digest
VERSION_SEPARATOR = "@"  # NAME@VERSION.safetensors is an older version
# Expected dtype and number of dimensions; a correct digest does not prove them, because anybody can compute one.
COLUMN_TYPES = {
    **dict.fromkeys(("src", "dst"), (torch.int64, 1)),
    "time": (torch.float64, 1),
    **dict.fromkeys(("edge", "node"), (torch.float32, 2)),
    "codes": (torch.int32, 2),
    "label": (torch.float32, 1),
    **dict.fromkeys(("ids", "ids_offsets"), (torch.int64, 1)),
    **dict.fromkeys(("ids_bytes", "ids_source"), (torch.uint8, 1)),
    "node_rows_node": (torch.int64, 1),
    "node_rows_time": (torch.float64, 1),
    "node_rows_value": (torch.float32, 2),
    "node_rows_known": (torch.uint8, 2),
    "node_rows_codes": (torch.int32, 2),
}
NODE_ROWS_COLUMNS = ("node", "time", "value", "known", "codes")  # fields of NodeRows
ID_COLUMNS = ("ids", "ids_bytes", "ids_offsets", "ids_source")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named event stream with the user's node ids; `digest` is the SHA-256 of the event columns."""

    name: str
    store: EventStore
    ids: NodeIds
    digest: str
    origin: Origin = field(default_factory=Origin)
    path: Path | None = field(default=None, compare=False)  # the file it was opened from, if any

    def __post_init__(self) -> None:
        if len(self.ids) != self.store.num_nodes:
            raise EventError(
                f"{len(self.ids)} ids for {self.store.num_nodes} nodes; give each node one id of its own",
                code="id-count",
            )

    @staticmethod
    def from_events(name: str, store: EventStore, ids: NodeIds, origin: Origin | None = None) -> "Dataset":
        """Create a dataset and compute its digest."""
        return Dataset(name, store, ids, _hash_columns(_get_event_columns(store)), origin or Origin())

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"<Dataset {self.name!r}: {self.store.num_nodes:,} nodes, {len(self):,} events>"

    def _repr_html_(self) -> str:
        store, columns = self.store, self.store.features
        names = [*columns.edge_names, *(category.name for category in columns.categories)]
        times = [float(store.time[row]) for row in (0, -1)] if len(store) else []
        facts = {
            "nodes": f"{store.num_nodes:,}" + (" (sources and destinations)" if store.bipartite else ""),
            "events": f"{len(store):,}",
            "times": " to ".join(map(format_date if self.origin.time_origin else "{:.12g}".format, times)),
            "columns": ", ".join(names[:SHOWN_COLUMNS]) + ", ..." * (len(names) > SHOWN_COLUMNS),
            "labels": self.origin.label,
        }
        head = conversion.to_arrow(replace(self, store=store[:SHOWN_EVENTS]))
        names = head.column_names[: 3 + SHOWN_COLUMNS]
        rows = [[row[name] for name in names] for row in head.to_pylist()]
        return format_facts(f"dataset {self.name}", facts) + format_table(names, rows, "first events")

    @property
    def is_dated(self) -> bool:
        """Whether times are seconds since 1970; plain numbers may be that without saying so."""
        time = self.store.time
        if self.origin.time_origin:
            return True
        return len(time) > 0 and looks_like_epoch_seconds(float(time[0]), float(time[-1]))

    @property
    def content(self) -> str:
        """SHA-256 of events and ids; `digest` covers the events only."""
        categories = self.store.features.categories
        named = f" {json.dumps([asdict(category) for category in categories])}" if categories else ""
        rows = self.store.features.node_rows
        named += "" if rows is None else f" {json.dumps(_describe_columns(rows))}"
        about = f"{self.digest} {self.ids.sources}{named}".encode()
        return _hash_columns({**_get_id_columns(self.ids), "about": np.frombuffer(about, np.uint8)})

    @property
    def version(self) -> str:
        """Short identifier that distinguishes datasets of the same name."""
        return self.content[:VERSION_LENGTH]

    def describe(self) -> Statistics:
        """Compute statistics: sizes, period, ties, repeats, surprise, degrees, time gaps."""
        return compute_statistics(self.store)

    def export(self, to: Path | str, raw: bool = False) -> "ExportResult":
        """Write the events to a file; its suffix sets the format: .csv, .jsonl, .parquet, .arrow, .feather or .npz.

        The result says what the format cannot hold, and which options of `read` restore the dataset.
        """
        from dygmamba.data.storage.export import export_dataset

        return export_dataset(self, Path(to), raw)

    def to_arrow(self) -> pa.Table:
        """Convert to an Arrow table with a row per event; `read` restores the events (docs/how-to/interoperate.md)."""
        return conversion.to_arrow(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a data frame with a row per event."""
        return conversion.to_pandas(self)


def save_dataset(dataset: Dataset, folder: Path) -> Path:
    """Write NAME.safetensors atomically and return its path."""
    path = folder / (check_dataset_name(dataset.name) + DATASET_SUFFIX)
    dataset.store.check_unchanged()
    ids = _get_id_columns(dataset.ids)
    facts = {"bipartite": dataset.store.bipartite, "sources": dataset.ids.sources}
    facts |= {"origin": asdict(dataset.origin)}
    features = dataset.store.features
    if features.names or features.categories:
        facts["columns"] = _describe_columns(features)
    if features.node_rows is not None:
        facts["node_columns"] = _describe_columns(features.node_rows)
    about = json.dumps(facts)
    version = FORMAT_VERSION if features.node_rows is None else NODE_ROWS_VERSION
    metadata = {"format": FORMAT, "version": str(version), "digest": dataset.digest, "about": about}
    metadata |= {"ids_digest": _hash_ids(ids, about), "content": dataset.content}
    id_tensors = {
        name: torch.from_numpy(np.require(column, requirements="W")) for name, column in ids.items()
    }
    make_folder(folder)
    write_tensors(path, _get_event_columns(dataset.store) | id_tensors, metadata)
    return path


def load_dataset(path: Path) -> Dataset:
    """Map a dataset file into memory after verifying its digests; raise FileError if it is not intact."""
    advice = "import or fetch it again"
    if not path.is_file():
        raise FileError(
            f"{path} is {'a folder' if path.is_dir() else 'missing'}; give a {DATASET_SUFFIX} file",
            code="is-a-folder" if path.is_dir() else "file-missing",
        )
    try:
        source = MappedFile.open(path)
    except OSError as error:
        raise FileError(
            f"{path} cannot be read ({error.strerror}); allow it, or {advice}", code="file-unreadable"
        ) from error
    try:
        tensors, metadata = map_tensors(path, source.handle.number)
        source.check_name()
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(
            f"{path} is not a complete {DATASET_SUFFIX} file ({first_line(error)}); {advice}",
            code="file-damaged",
        ) from error
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"{path} is a {DATASET_SUFFIX} file but holds no events; give one that data import wrote",
            code="not-a-dataset",
        )
    if metadata.get("version") not in (str(FORMAT_VERSION), str(NODE_ROWS_VERSION)):
        raise FileError(
            f"{path} has format version {metadata.get('version')}, this program reads {FORMAT_VERSION} and "
            f"{NODE_ROWS_VERSION}; {advice}",
            code="unsupported-format-version",
        )
    try:
        source = replace(source, digest=metadata["digest"])
        dataset = _parse_dataset(path.stem.partition(VERSION_SEPARATOR)[0], tensors, metadata, source)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, EventError, ConfigError) as error:
        raise FileError(f"{path} is corrupt ({first_line(error)}); {advice}", code="file-damaged") from error
    source.check()  # the content that was verified is the content that will be read
    return dataset


def _parse_dataset(
    name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], source: MappedFile
) -> Dataset:
    for key, column in tensors.items():
        _check_column(key, column)
    ids = {key: tensors[key].clone().numpy() for key in ID_COLUMNS if key in tensors}
    if _hash_ids(ids, metadata["about"]) != metadata["ids_digest"]:
        raise ValueError("its ids do not match their checksum")
    about = json.loads(metadata["about"])
    origin = parse_origin(about["origin"])
    store = EventStore(
        src=tensors["src"],
        dst=tensors["dst"],
        time=tensors["time"],
        features=replace(
            _parse_features(tensors, about.get("columns"), origin),
            node_rows=_parse_node_rows(tensors, about.get("node_columns")),
        ),
        num_nodes=tensors["node"].shape[0],
        label=tensors.get("label"),
        bipartite=check_value("bipartite", about["bipartite"], bool),
        source=source,
    )
    is_source = pa.array(ids["ids_source"].astype(bool)) if "ids_source" in ids else None
    dataset = Dataset.from_events(
        name, store, NodeIds(_make_id_array(ids), about["sources"], is_source), origin
    )
    if dataset.digest != metadata["digest"]:
        raise ValueError("its events do not match their checksum")
    if metadata.get("content", dataset.content) != dataset.content:
        raise ValueError("its events and ids do not match their checksum")
    return replace(dataset, path=source.path)


def _parse_features(
    tensors: Mapping[str, Tensor], columns: Mapping[str, Any] | None, origin: Origin
) -> FeatureTable:
    """Return the features with the names of their columns; files of earlier versions have them in the origin only."""
    codes, categories = tensors.get("codes"), ()
    names = origin.features if len(origin.features) == tensors["edge"].shape[1] else ()
    if columns is not None:
        names, categories = _parse_column_names(columns)
    _check_codes(codes, categories)
    return FeatureTable(tensors["node"], tensors["edge"], codes, names, categories)


def _parse_node_rows(tensors: Mapping[str, Tensor], columns: Mapping[str, Any] | None) -> NodeRows | None:
    if columns is None:
        return None
    names, categories = _parse_column_names(columns)
    node, time, value, known, codes = (tensors[f"node_rows_{name}"] for name in NODE_ROWS_COLUMNS)
    _check_codes(codes, categories)
    if value.shape != known.shape or value.shape[1] != len(names):
        raise ValueError(f"it names {len(names)} numeric node features")
    return NodeRows(node, time, value, known.bool(), codes, names, categories)


def _describe_columns(table: FeatureTable | NodeRows) -> dict[str, Any]:
    return {"names": table.names, "categories": [asdict(category) for category in table.categories]}


def _parse_column_names(columns: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Category, ...]]:
    """Return the names of numeric columns, and the categorical columns."""
    categories = tuple(
        Category(
            check_value("name", category["name"], str),
            check_value("values", category["values"], tuple[str, ...]),
        )
        for category in columns["categories"]
    )
    return check_value("names", columns["names"], tuple[str, ...]), categories


def _check_codes(codes: Tensor | None, categories: tuple[Category, ...]) -> None:
    """Raise ValueError unless every code stands for a value of its column."""
    if len(categories) != (0 if codes is None else codes.shape[1]):
        raise ValueError(f"it names {len(categories)} categorical columns")
    if codes is None or not len(codes):
        return
    for column, category in zip(codes.T, categories, strict=True):
        if not 0 <= column.min() <= column.max() < len(category.values):
            raise ValueError(f"a code of the column {category.name[:60]!r} stands for no value")


def _check_column(name: str, column: Tensor) -> None:
    """Raise ValueError for a column of the wrong type or with values that are not finite."""
    kind, dimensions = COLUMN_TYPES.get(name, (None, 0))
    if (column.dtype, column.dim()) != (kind, dimensions):
        raise ValueError(f"its column {name[:60]!r} is {column.dtype} of {column.dim()} dimensions")
    # NaN and infinities show in minimum or maximum, which need no copy of the column.
    chunks = iterate_chunks(column.numpy()) if column.is_floating_point() and column.numel() else ()
    if not all(np.isfinite(chunk.min()) and np.isfinite(chunk.max()) for chunk in chunks):
        raise ValueError(f"its column {name!r} holds a value that is not finite")


def _get_event_columns(store: EventStore) -> dict[str, Tensor]:
    columns = {"src": store.src, "dst": store.dst, "time": store.time}
    columns |= {"edge": store.features.edge, "node": store.features.node}
    if store.features.codes is not None:
        columns["codes"] = store.features.codes
    rows = store.features.node_rows
    if rows is not None:
        values = {name: getattr(rows, name) for name in NODE_ROWS_COLUMNS} | {"known": rows.known.byte()}
        columns |= {f"node_rows_{name}": column for name, column in values.items()}
    return columns if store.label is None else columns | {"label": store.label}


def _get_id_columns(ids: NodeIds) -> dict[str, np.ndarray]:
    """Return the ids as columns, and which nodes are sources unless those are the first."""
    if ids.is_source is None:
        return _get_id_value_columns(ids)
    is_source = ids.is_source.to_numpy(zero_copy_only=False)
    sides = {} if is_source[: ids.sources].all() else {"ids_source": is_source.astype(np.uint8)}
    return _get_id_value_columns(ids) | sides


def _get_id_value_columns(ids: NodeIds) -> dict[str, np.ndarray]:
    if ids.kind == "int":
        return {"ids": ids.values.to_numpy(zero_copy_only=False)}
    # Copy first: a slice of a larger array would drag its whole buffer along.
    fresh = pa.concat_arrays([ids.values, pa.array([], pa.large_string())])
    _, offsets, text = fresh.buffers()
    count = len(fresh) + 1
    edges = np.frombuffer(offsets, np.int64, count) if offsets else np.zeros(1, np.int64)
    content = np.frombuffer(text, np.uint8) if text else np.zeros(0, np.uint8)
    return {"ids_bytes": content[: edges[-1]], "ids_offsets": edges}


def _make_id_array(columns: Mapping[str, np.ndarray]) -> pa.Array:
    if "ids" in columns:
        return pa.array(columns["ids"])
    offsets, text = columns["ids_offsets"], columns["ids_bytes"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    array = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
    array.validate(full=True)
    return array


def _hash_ids(ids: Mapping[str, np.ndarray], about: str) -> str:
    """Return the SHA-256 of what the events digest leaves out: the ids and the origin."""
    return _hash_columns({**ids, "about": np.frombuffer(about.encode(), np.uint8)})


def _hash_columns(columns: Mapping[str, Tensor] | Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of each column's name, dtype, shape and bytes, in order of the names."""
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        array = column.cpu().contiguous().numpy() if isinstance(column, Tensor) else column
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        for chunk in iterate_chunks(np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
            digest.update(chunk.data)
    return digest.hexdigest()
