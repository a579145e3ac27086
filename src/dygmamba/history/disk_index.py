"""Neighbor index and decayed counts on disk, for streams whose index does not fit into memory or has many readers.

The entries of a neighbor index are written once, in little memory, to a file beside the dataset and mapped from there.
So the processes of a machine share its pages: those of one training, the workers of an engine, trainings side by side.
The file name holds the digests of the dataset and of the indexed events. A damaged or outdated file is written again;
if the folder is not writable, every process builds a temporary file.

Decayed counts are built in one pass over the index, a range of nodes at a time: the index lists a node's events
together, so the counts of the node and of its pairs are complete where it stands. Their groups are in the order of
their keys, by which they are found. Their files are anonymous and vanish with the process.

Legend: e events, s events of the index (scales, in counts), g groups, m entries.
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

from dygmamba.core.errors import FileError, WriteError
from dygmamba.core.files.locking import hold_lock
from dygmamba.core.files.writing import make_folder, remove_file
from dygmamba.core.memory_budget import DEFAULT_BUDGET
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.locations import INDEX_FOLDER
from dygmamba.data.storage.mapped_columns import ScratchColumn, iterate_chunks, iterate_slices, release_pages
from dygmamba.data.storage.mapped_file import MappedFile
from dygmamba.data.storage.tensor_file import TensorFileWriter, compute_seal, map_tensors, read_seal
from dygmamba.history.block_lists import CountLists, SortedKeys, directed_key
from dygmamba.ops.recent_neighbors import NeighborEntries
from dygmamba.ops.recent_neighbors.counting_sort import ENTRY_BYTES, count_entries, sort_entries, split_nodes

MAX_ENTRY_BYTES = DEFAULT_BUDGET // 4  # an index with more bytes of entries goes to disk
MAX_COPIED_BYTES = DEFAULT_BUDGET // 32  # so does one with more bytes that other processes can map as well
ENTRY_COLUMNS = {"neighbor": torch.int32, "event": torch.int32, "time": torch.float64}
WRITE_SECONDS = 3600.0  # to wait for another process that writes the same file
DIGEST_ROWS = 1 << 8  # sampled rows in the key of an index; each may cost reading a page


@dataclass(frozen=True, slots=True)
class IndexedEvents:
    """Events of an index in time order, on the host; `event` are their rows in the columns (None: all rows)."""

    columns: tuple[Int64[Tensor, "e"], Int64[Tensor, "e"], Float64[Tensor, "e"]]
    num_nodes: int
    event: Int64[Tensor, "s"] | None = None

    def __len__(self) -> int:
        return len(self.columns[2] if self.event is None else self.event)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Iterate over (source, destination, time, row) in blocks; mapped pages are released after each block."""
        for rows in iterate_slices(len(self), 8):
            event = torch.arange(rows.start, rows.stop) if self.event is None else self.event[rows]
            span = slice(int(event[0]), int(event[-1]) + 1)
            parts = [column[span] for column in self.columns]
            chosen = parts if len(event) == len(parts[0]) else [part[event - span.start] for part in parts]
            src, dst, time = (column.numpy() for column in chosen)
            yield src, dst, time, event.numpy()
            for part in parts:
                release_pages(part)


def needs_disk_index(events: int, store: EventStore | None = None) -> bool:
    """Return whether the index of this many events belongs on disk; of a store with a file, processes can share it."""
    is_shared = store is not None and store.source is not None and bool(store.source.digest)
    return 2 * ENTRY_BYTES * events > (MAX_COPIED_BYTES if is_shared else MAX_ENTRY_BYTES)


def load_disk_entries(store: EventStore, edges: IndexedEvents) -> tuple[NeighborEntries, MappedFile]:
    """Map the index entries of these events from their file, which is written first if it is missing or damaged."""
    key = _index_key(store, edges)
    if store.source is None or not store.source.digest:
        return _build_temporary_entries(store, edges, key)
    path = store.source.path.parent / INDEX_FOLDER / f"{store.source.digest[:16]}-{key[:16]}"
    with suppress(FileError, FileNotFoundError):
        return _open_entries(path, key)
    try:
        make_folder(path.parent)
        with hold_lock(
            path.with_suffix(".lock"), WRITE_SECONDS
        ):  # processes that start together share one file
            with suppress(FileError, FileNotFoundError):
                return _open_entries(path, key)
            _write_entries(path, edges, key)
    except FileError:  # the dataset's folder is read-only
        return _build_temporary_entries(store, edges, key)
    return _open_entries(path, key)


def _build_temporary_entries(
    store: EventStore, edges: IndexedEvents, key: str
) -> tuple[NeighborEntries, MappedFile]:
    """Map the entries from a temporary file, which is unlinked at once and vanishes when it is closed."""
    path = Path(gettempdir()) / f"dygmamba-{id(store):x}-{key[:16]}"
    _write_entries(path, edges, key)
    try:
        return _open_entries(path, key)
    finally:
        with suppress(WriteError):  # Windows cannot remove an open file
            remove_file(path)


