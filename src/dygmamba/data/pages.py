"""Columns whose pages are a file's: read where they are needed, given back when they were passed.

What is mapped counts as this process's memory as long as it was touched, although the system can take it back at any
time. Whoever walks over a column from end to end says so (`pieces`), and then has a piece of it at a time.
"""

import mmap
import sys
import warnings
import weakref
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

PIECE = 1 << 24  # bytes looked at before they are given back
# private pages that are never written to need no room in memory and no swap, however large the file is
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
_maps: "weakref.WeakValueDictionary[int, mmap.mmap]" = weakref.WeakValueDictionary()


def map_file(handle: int, *, shared: bool = False) -> mmap.mmap:
    """All pages of an open file; those of a shared one are never copied, those of others if they are written to."""
    if hasattr(mmap, "MAP_PRIVATE"):
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | NO_RESERVE
        found = mmap.mmap(handle, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    else:  # Windows
        found = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY)
    _maps[_address(found)] = found
    return found


def tensor_of(pages: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> Tensor:
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


def release(column: np.ndarray | Tensor) -> None:
    """A column's pages are not needed for now; where they are no file's, nothing happens."""
    if isinstance(column, Tensor):
        first, size = column.data_ptr(), column.numel() * column.element_size()
    else:
        first, size = column.ctypes.data, column.nbytes
    for start, pages in list(_maps.items()):
        if start <= first and first + size <= start + len(pages) and hasattr(pages, "madvise"):
            begin = (first - start) // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, begin, first + size - start - begin)


def cuts(rows: int, width: int, size: int = PIECE) -> Iterator[slice]:
    """Rows of so many bytes in runs of at most `size` bytes."""
    step = max(1, size // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def pieces(column: np.ndarray, size: int = PIECE) -> Iterator[np.ndarray]:
    """A column that lies in one piece from its beginning to its end, each part given back when it was passed."""
    width = column.nbytes // max(1, len(column))
    for rows in cuts(len(column), width, size):
        yield column[rows]
        release(column[rows])


def _address(pages: mmap.mmap) -> int:
    return np.frombuffer(pages, np.uint8, 1).ctypes.data if len(pages) else 0
