"""Entries of an index that are a file's pages: made once in little memory, and kept beside the dataset they are of.

A file is found by what it is of: the digest of the dataset, and of the events that are listed. One that is damaged, or
of another state of the data, is made again; a folder that cannot be written to costs that in every process.

Legend: e events, s events of the index.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import torch
from jaxtyping import Float64, Int64
from safetensors import SafetensorError
from torch import Tensor

from dygmamba.data.events import EventStore
from dygmamba.data.filling import Filling, seal_bytes
from dygmamba.data.mapped import MappedFile
from dygmamba.data.pages import cuts, pieces, release
from dygmamba.data.places import INDEX_FOLDER
from dygmamba.data.tensor_file import map_tensors, seal_of
from dygmamba.errors import FileError, WriteError
from dygmamba.files.writing import remove_file
from dygmamba.ops.recent import Adjacency
from dygmamba.ops.recent.passes import ENTRY_BYTES, entries_of, first_entries, passes
from dygmamba.room import BUDGET

LARGE = BUDGET // 4  # bytes of entries that are made and held in memory
COLUMNS = {"key": torch.int64, "neighbor": torch.int32, "event": torch.int32, "time": torch.float64}
SAMPLE = 1 << 8  # rows that tell a store from one that was made of it: each costs a page or some


@dataclass(frozen=True, slots=True)
class Edges:
    """The events of an index in time order, on the host; `event` are their rows in the columns, None: all of them."""

    columns: tuple[Int64[Tensor, "e"], Int64[Tensor, "e"], Float64[Tensor, "e"]]
    num_nodes: int
    event: Int64[Tensor, "s"] | None = None

    def __len__(self) -> int:
        return len(self.columns[2] if self.event is None else self.event)

    @property
    def src(self) -> Int64[Tensor, "s"]:
        """Sources."""
        return self._chosen(0)

    @property
    def dst(self) -> Int64[Tensor, "s"]:
        """Destinations."""
        return self._chosen(1)

    @property
    def time(self) -> Float64[Tensor, "s"]:
        """Times."""
        return self._chosen(2)

    def _chosen(self, column: int) -> Tensor:
        found = self.columns[column]
        return found if self.event is None else found[self.event]

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Source, destination, time and row, some events at a time; mapped pages are given back behind them."""
        for rows in cuts(len(self), 8):
            event = torch.arange(rows.start, rows.stop) if self.event is None else self.event[rows]
            span = slice(int(event[0]), int(event[-1]) + 1)
            found = [column[span] for column in self.columns]
            chosen = found if len(event) == len(found[0]) else [part[event - span.start] for part in found]
            src, dst, time = (column.numpy() for column in chosen)
            yield src, dst, time, event.numpy()
            for part in found:
                release(part)


def is_large(events: int) -> bool:
    """Whether the entries of so many events are better kept on the disk."""
    return 2 * ENTRY_BYTES * events > LARGE


def kept_entries(store: EventStore, edges: Edges) -> tuple[Adjacency, MappedFile]:
    """The entries of these events of a store, as pages of a file that is there or is made."""
    key = _key(store, edges)
    if store.source is None or not store.source.digest:
        return _in_passing(store, edges, key)
    path = store.source.path.parent / INDEX_FOLDER / f"{store.source.digest[:16]}-{key[:16]}"
    with suppress(FileError, FileNotFoundError):
        return _opened(path, store, key)
    try:
        _make(path, edges, key)
    except WriteError:  # its folder is not ours to write to
        return _in_passing(store, edges, key)
    return _opened(path, store, key)


def _in_passing(store: EventStore, edges: Edges, key: str) -> tuple[Adjacency, MappedFile]:
    """A file that is gone when nobody looks into it any more."""
    path = Path(gettempdir()) / f"dygmamba-{id(store):x}-{key[:16]}"
    _make(path, edges, key)
    try:
        return _opened(path, store, key)
    finally:
        with suppress(WriteError):  # Windows does not remove what is open
            remove_file(path)


def _make(path: Path, edges: Edges, key: str) -> None:
    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return ((src, dst, event) for src, dst, _, event in edges.blocks())

    event_time, start = edges.columns[2].numpy(), first_entries(blocks, edges.num_nodes)
    shapes = {name: (dtype, (int(start[-1]),)) for name, dtype in COLUMNS.items()}
    shapes["start"] = (torch.int64, start.shape)
    with Filling(path, shapes, {"format": "dygmamba-index", "key": key}) as file:
        file.put("start", 0, start)
        for low, high in passes(start, LARGE // ENTRY_BYTES):
            made = entries_of(blocks, event_time, start, low, high)
            for name, column in zip(COLUMNS, made, strict=True):
                file.put(name, int(start[low]), column)
            del made


def _opened(path: Path, store: EventStore, key: str) -> tuple[Adjacency, MappedFile]:
    """The entries of a file that is whole; what is not is a FileError."""
    source = MappedFile.of(path)
    try:
        tensors, metadata = map_tensors(path, source.handle.number)
        whole = seal_bytes(source.handle.number) == seal_of(path).encode()
        entries = Adjacency(
            *(tensors[name] for name in ("start", "key", "neighbor", "event", "time")), event_time=store.time
        )
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is no index; remove it") from error
    if not whole or metadata.get("key") != key:
        raise FileError(f"{path} is damaged; remove it")
    source.check()
    return entries, source


def _key(store: EventStore, edges: Edges) -> str:
    """What the entries are of: the store, by its digest and some of its rows, and which of its events."""
    digest = "" if store.source is None else store.source.digest
    sha = hashlib.sha256(f"{digest} {len(store)} {store.num_nodes}".encode())
    step = max(1, len(store) // SAMPLE)
    for column in edges.columns:
        sha.update(column[::step].contiguous().numpy().tobytes())
    if edges.event is not None:
        for piece in pieces(edges.event.contiguous().numpy()):
            sha.update(piece.data)
    return sha.hexdigest()
