"""Numbers on the disk that outlive nobody: a column that grows by appending and is read a run of rows at a time.

The file has no name, so that neither an error nor a kill leaves it. What is written goes through the one writer; a full
disk is one sentence.
"""

import io
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dygmamba.data.pages import map_file, tensor_of
from dygmamba.errors import FileError
from dygmamba.files.writing import new_scratch, write_at


class Scratch:
    """Rows of one type and width, in the order they were appended."""

    def __init__(self, folder: Path, dtype: type | np.dtype, width: tuple[int, ...] = ()) -> None:
        self.dtype, self.width, self._rows = np.dtype(dtype), width, 0
        self._folder = folder
        self._handle = new_scratch(folder)
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
        return tensor_of(map_file(self._handle, shared=True), kind, (self._rows, *self.width))
