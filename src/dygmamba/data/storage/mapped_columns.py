"""Columns that are larger than memory: mapped from a file, appended to a scratch file, merged from sorted runs.

Pages of a mapped file count as memory of this process once they were touched, although the system can take them back at
any time. Code that passes over a whole column therefore uses `iterate_chunks`, which releases each chunk behind it.

A scratch column lives in a file without a name, so that neither an error nor a kill leaves it behind.
"""

import io
import mmap
import os
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

CHUNK_BYTES = 1 << 24  # bytes to pass over before their pages are released
_maps: "weakref.WeakValueDictionary[int, mmap.mmap]" = weakref.WeakValueDictionary()


def map_file(handle: int, *, writable: bool = False) -> mmap.mmap:
    """Map an open file into memory, shared: Linux counts private pages as data of this process, changed or not."""
    pages = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    _maps[np.frombuffer(pages, np.uint8, 1).ctypes.data if len(pages) else 0] = pages
    return pages


def make_mapped_tensor(
    pages: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0
) -> Tensor:
    """Create a tensor from mapped pages, `offset` bytes behind the beginning of the file."""
    column = torch.empty(0, dtype=dtype).numpy()
    count = int(np.prod(shape))
    if not count:
        return torch.zeros(shape, dtype=dtype)
    if offset % column.itemsize:  # not aligned: written by another program, so copy
        raw = bytearray(pages[offset : offset + count * column.itemsize])
        return torch.frombuffer(raw, dtype=dtype).view(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory; nothing writes to it
        return torch.from_numpy(np.frombuffer(pages, column.dtype, count, offset).reshape(shape))


def release_pages(column: np.ndarray | Tensor) -> None:
    """Give the pages of a mapped column back to the system; other columns are left alone."""
    if isinstance(column, Tensor):
        first, size = column.data_ptr(), column.numel() * column.element_size()
    else:
        first, size = column.ctypes.data, column.nbytes
    for start, pages in list(_maps.items()):
        if start <= first and first + size <= start + len(pages) and hasattr(pages, "madvise"):
            begin = (first - start) // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, begin, first + size - start - begin)


def iterate_slices(rows: int, width: int, size: int = CHUNK_BYTES) -> Iterator[slice]:
    """Yield slices of at most `size` bytes over rows of `width` bytes each."""
    step = max(1, size // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def iterate_chunks(column: np.ndarray, size: int = CHUNK_BYTES) -> Iterator[np.ndarray]:
    """Yield a contiguous column chunk by chunk and release the pages of each chunk behind it."""
    width = column.nbytes // max(1, len(column))
    for rows in iterate_slices(len(column), width, size):
        yield column[rows]
        release_pages(column[rows])


class ScratchColumn:
    """An append-only column in an anonymous file: rows of one dtype and width, read in ranges or mapped."""

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
        return self.dtype.itemsize * int(np.prod(self.width))

    def append(self, rows: np.ndarray) -> None:
        block = np.ascontiguousarray(rows, self.dtype)
        if block.nbytes:
            name = self._folder / "scratch"  # for error messages
            write_at(self._handle, self._rows * self.row_bytes, block.reshape(-1).view(np.uint8).data, name)
        self._rows += len(block)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of some rows."""
        shape = (stop - start, *self.width)
        self._file.seek(start * self.row_bytes)
        values = np.fromfile(self._file, self.dtype, int(np.prod(shape)))
        if len(values) < np.prod(shape):
            raise FileError(
                f"a temporary file in {self._folder} lost its content; run the command again",
                code="scratch-lost",
            )
        return values.reshape(shape)

    def mapped(self) -> Tensor:
        """Return all rows as one mapped tensor, which keeps the file alive."""
        kind = torch.from_numpy(np.empty(0, self.dtype)).dtype
        if not self._rows * self.row_bytes:
            return torch.zeros((self._rows, *self.width), dtype=kind)
        return make_mapped_tensor(map_file(self._handle, writable=True), kind, (self._rows, *self.width))


RowRanges = list[tuple[int, int]]  # first row and row behind the last


def merge_sorted_runs(
    time: ScratchColumn, runs: Sequence[int], max_rows: int
) -> Iterator[tuple[RowRanges, np.ndarray | None]]:
    """Merge sorted runs of rows with bounded memory (external merge sort).

    Run k is the rows from `runs[k]` to `runs[k + 1]`, sorted by time. Rows of the same time keep the order of their
    runs, so a file that was divided into runs is sorted stably.

    Args:
        time: Timestamps of all rows.
        runs: Boundaries of the runs.
        max_rows: Timestamps held in memory at a time.

    Yields:
        Row ranges that come next, and the order of their concatenated rows; None if they are in order already.
    """
    ends = [stop for _, stop in pairwise(runs)]
    position = list(runs[:-1])
    while open_runs := [k for k in range(len(ends)) if position[k] < ends[k]]:
        each = max(1, max_rows // len(open_runs))
        loaded = {k: time.read(position[k], min(position[k] + each, ends[k])) for k in open_runs}
        # Rows before this time are certainly loaded from every run.
        bound = min((loaded[k][-1] for k in open_runs if position[k] + each < ends[k]), default=np.inf)
        count = {k: int(np.searchsorted(loaded[k], bound)) for k in open_runs}
        if any(count.values()):
            parts = [(position[k], position[k] + count[k]) for k in open_runs if count[k]]
            times = np.concatenate([loaded[k][: count[k]] for k in open_runs])
            yield parts, np.argsort(times, kind="stable") if len(parts) > 1 else None
            for k in open_runs:
                position[k] += count[k]
        else:  # more rows of the same time than fit in memory: yield all of them, run by run
            for k in open_runs:
                for part in _iterate_tied_rows(time, position[k], ends[k], bound, max_rows):
                    yield [part], None
                    position[k] = part[1]


def _iterate_tied_rows(
    time: ScratchColumn, position: int, end: int, bound: float, max_rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows from `position` on that have the time `bound`."""
    while position < end:
        times = time.read(position, min(position + max_rows, end))
        count = int(np.searchsorted(times, bound, side="right"))
        if count:
            yield position, position + count
        position += count
        if count < len(times):
            return
