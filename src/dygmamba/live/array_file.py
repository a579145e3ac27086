"""Growing tables in one file: arrays with their spare capacity, mapped copy-on-write.

Replicas that map the same file share the pages that neither has changed, and opening it reads nothing. Spare capacity
is a hole in the file and takes no space on the disk. A file is never written again once it is mapped.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_at
from dygmamba.core.process_settings import extend_memory_limit
from dygmamba.ops.growing import LEAST_SPARE, Growing, enlarge

ALIGNMENT = 4096
CHUNK = 1 << 24  # bytes that are written at once and have a checksum
READ_BYTES = 1 << 20
CHECKING_THREADS = 4
SMALL_BYTES = 1 << 24

Tables = Mapping[str, Growing]
Layout = dict[str, dict[str, Any]]  # dtype, shape, offset, bytes in use and checksums of each array by name


def list_arrays(tables: Tables) -> Iterator[tuple[str, Growing, str, int]]:
    """Yield the name of each array, its owner and attribute, and how many of its rows are in use."""
    for name, table in tables.items():
        yield from table.list_arrays(f"{name}/")


class ArrayWriter:
    """Writes arrays one after the other to an open file; `layout` says where they are, `end` where the last one ends.

    A table that is complete can be moved to the file, so that a build has one table in memory and not all of them.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle, self._path, self.end = handle, path, 0
        self.layout: Layout = {}

    def write(self, tables: Tables) -> list[tuple[str, Growing, str]]:
        """Write the arrays that are not in the file yet; return their names, owners and attributes."""
        written = []
        for name, owner, attribute, used in list_arrays(tables):
            if name not in self.layout:
                self._write_array(name, getattr(owner, attribute), used)
                written.append((name, owner, attribute))
        # the spare capacity of the last array is part of the file
        write_at(self._handle, self.end, b"\0", self._path)
        return written

    def _write_array(self, name: str, column: np.ndarray, used: int) -> None:
        rows = max(len(column), used + used // 4 + LEAST_SPARE) if used < len(column) else len(column)
        content = np.ascontiguousarray(column[:used]).reshape(-1).view(np.uint8)
        checksums = []
        for begin in range(0, len(content), CHUNK):
            chunk = content[begin : begin + CHUNK]
            write_at(self._handle, self.end + begin, chunk.data, self._path)
            checksums.append(compute_checksum(chunk))
        part = {"dtype": column.dtype.str, "shape": [rows, *column.shape[1:]], "offset": self.end}
        self.layout[name] = {**part, "used": len(content), "checksums": checksums}
        self.end += -(-count_bytes(self.layout[name]) // ALIGNMENT) * ALIGNMENT

    def move(self, tables: Tables) -> None:
        """Write the arrays that are not in the file yet, and replace them by maps of it, which frees their memory."""
        written = self.write(tables)
        if os.name == "nt":  # Windows renames no mapped file
            return
        maps = map_arrays(self._handle, {name: self.layout[name] for name, _, _ in written})
        for name, owner, attribute in written:
            owner.put_array(attribute, maps[name])


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
        used = part["used"] // (array.nbytes // shape[0])
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


def compute_checksum(content: np.ndarray) -> int:
    """Return a checksum of at most CHUNK bytes, to notice damage; SHA-256 takes seven times as long.

    It is the sum modulo 2^64 of the 64-bit words, each times an odd number of its own: a change of a single word always
    changes it.
    """
    whole = len(content) // 8
    rest = np.zeros(8, np.uint8)
    rest[: len(content) % 8] = content[8 * whole :]
    weights = _make_weights()
    last = int(rest.view(np.uint64)[0]) * int(weights[whole]) + len(content)
    return (int(np.dot(content[: 8 * whole].view(np.uint64), weights[:whole])) + last) % 2**64


@cache
def _make_weights() -> np.ndarray:
    golden = np.uint64(0x9E3779B97F4A7C15)  # odd, so that all products are odd and different
    return (2 * np.arange(CHUNK // 8 + 1, dtype=np.uint64) + np.uint64(1)) * golden


def check_arrays(path: Path, layout: Layout) -> None:
    """Compare the arrays of a file with their checksums, in several threads; raise FileError if one differs."""
    used = [
        (part["offset"] + CHUNK * k, min(CHUNK, part["used"] - CHUNK * k), checksum)
        for part in layout.values()
        for k, checksum in enumerate(part["checksums"])
    ]
    with ThreadPoolExecutor(CHECKING_THREADS) as pool:
        shares = [used[first::CHECKING_THREADS] for first in range(CHECKING_THREADS)]
        is_intact = all(pool.map(_have_checksums, [path] * CHECKING_THREADS, shares))
    if not is_intact or not all(_has_empty_spare(path, part) for part in layout.values()):
        raise FileError(f"{path} is damaged; delete it", code="damaged-state")


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


def _has_empty_spare(path: Path, part: Mapping[str, Any]) -> bool:
    """Return whether spare capacity holds zeros; holes, of which it consists unless it was copied, are not read."""
    begin, end = part["offset"] + part["used"], part["offset"] + count_bytes(part)
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
