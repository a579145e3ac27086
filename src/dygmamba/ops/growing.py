"""Arrays with spare capacity behind what is in use, and classes that are saved as such arrays and a few integers.

They are saved and mapped again as they are (`live/array_file.py`). Nothing here needs torch.
"""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

LEAST_SPARE = 64  # rows
HUGE_BYTES = 1 << 23


def allocate_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros that takes no memory until it is written.

    A large one is in huge pages where the system has them: entries are written all over it, and the first write to
    each page takes microseconds.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def enlarge(column: np.ndarray, used: int, rows: int) -> np.ndarray:
    """Return a copy with at least `rows` rows; rows beyond `used` are 0 and take no memory until they are written."""
    wide = allocate_zeros((rows, *column.shape[1:]), column.dtype)
    wide[:used] = column[:used]
    return wide


def with_spare(column: np.ndarray) -> np.ndarray:
    """Return a copy with spare capacity behind its rows."""
    return enlarge(column, len(column), 2 * len(column) + LEAST_SPARE)


class Growing:
    """Base class of what is saved as arrays with spare capacity and a few integers.

    Subclasses name their arrays, each with the integer that says how many of its rows are in use (None: all of them),
    their other integers, and their parts, which are of this class too.
    """

    arrays: ClassVar[Mapping[str, str | None]] = {}
    integers: ClassVar[tuple[str, ...]] = ()

    @property
    def parts(self) -> "Mapping[str, Growing]":
        return {}

    def make_room(self, rows: int, *names: str) -> None:
        """Give these arrays at least so many rows, and twice as many if they have fewer."""
        for name in names:
            column, used = getattr(self, name), self.arrays[name]
            if used is not None and rows > len(column):
                setattr(self, name, enlarge(column, getattr(self, used), 2 * rows + LEAST_SPARE))

    def require_memory(self, events: int) -> None:
        """Raise MemoryBudgetError if a table of so many events does not fit into memory; most tables do."""

    def list_arrays(self, prefix: str = "") -> "Iterator[tuple[str, Growing, str, int]]":
        """Yield the name of each array, its owner and attribute, and how many of its rows are in use."""
        for name, used in self.arrays.items():
            rows = len(getattr(self, name)) if used is None else int(getattr(self, used))
            yield prefix + name, self, name, rows
        for name, part in self.parts.items():
            yield from part.list_arrays(f"{prefix}{name}/")

    def put_array(self, name: str, array: np.ndarray) -> None:
        """Replace an array by another one of the same type."""
        setattr(self, name, array)

    def list_integers(self, prefix: str = "") -> "Iterator[tuple[str, Growing, str]]":
        """Yield the name of each integer, its owner and attribute."""
        for name in self.integers:
            yield prefix + name, self, name
        for name, part in self.parts.items():
            yield from part.list_integers(f"{prefix}{name}/")