def _write_entries(path: Path, edges: IndexedEvents, key: str) -> None:
    start = count_entries(edges.blocks, edges.num_nodes)
    shapes = {name: (dtype, (int(start[-1]),)) for name, dtype in ENTRY_COLUMNS.items()}
    shapes["start"] = (torch.int64, start.shape)
    with TensorFileWriter(path, shapes, {"format": "dygmamba-index", "key": key}) as file:
        file.put("start", 0, start)
        for low, high in split_nodes(start, MAX_ENTRY_BYTES // ENTRY_BYTES):
            columns = sort_entries(edges.blocks, start, low, high)
            for name, column in zip(ENTRY_COLUMNS, columns, strict=True):
                file.put(name, int(start[low]), column)
            del columns  # before the next range is sorted: both together would double the peak


def _open_entries(path: Path, key: str) -> tuple[NeighborEntries, MappedFile]:
    """Map the entries of a file; raise FileError if it is damaged or belongs to other events."""
    source = MappedFile.open(path)
    try:
        tensors, metadata = map_tensors(path, source.handle.number)
        whole = compute_seal(source.handle.number) == read_seal(path).encode()
        start, *columns = (tensors[name] for name in ("start", *ENTRY_COLUMNS))
        entries = NeighborEntries(start[:-1], start.diff(), *columns)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is not an index file; remove it", code="damaged-index") from error
    if not whole or metadata.get("key") != key:
        raise FileError(f"the index file {path} is damaged; remove it", code="damaged-index")
    source.check()
    return entries, source


def _index_key(store: EventStore, edges: IndexedEvents) -> str:
    """Return a digest of the store (its own digest and a sample of its rows) and of the indexed events."""
    digest = "" if store.source is None else store.source.digest
    sha = hashlib.sha256(f"{digest} {len(store)} {store.num_nodes}".encode())
    step = max(1, len(store) // DIGEST_ROWS)
    for column in edges.columns:
        sha.update(column[::step].contiguous().numpy().tobytes())
    if edges.event is not None:
        for piece in iterate_chunks(edges.event.contiguous().numpy()):
            sha.update(piece.data)
    return sha.hexdigest()


MAX_COUNT_BYTES = DEFAULT_BUDGET  # counts with more bytes go to disk
NUMBERS_PER_ENTRY = 16  # 64-bit numbers per entry and scale that are in memory at a time, at most


def needs_disk_counts(events: int, scales: int) -> bool:
    """Return whether the counts of this many events belong on disk."""
    # five kinds of groups, of which "node" lists each event under both endpoints
    return 6 * 8 * (1 + scales) * events > MAX_COUNT_BYTES


class _CountListWriter:
    """Writer of the counts of one kind, in the order of their keys."""

    def __init__(self, folder: Path, scale: Float64[np.ndarray, "s"]) -> None:
        self._scale = scale
        self._key, self._start, self._size = (ScratchColumn(folder, np.int64) for _ in range(3))
        self._time = ScratchColumn(folder, np.float64)
        self._running = ScratchColumn(folder, np.float64, (len(scale),))

    def add(self, key: np.ndarray, time: np.ndarray) -> None:
        """Add entries whose keys are greater than all keys before, in time order for each key."""
        if not len(key):
            return
        keys, group = np.unique(key, return_inverse=True)
        counts = CountLists(self._scale)
        counts.append(group, time)
        self._key.append(keys)
        self._start.append(counts.start + len(self._time))
        self._size.append(counts.size)
        self._time.append(counts.time)
        self._running.append(counts.running)

    def finish(self) -> CountLists:
        """Return the counts, mapped from their files."""
        columns = (self._key, self._start, self._size, self._time, self._running)
        key, start, size, time, running = (column.mapped().numpy() for column in columns)
        lists = CountLists(self._scale, SortedKeys(key))
        lists.groups, lists.used = len(key), len(time)
        lists.start, lists.size, lists.room, lists.time, lists.running = start, size, size, time, running
        return lists


def build_disk_counts(
    entries: NeighborEntries, src: Int64[Tensor, "e"], scale: Float64[np.ndarray, "s"], folder: Path
) -> dict[str, CountLists]:
    """Build the decayed counts of every kind of `EventCounts` from the entries of an index.

    Args:
        entries: Entries of all counted events.
        src: Sources of the whole stream, by event.
        scale: Time scales of the decay.
        folder: Where the anonymous files are created.
    """
    writers: dict[str, _CountListWriter] = {}
    most = max(1, DEFAULT_BUDGET // (8 * NUMBERS_PER_ENTRY * (4 + len(scale))))
    bounds = np.append(entries.start.numpy(), len(entries.time))
    for low, high in split_nodes(bounds, most):
        for kind, key, time in _iterate_kinds(entries, src, low, high):
            if kind not in writers:
                writers[kind] = _CountListWriter(folder, scale)
            writers[kind].add(key, time)
    return {kind: writer.finish() for kind, writer in writers.items()}


def _iterate_kinds(
    entries: NeighborEntries, src: Tensor, low: int, high: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Iterate over (kind, keys, times) of the groups that a range of nodes has."""
    start, size = int(entries.start[low]), entries.size.numpy()[low:high]
    rows = slice(start, start + int(size.sum()))
    node = np.repeat(np.arange(low, high), size)
    other, event, time = (column[rows].numpy() for column in (entries.neighbor, entries.event, entries.time))
    other, loop = other.astype(np.int64), other == node
    once = np.ones(
        len(node), bool
    )  # a self-loop has two entries, one after the other, and counts as one event
    once[1:] = ~(loop[1:] & loop[:-1] & (event[1:] == event[:-1]) & (node[1:] == node[:-1]))
    sends = src.numpy()[event] == node
    pair = directed_key(node, other)
    for kind, chosen, key in (
        ("node", once, node),
        ("pair", once & (node <= other), pair),
        ("sent", once & sends, node),
        ("received", once & (~sends | loop), node),
        ("directed_pair", once & sends, pair),
    ):
        yield kind, key[chosen], time[chosen]
    for column in (entries.neighbor, entries.event, entries.time):
        release_pages(column[rows])
    release_pages(src)
