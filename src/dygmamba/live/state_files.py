"""Growing tables as one file: arrays with their spare capacity, mapped copy-on-write.

Replicas that map the same file share the pages that neither has changed, and opening it reads nothing. Spare capacity
is a hole in the file and takes no space on the disk. A file is never written again once it is mapped: a new state is
written beside the old one, and its description, which names it, is replaced at once.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.errors import FileError
from dygmamba.core.files.untrusted import locate_inside
from dygmamba.core.files.writing import (
    create_temporary_file,
    disk,
    make_folder,
    publish_path,
    sync_file,
    translate_os_errors,
    write_at,
    write_text,
)
from dygmamba.core.process_settings import extend_memory_limit
from dygmamba.ops.checksum import compute_checksum
from dygmamba.ops.growing import LEAST_SPARE, Growing, enlarge

FORMAT, VERSION = "dygmamba-live-state", 1
DESCRIPTION = "state.json"
ALIGNMENT = 4096
CHUNK = 1 << 24  # bytes that are written at once and have a checksum
READ_BYTES = 1 << 20
CHECKING_THREADS = 4
SMALL_BYTES = 1 << 24

Tables = Mapping[str, Growing]
Layout = dict[str, dict[str, Any]]  # dtype, shape and offset of each array by name


def list_arrays(tables: Tables) -> Iterator[tuple[str, Growing, str, int]]:
    """Yield the name of each array, its owner and attribute, and how many of its rows are in use."""
    for name, table in tables.items():
        yield from table.list_arrays(f"{name}/")


class ArrayWriter:
    """Writes arrays one after the other to an open file; `layout` says where they are.

    A table that is complete can be moved to the file, so that a build has one table in memory and not all of them.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle, self._path, self._end = handle, path, 0
        self.layout: Layout = {}

    def write(self, tables: Tables) -> list[tuple[str, Growing, str]]:
        """Write the arrays that are not in the file yet; return their names, owners and attributes."""
        written = []
        for name, owner, attribute, used in list_arrays(tables):
            if name not in self.layout:
                self._write_array(name, getattr(owner, attribute), used)
                written.append((name, owner, attribute))
        write_at(
            self._handle, self._end, b"\0", self._path
        )  # the spare capacity of the last array is part of the file
        return written

    def _write_array(self, name: str, column: np.ndarray, used: int) -> None:
        rows = max(len(column), used + used // 4 + LEAST_SPARE) if used < len(column) else len(column)
        content = np.ascontiguousarray(column[:used]).reshape(-1).view(np.uint8)
        checksums = []
        for begin in range(0, len(content), CHUNK):
            chunk = content[begin : begin + CHUNK]
            write_at(self._handle, self._end + begin, chunk.data, self._path)
            checksums.append(compute_checksum(chunk))
        part = {"dtype": column.dtype.str, "shape": [rows, *column.shape[1:]], "offset": self._end}
        self.layout[name] = {**part, "used": len(content), "checksums": checksums}
        self._end += -(-count_bytes(self.layout[name]) // ALIGNMENT) * ALIGNMENT

    def move(self, tables: Tables) -> None:
        """Write the arrays that are not in the file yet, and replace them by maps of it, which frees their memory."""
        written = self.write(tables)
        if os.name == "nt":  # Windows renames no mapped file
            return
        maps = map_arrays(self._handle, {name: self.layout[name] for name, _, _ in written})
        for name, owner, attribute in written:
            owner.put_array(attribute, maps[name])

    def finish(self) -> None:
        """Flush and close the file; Windows renames no open file."""
        sync_file(self._handle, self._path)
        self.close()

    def close(self) -> None:
        """Close the file, unless it is closed."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def count_bytes(part: Mapping[str, Any]) -> int:
    """Return the bytes of an array with its spare capacity."""
    return int(np.prod(part["shape"], dtype=np.int64)) * np.dtype(part["dtype"]).itemsize


def map_arrays(handle: int, layout: Layout) -> dict[str, np.ndarray]:
    """Map all arrays of an open file, each page copied when it is first changed; small arrays are read at once.

    The small ones are those of nodes, which every append changes in many places: copying their pages one by one makes
    the first appends slow.
    """
    arrays, end = {}, os.fstat(handle).st_size
    for name, part in layout.items():
        dtype, shape = np.dtype(part["dtype"]), tuple(part["shape"])
        count = int(np.prod(shape))
        if not count:  # of no length, such as features of events without any
            arrays[name] = np.zeros(shape, dtype)
            continue
        if part["offset"] + count * dtype.itemsize > end:
            raise ValueError(f"its array {name!r} is incomplete")
        # one map per array: systems may refuse a map that is larger than the memory, and half of it is spare capacity
        before = part["offset"] % mmap.ALLOCATIONGRANULARITY
        size, begin = before + count * dtype.itemsize, part["offset"] - before
        extend_memory_limit(size)
        content = mmap.mmap(handle, size, access=mmap.ACCESS_COPY, offset=begin)
        array = np.frombuffer(content, dtype, count, before).reshape(shape)
        used = part.get("used", array.nbytes) // (array.nbytes // shape[0])
        arrays[name] = enlarge(array, used, shape[0]) if array.nbytes <= SMALL_BYTES else array
    return arrays


def copy_arrays(tables: Tables) -> dict[str, np.ndarray]:
    """Return copies of all arrays in memory."""
    return {name: getattr(owner, attribute).copy() for name, owner, attribute, _ in list_arrays(tables)}


def list_integers(tables: Tables) -> dict[str, int]:
    """Return all integers of tables by name."""
    return {
        name: int(getattr(owner, attribute))
        for prefix, table in tables.items()
        for name, owner, attribute in table.list_integers(f"{prefix}/")
    }


def restore_tables(tables: Tables, arrays: Mapping[str, np.ndarray], integers: Mapping[str, int]) -> None:
    """Give tables these arrays and integers; raise ValueError if their names or types are not those of the tables."""
    places = {name: (owner, attribute) for name, owner, attribute, _ in list_arrays(tables)}
    if places.keys() != arrays.keys() or list_integers(tables).keys() != integers.keys():
        raise ValueError("its tables are not those of the model")
    for name, (owner, attribute) in places.items():
        own, given = getattr(owner, attribute), arrays[name]
        if own.dtype != given.dtype or own.shape[1:] != given.shape[1:]:
            raise ValueError(f"its array {name!r} has another type")
        owner.put_array(attribute, given)
    for prefix, table in tables.items():
        for name, owner, attribute in table.list_integers(f"{prefix}/"):
            setattr(owner, attribute, integers[name])


@contextmanager
def write_state(folder: Path) -> Iterator[tuple[ArrayWriter, Callable[[Tables, Mapping[str, Any]], None]]]:
    """Context manager: write tables to `folder`.

    Yields the writer and `finish(tables, about)`, which completes the files and replaces the previous state; `about`
    holds JSON values.
    """
    make_folder(folder)
    target = folder / DESCRIPTION
    part, handle = create_temporary_file(target)
    writer = ArrayWriter(handle, part)

    def finish(tables: Tables, about: Mapping[str, Any]) -> None:
        writer.write(tables)
        writer.finish()
        name = f"tables-{part.name.strip('.')}.bin"
        publish_path(part, folder / name)
        facts = {"format": FORMAT, "version": VERSION, "file": name, "arrays": writer.layout}
        write_text(target, json.dumps({**facts, "integers": list_integers(tables), "about": about}))
        for old in folder.glob("tables-*.bin"):
            if old.name != name:
                with translate_os_errors(old), suppress(PermissionError):  # Windows deletes no mapped file
                    disk.remove(old)

    try:
        yield writer, finish
    finally:
        writer.close()
        disk.remove(part)


def check_arrays(folder: Path) -> None:
    """Compare the arrays of a state with their checksums, in several threads; raise FileError if one differs."""
    facts = read_description(folder)
    path, arrays = folder / facts["file"], facts["arrays"].values()
    used = [
        (part["offset"] + CHUNK * k, min(CHUNK, part["used"] - CHUNK * k), checksum)
        for part in arrays
        for k, checksum in enumerate(part["checksums"])
    ]
    spare = [(path, part["offset"] + part["used"], part["offset"] + count_bytes(part)) for part in arrays]
    with ThreadPoolExecutor(CHECKING_THREADS) as pool:
        shares = [used[first::CHECKING_THREADS] for first in range(CHECKING_THREADS)]
        results = (
            pool.map(_have_checksums, [path] * CHECKING_THREADS, shares),
            pool.map(_is_empty, *zip(*spare, strict=True)),
        )
        is_intact = all(all(result) for result in results)
    if not is_intact:
        raise FileError(f"{path} is damaged; delete {folder}", code="damaged-state")


def _have_checksums(path: Path, parts: list[tuple[int, int, int]]) -> bool:
    """Return whether parts of a file, each with its offset and size, have their checksums."""
    buffer = np.empty(CHUNK, np.uint8)  # one for all: new memory costs more than the checksum
    with open(path, "rb", buffering=0) as file:
        for offset, size, checksum in parts:
            file.seek(offset)
            count = 0
            while count < size and (read := file.readinto(buffer[count:size].data)):
                count += read
            if compute_checksum(buffer[:count]) != checksum:
                return False
    return True


def _is_empty(path: Path, begin: int, end: int) -> bool:
    """Return whether a part of a file holds zeros; holes, of which it consists unless it was copied, are not read."""
    with open(path, "rb", buffering=0) as file:
        while begin < end:
            with suppress(AttributeError):  # a system that does not tell where holes are
                try:
                    begin = os.lseek(file.fileno(), begin, os.SEEK_DATA)
                except OSError:  # nothing but a hole follows
                    return True
            file.seek(begin)
            content = file.read(min(READ_BYTES, max(0, end - begin)))
            if content.count(0) != len(content):
                return False
            begin += max(len(content), 1)
    return True


def read_description(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote about a state; raise FileError if there is none or it is damaged."""
    path = folder / DESCRIPTION
    try:
        facts = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{folder} holds no saved state; save one first", code="no-saved-state") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}); delete it", code="damaged-state") from error
    if not isinstance(facts, dict) or (facts.get("format"), facts.get("version")) != (FORMAT, VERSION):
        raise FileError(f"{path} is no state of this version; delete it", code="unsupported-format-version")
    locate_inside(folder, facts.get("file"), path)
    return facts
