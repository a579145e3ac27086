"""Entries of an index that are a file's pages: made once in little memory, and kept beside the dataset they are of.

A file is found by what it is of: the digest of the dataset, and of the events that are listed. One that is damaged, or
of another state of the data, is made again; a folder that cannot be written to costs that in every process.

Legend: e events, s events of the index.

Fading counts that do not fit into memory: made in one pass over an index, some nodes at a time, as mapped pages.

An index lists a node's events together, so all counts of a node, and of its pairs, are made where it stands; the lists
of a run of nodes are written behind those of the nodes before. They are in the order of their keys, which is how they
are found. The files have no names and are gone with the process.

Legend: g groups, m entries, s scales.
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

from dygmamba.core.errors import EventError, FileError, WriteError
from dygmamba.core.files.writing import remove_file
from dygmamba.core.memory_budget import DEFAULT_BUDGET
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.locations import INDEX_FOLDER
from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_chunks, iterate_slices, release_pages
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.data.storage.tensor_file import TensorFileWriter, compute_seal, map_tensors, read_seal
from dygmamba.ops.decayed_counts import DecayedCounts, build_decayed_counts
from dygmamba.ops.recent_neighbors import Adjacency
from dygmamba.ops.recent_neighbors.counting_sort import ENTRY_BYTES, count_entries, sort_entries, split_nodes

MAX_ENTRY_BYTES = DEFAULT_BUDGET // 4  # bytes of entries that are made and held in memory
ENTRY_COLUMNS = {"key": torch.int64, "neighbor": torch.int32, "event": torch.int32, "time": torch.float64}
DIGEST_ROWS = 1 << 8  # rows that tell a store from one that was made of it: each costs a page or some


@dataclass(frozen=True, slots=True)
class IndexedEvents:
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
        for rows in iterate_slices(len(self), 8):
            event = torch.arange(rows.start, rows.stop) if self.event is None else self.event[rows]
            span = slice(int(event[0]), int(event[-1]) + 1)
            found = [column[span] for column in self.columns]
            chosen = found if len(event) == len(found[0]) else [part[event - span.start] for part in found]
            src, dst, time = (column.numpy() for column in chosen)
            yield src, dst, time, event.numpy()
            for part in found:
                release_pages(part)


def needs_disk_index(events: int) -> bool:
    """Whether the entries of so many events are better kept on the disk."""
    return 2 * ENTRY_BYTES * events > MAX_ENTRY_BYTES


def load_disk_entries(store: EventStore, edges: IndexedEvents) -> tuple[Adjacency, MappedFile]:
    """The entries of these events of a store, as pages of a file that is there or is made."""
    key = _index_key(store, edges)
    if store.source is None or not store.source.digest:
        return _build_temporary_entries(store, edges, key)
    path = store.source.path.parent / INDEX_FOLDER / f"{store.source.digest[:16]}-{key[:16]}"
    with suppress(FileError, FileNotFoundError):
        return _open_entries(path, store, key)
    try:
        _write_entries(path, edges, key)
    except WriteError:  # its folder is not ours to write to
        return _build_temporary_entries(store, edges, key)
    return _open_entries(path, store, key)


def _build_temporary_entries(
    store: EventStore, edges: IndexedEvents, key: str
) -> tuple[Adjacency, MappedFile]:
    """A file that is gone when nobody looks into it any more."""
    path = Path(gettempdir()) / f"dygmamba-{id(store):x}-{key[:16]}"
    _write_entries(path, edges, key)
    try:
        return _open_entries(path, store, key)
    finally:
        with suppress(WriteError):  # Windows does not remove what is open
            remove_file(path)


def _write_entries(path: Path, edges: IndexedEvents, key: str) -> None:
    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return ((src, dst, event) for src, dst, _, event in edges.blocks())

    event_time, start = edges.columns[2].numpy(), count_entries(blocks, edges.num_nodes)
    shapes = {name: (dtype, (int(start[-1]),)) for name, dtype in ENTRY_COLUMNS.items()}
    shapes["start"] = (torch.int64, start.shape)
    with TensorFileWriter(path, shapes, {"format": "dygmamba-index", "key": key}) as file:
        file.put("start", 0, start)
        for low, high in split_nodes(start, MAX_ENTRY_BYTES // ENTRY_BYTES):
            made = sort_entries(blocks, event_time, start, low, high)
            for name, column in zip(ENTRY_COLUMNS, made, strict=True):
                file.put(name, int(start[low]), column)
            del made


def _open_entries(path: Path, store: EventStore, key: str) -> tuple[Adjacency, MappedFile]:
    """The entries of a file that is whole; what is not is a FileError."""
    source = MappedFile.of(path)
    try:
        tensors, metadata = map_tensors(path, source.handle.number)
        whole = compute_seal(source.handle.number) == read_seal(path).encode()
        entries = Adjacency(
            *(tensors[name] for name in ("start", "key", "neighbor", "event", "time")), event_time=store.time
        )
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is no index; remove it") from error
    if not whole or metadata.get("key") != key:
        raise FileError(f"{path} is damaged; remove it")
    source.check()
    return entries, source


def _index_key(store: EventStore, edges: IndexedEvents) -> str:
    """What the entries are of: the store, by its digest and some of its rows, and which of its events."""
    digest = "" if store.source is None else store.source.digest
    sha = hashlib.sha256(f"{digest} {len(store)} {store.num_nodes}".encode())
    step = max(1, len(store) // DIGEST_ROWS)
    for column in edges.columns:
        sha.update(column[::step].contiguous().numpy().tobytes())
    if edges.event is not None:
        for piece in iterate_chunks(edges.event.contiguous().numpy()):
            sha.update(piece.data)
    return sha.hexdigest()


MAX_COUNT_BYTES = DEFAULT_BUDGET  # bytes of lists that are held in memory
NUMBERS_PER_ENTRY = 16  # numbers of 64 bits per entry and scale that are in memory at a time, at most


def needs_disk_counts(events: int, scales: int) -> bool:
    """Whether the lists of so many events, five kinds of them and one of both ends, are better kept on the disk."""
    return 6 * 8 * (1 + scales) * events > MAX_COUNT_BYTES


class DiskCountGroups:
    """The lists of one kind, asked as `counts.Grouped` is; they do not grow."""

    def __init__(self, key: Int64[Tensor, "g"], lists: DecayedCounts) -> None:
        self._key, self.lists = key, lists

    def append(self, key: Int64[Tensor, "e"], time: Float64[Tensor, "e"]) -> None:
        """Later events are a new stream."""
        raise EventError("counts that are kept on the disk take no more events; build them anew")

    def group(self, key: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The group of each key, -1 where it never occurred; a key may be negative for nobody's."""
        if not len(self._key):
            return torch.full_like(key, -1)
        place = torch.searchsorted(self._key, key.contiguous()).clamp(max=len(self._key) - 1)
        return torch.where(self._key[place] == key, place, -1)


