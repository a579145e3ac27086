"""Columns that are larger than memory: mapped from a file, or appended to a scratch file.

Pages of a mapped file count as memory of this process once they were touched, although the system can take them back at
any time. Code that passes over a whole column therefore uses `iterate_chunks`, which releases each chunk behind it.

A scratch column lives in a file without a name, so that neither an error nor a kill leaves it behind.
"""

import mmap
import os
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dygmamba.core.files.writing import create_anonymous_file, write_at

CHUNK_BYTES = 1 << 24  # bytes to pass over before their pages are released
_maps: "weakref.WeakValueDictionary[int, mmap.mmap]" = weakref.WeakValueDictionary()


def map_file(handle: int, *, writable: bool = False) -> mmap.mmap:
    """Map an open file into memory, shared: Linux counts private pages as data of this process, changed or not."""
    pages = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    _maps[_get_map_address(pages)] = pages
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


def _get_map_address(pages: mmap.mmap) -> int:
    return np.frombuffer(pages, np.uint8, 1).ctypes.data if len(pages) else 0


class ScratchColumn:
    """An append-only column in an anonymous file: rows of one dtype and width, then mapped."""

    def __init__(self, folder: Path, dtype: type | np.dtype, width: tuple[int, ...] = ()) -> None:
        self.dtype, self.width, self._rows = np.dtype(dtype), width, 0
        self._folder = folder
        self._handle = create_anonymous_file(folder)

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

    def mapped(self) -> Tensor:
        """Return all rows as one mapped tensor, which keeps the file alive."""
        kind = torch.from_numpy(np.empty(0, self.dtype)).dtype
        if not self._rows * self.row_bytes:
            return torch.zeros((self._rows, *self.width), dtype=kind)
        return make_mapped_tensor(map_file(self._handle, writable=True), kind, (self._rows, *self.width))
