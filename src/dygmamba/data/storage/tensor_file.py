"""Tensors in a safetensors file, written through the one writer, and sealed where nothing else vouches for them.

A sealed file holds, first in its header, the sha256 of all its other bytes: no bit of it changes unnoticed.
The layout is the published one (huggingface/safetensors, "Format"), so every reader of that format reads these files.

A sealed file of tensors that are made piece by piece, in any order, and never all in memory.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from dygmamba.core.errors import FileError
from dygmamba.core.files import writing
from dygmamba.core.files.writing import (
    create_temporary_file,
    publish_path,
    translate_os_errors,
    write_at,
    write_file,
)
from dygmamba.data.storage.mapped_columns import iterate_chunks, make_mapped_tensor, map_file

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}
HEADER_START = b'{"__metadata__":{"sha256":"'
SEAL_SLICE = slice(
    8 + len(HEADER_START), 8 + len(HEADER_START) + 64
)  # where the digest stands, behind the header's length


EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """A tensor as the file holds it."""

    name: str
    dtype: str
    shape: list[int]
    width: int
    data: memoryview = EMPTY

    def __lt__(self, other: "TensorColumn") -> bool:
        """The widest numbers first, so that each is aligned; then by name."""
        return (-self.width, self.name) < (-other.width, other.name)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.width * prod(self.shape)

    @staticmethod
    def room(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "TensorColumn":
        """A place for a tensor that is not there yet."""
        return TensorColumn(name, DTYPE_NAMES[dtype], list(shape), dtype.itemsize)

    @staticmethod
    def of(name: str, tensor: Tensor) -> "TensorColumn":
        """Its bytes on the host; a tensor that lies there in one piece is not copied."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data.cast("B")
        return TensorColumn(name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), tensor.element_size(), data)


class DamagedFileError(FileError):
    """A file that is not, bit for bit, what was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A file whose content its reader checks in a way of its own."""
    columns = _make_sorted_columns(tensors)
    write_file(path, _iterate_file_chunks(build_header(columns, metadata), columns))


def write_sealed_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], keep: Path | None = None
) -> None:
    """A file that vouches for itself; what it replaces is kept under another name if one is given."""
    columns = _make_sorted_columns(tensors)
    header = build_header(columns, {"sha256": "0" * 64, **metadata})
    header[SEAL_SLICE] = _hash_chunks(_iterate_file_chunks(header, columns))
    write_file(path, _iterate_file_chunks(header, columns), keep)


def read_sealed_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata, unless a single bit differs from what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); restore it") from error
    if not content[8:].startswith(HEADER_START) or content[SEAL_SLICE] != _hash_chunks([memoryview(content)]):
        raise DamagedFileError(f"{path} is damaged: its bytes differ from their checksum")
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length])["__metadata__"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error


def map_tensors(path: Path, handle: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of an open file as its mapped pages, and the metadata; what is no such file is a SafetensorError."""
    with safe_open(
        path, framework="np"
    ) as file:  # checks the header; as "pt" it would ask for room for all of it
        metadata = file.metadata() or {}
    pages = map_file(handle)
    begin = 8 + int.from_bytes(pages[:8], "little")
    tensors = {}
    for name, about in json.loads(pages[8:begin]).items():
        if name != "__metadata__":
            first = begin + about["data_offsets"][0]
            tensors[name] = make_mapped_tensor(
                pages, DTYPES_BY_NAME[about["dtype"]], tuple(about["shape"]), first
            )
    return tensors, metadata


def read_seal(path: Path) -> str:
    """What tells a sealed file from every other, read off its header; nothing where there is no such file."""
    try:
        with path.open("rb") as file:
            return file.read(SEAL_SLICE.stop)[SEAL_SLICE].decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _hash_chunks(pieces: Iterable[memoryview]) -> bytes:
    """sha256 of a whole file but for the digest in it."""
    sha = hashlib.sha256()
    for number, piece in enumerate(pieces):
        if number == 0:
            sha.update(piece[: SEAL_SLICE.start])
            sha.update(piece[SEAL_SLICE.stop :])
        else:
            sha.update(piece)
    return sha.hexdigest().encode()


def _iterate_file_chunks(header: bytearray, columns: list[TensorColumn]) -> Iterator[memoryview]:
    """A file from its beginning to its end; mapped pages are given back as they are passed."""
    yield memoryview(header)
    for column in columns:
        for piece in iterate_chunks(np.frombuffer(column.data, np.uint8)):
            yield piece.data


def _make_sorted_columns(tensors: Mapping[str, Tensor]) -> list[TensorColumn]:
    return sorted(TensorColumn.of(name, tensor) for name, tensor in tensors.items())


def build_header(columns: list[TensorColumn], metadata: Mapping[str, str]) -> bytearray:
    """The length of the header, and the header, filled up with spaces so that the data is aligned."""
    about: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for column in columns:
        offsets = [at, at := at + column.size]
        about[column.name] = {"dtype": column.dtype, "shape": column.shape, "data_offsets": offsets}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)


READ_BYTES = 1 << 24  # bytes


class TensorFileWriter:
    """`with` it: columns of stated shapes, put down row by row, and a name once all of it is on the disk."""

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
    ) -> None:
        self._path = path
        self._columns = sorted(TensorColumn.room(name, *what) for name, what in shapes.items())
        self._header = build_header(self._columns, {"sha256": "0" * 64, **metadata})
        self._begin, at = {}, len(self._header)
        for column in self._columns:
            self._begin[column.name] = at
            at += column.size
        self._row = {column.name: column.size // max(1, column.shape[0]) for column in self._columns}
        self._part, self._handle = create_temporary_file(path)

    def __enter__(self) -> "TensorFileWriter":
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
                publish_path(self._part, self._path)
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
        self._header[SEAL_SLICE] = compute_seal(self._handle)
        write_at(self._handle, 0, bytes(self._header), self._path)
        with translate_os_errors(self._path):
            writing.disk.sync(self._handle)


def compute_seal(handle: int) -> bytes:
    """sha256 of an open file but for the digest in its header, read a piece at a time."""
    os.lseek(handle, 0, os.SEEK_SET)
    sha = hashlib.sha256()
    first = os.read(handle, SEAL_SLICE.stop)
    sha.update(first[: SEAL_SLICE.start])
    while piece := os.read(handle, READ_BYTES):
        sha.update(piece)
    return sha.hexdigest().encode()
