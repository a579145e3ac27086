"""A sealed file of tensors that are made piece by piece, in any order, and never all in memory."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from dygmamba.data.tensor_file import SEAL, Column, header_of
from dygmamba.files import writing
from dygmamba.files.writing import described, new_part, publish, write_at

READ = 1 << 24  # bytes


class Filling:
    """`with` it: columns of stated shapes, put down row by row, and a name once all of it is on the disk."""

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
    ) -> None:
        self._path = path
        self._columns = sorted(Column.room(name, *what) for name, what in shapes.items())
        self._header = header_of(self._columns, {"sha256": "0" * 64, **metadata})
        self._begin, at = {}, len(self._header)
        for column in self._columns:
            self._begin[column.name] = at
            at += column.size
        self._row = {column.name: column.size // max(1, column.shape[0]) for column in self._columns}
        self._part, self._handle = new_part(path)

    def __enter__(self) -> "Filling":
        return self

    def put(self, name: str, row: int, values: np.ndarray) -> None:
        """These rows of a column, from `row` on."""
        block = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if len(block):
            write_at(self._handle, self._begin[name] + row * self._row[name], block.data, self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._seal()
                self._close()
                publish(self._part, self._path)
        finally:
            self._close()
            with suppress(OSError):
                writing.disk.remove(self._part)  # published, it has another name

    def _close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            writing.disk.close(handle)

    def _seal(self) -> None:
        """The digest of all bytes into the header, and all of it onto the disk."""
        write_at(self._handle, 0, bytes(self._header), self._path)
        self._header[SEAL] = seal_bytes(self._handle)
        write_at(self._handle, 0, bytes(self._header), self._path)
        with described(self._path):
            writing.disk.sync(self._handle)


def seal_bytes(handle: int) -> bytes:
    """sha256 of an open file but for the digest in its header, read a piece at a time."""
    os.lseek(handle, 0, os.SEEK_SET)
    sha = hashlib.sha256()
    first = os.read(handle, SEAL.stop)
    sha.update(first[: SEAL.start])
    while piece := os.read(handle, READ):
        sha.update(piece)
    return sha.hexdigest().encode()
