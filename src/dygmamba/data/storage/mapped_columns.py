"""Columns whose pages are a file's: read where they are needed, given back when they were passed.

What is mapped counts as this process's memory as long as it was touched, although the system can take it back at any
time. Whoever walks over a column from end to end says so (`pieces`), and then has a piece of it at a time.

Numbers on the disk that outlive nobody: a column that grows by appending and is read a run of rows at a time.

The file has no name, so that neither an error nor a kill leaves it. What is written goes through the one writer; a full
disk is one sentence.

Sorted runs on the disk as one: which rows come next, without looking at more than so many of them.
"""

import io
import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import create_anonymous_file, write_at

CHUNK_BYTES = 1 << 24  # bytes looked at before they are given back
# private pages that are never written to need no room in memory and no swap, however large the file is
MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
_maps: "weakref.WeakValueDictionary[int, mmap.mmap]" = weakref.WeakValueDictionary()


def map_file(handle: int, *, shared: bool = False) -> mmap.mmap:
    """All pages of an open file; those of a shared one are never copied, those of others if they are written to."""
    if hasattr(mmap, "MAP_PRIVATE"):
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | MAP_NORESERVE
        found = mmap.mmap(handle, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    else:  # Windows
        found = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY)
    _maps[_get_map_address(found)] = found
    return found


def make_mapped_tensor(
    pages: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0
) -> Tensor:
    """A column that begins so many bytes behind the beginning of a file."""
    column = torch.empty(0, dtype=dtype).numpy()
    count = int(np.prod(shape))
    if not count:
        return torch.zeros(shape, dtype=dtype)
    if offset % column.itemsize:  # a file of another program
        raw = bytearray(pages[offset : offset + count * column.itemsize])
        return torch.frombuffer(raw, dtype=dtype).view(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.frombuffer(pages, column.dtype, count, offset).reshape(shape))


def release_pages(column: np.ndarray | Tensor) -> None:
    """A column's pages are not needed for now; where they are no file's, nothing happens."""
    if isinstance(column, Tensor):
        first, size = column.data_ptr(), column.numel() * column.element_size()
    else:
        first, size = column.ctypes.data, column.nbytes
    for start, pages in list(_maps.items()):
        if start <= first and first + size <= start + len(pages) and hasattr(pages, "madvise"):
            begin = (first - start) // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, begin, first + size - start - begin)


def iterate_slices(rows: int, width: int, size: int = CHUNK_BYTES) -> Iterator[slice]:
    """Rows of so many bytes in runs of at most `size` bytes."""
    step = max(1, size // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def iterate_chunks(column: np.ndarray, size: int = CHUNK_BYTES) -> Iterator[np.ndarray]:
    """A column that lies in one piece from its beginning to its end, each part given back when it was passed."""
    width = column.nbytes // max(1, len(column))
    for rows in iterate_slices(len(column), width, size):
        yield column[rows]
        release_pages(column[rows])


def _get_map_address(pages: mmap.mmap) -> int:
    return np.frombuffer(pages, np.uint8, 1).ctypes.data if len(pages) else 0


class ScratchColumn:
    """Rows of one type and width, in the order they were appended."""

    def __init__(self, folder: Path, dtype: type | np.dtype, width: tuple[int, ...] = ()) -> None:
        self.dtype, self.width, self._rows = np.dtype(dtype), width, 0
        self._folder = folder
        self._handle = create_anonymous_file(folder)
        self._file = io.FileIO(self._handle, "r+", closefd=False)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def __len__(self) -> int:
        return self._rows

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self.dtype.itemsize * int(np.prod(self.width))

    def append(self, rows: np.ndarray) -> None:
        """More rows behind the last one."""
        block = np.ascontiguousarray(rows, self.dtype)
        if block.nbytes:
            where = self._folder / "scratch"
            write_at(self._handle, self._rows * self.row_bytes, block.reshape(-1).view(np.uint8).data, where)
        self._rows += len(block)

    def read(self, start: int, stop: int) -> np.ndarray:
        """A copy of some rows."""
        found = np.empty((stop - start, *self.width), self.dtype)
        if found.nbytes:
            self._file.seek(start * self.row_bytes)
            rest = found.reshape(-1).view(np.uint8).data
            while rest:
                count = self._file.readinto(rest)
                if not count:
                    raise FileError(f"{self._folder} lost what was written there; run the command again")
                rest = rest[count:]
        return found

    def mapped(self) -> Tensor:
        """All rows as one column of mapped pages, which keeps the file as long as it is used."""
        kind = torch.from_numpy(np.empty(0, self.dtype)).dtype
        if not self._rows * self.row_bytes:
            return torch.zeros((self._rows, *self.width), dtype=kind)
        return make_mapped_tensor(map_file(self._handle, shared=True), kind, (self._rows, *self.width))


RowRanges = list[tuple[int, int]]


def merge_sorted_runs(
    time: ScratchColumn, runs: Sequence[int], most: int
) -> Iterator[tuple[RowRanges, np.ndarray | None]]:
    """Parts of the runs in their order, and the order of the rows of these parts; None: as they are.

    Run k goes from row `runs[k]` to `runs[k + 1]` and is sorted by time. Rows of one time keep the order of their runs,
    so a file that was cut into runs is sorted stably.
    """
    ends = [stop for _, stop in pairwise(runs)]
    at = list(runs[:-1])
    while left := [k for k in range(len(ends)) if at[k] < ends[k]]:
        each = max(1, most // len(left))
        ahead = {k: time.read(at[k], min(at[k] + each, ends[k])) for k in left}
        # what is earlier than this has been seen in every run
        bound = min((ahead[k][-1] for k in left if at[k] + each < ends[k]), default=np.inf)
        count = {k: int(np.searchsorted(ahead[k], bound)) for k in left}
        if any(count.values()):
            parts = [(at[k], at[k] + count[k]) for k in left if count[k]]
            times = np.concatenate([ahead[k][: count[k]] for k in left])
            yield parts, np.argsort(times, kind="stable") if len(parts) > 1 else None
            for k in left:
                at[k] += count[k]
        else:  # a tie that is longer than what is looked at: all of it, run by run
            for k in left:
                for part in _iterate_tied_rows(time, at[k], ends[k], bound, most):
                    yield [part], None
                    at[k] = part[1]


def _iterate_tied_rows(
    time: ScratchColumn, at: int, end: int, bound: float, most: int
) -> Iterator[tuple[int, int]]:
    """The rows of a run, from one on, that have this time."""
    while at < end:
        seen = time.read(at, min(at + most, end))
        count = int(np.searchsorted(seen, bound, side="right"))
        if count:
            yield at, at + count
        at += count
        if count < len(seen):
            return