class _CountGroupWriter:
    """The lists of one kind while they are made."""

    def __init__(self, folder: Path, scale: Float64[Tensor, "s"]) -> None:
        self._scale = scale
        self._key, self._start, self._size = (ScratchColumn(folder, np.int64) for _ in range(3))
        self._time, self._running = (
            ScratchColumn(folder, np.float64),
            ScratchColumn(folder, np.float64, (len(scale),)),
        )

    def add(self, key: np.ndarray, time: np.ndarray) -> None:
        """Entries whose keys are above all that were added, in time order for each key."""
        if not len(key):
            return
        known, group = np.unique(key, return_inverse=True)
        made = build_decayed_counts(torch.from_numpy(group), torch.from_numpy(time), len(known), self._scale)
        self._key.append(known)
        self._start.append(made.start.numpy() + len(self._time))
        self._size.append(made.size.numpy())
        self._time.append(made.time.numpy())
        self._running.append(made.running.numpy())

    def finish(self) -> DiskCountGroups:
        """The lists as mapped pages."""
        size = self._size.mapped()
        columns = (self._start.mapped(), size, size, self._time.mapped(), self._running.mapped())
        return DiskCountGroups(self._key.mapped(), DecayedCounts(*columns, self._scale, used=len(self._time)))


def build_disk_counts(
    entries: Adjacency, src: Int64[Tensor, "e"], scale: Float64[Tensor, "s"], folder: Path
) -> dict[str, DiskCountGroups]:
    """The lists of every kind that `counts` knows, of all events that are entries; `src` are the stream's sources."""
    made: dict[str, _CountGroupWriter] = {}
    most = max(1, DEFAULT_BUDGET // (8 * NUMBERS_PER_ENTRY * (4 + len(scale))))
    for low, high in split_nodes(entries.start.numpy(), most):
        for kind, key, time in _iterate_kinds(entries, src, low, high):
            if kind not in made:
                made[kind] = _CountGroupWriter(folder, scale)
            made[kind].add(key, time)
    return {kind: lists.finish() for kind, lists in made.items()}


def _iterate_kinds(
    entries: Adjacency, src: Tensor, low: int, high: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Keys and times of every kind of list that a run of nodes has; a self-loop, listed twice, is one event."""
    start, nodes = entries.start.numpy(), len(entries.start) - 1
    rows = slice(int(start[low]), int(start[high]))
    node = np.repeat(np.arange(low, high), np.diff(start[low : high + 1]))
    other, event, time = (column[rows].numpy() for column in (entries.neighbor, entries.event, entries.time))
    other, loop = other.astype(np.int64), other == node
    once = np.ones(len(node), bool)
    once[1:] = ~(loop[1:] & loop[:-1] & (event[1:] == event[:-1]) & (node[1:] == node[:-1]))
    sends = src.numpy()[event] == node
    pair = node * nodes + other
    for kind, chosen, key in (
        ("node", once, node),
        ("pair", once & (node <= other), pair),
        ("sent", once & sends, node),
        ("received", once & (~sends | loop), node),
        ("way", once & sends, pair),
    ):
        yield kind, key[chosen], time[chosen]
    for column in (entries.neighbor, entries.event, entries.time):
        release_pages(column[rows])
    release_pages(src)
