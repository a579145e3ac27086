"""Write and read safetensors files, optionally sealed by a checksum.

A sealed file begins its header with the SHA-256 of all other bytes, so that any changed bit is noticed. The layout is
the published one (huggingface/safetensors, "Format"), so other programs can read the files. `TensorFileWriter` writes
tensors that are too large for memory.
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

from dygmamba.core.errors import FileError, make_unreadable_error
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
# Position of the hex digest in the file; the first 8 bytes are the length of the header.
SEAL_SLICE = slice(8 + len(HEADER_START), 8 + len(HEADER_START) + 64)
READ_BYTES = 1 << 24
EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """A tensor as bytes of the file."""

    name: str
    dtype: str
    shape: list[int]
    width: int
    data: memoryview = EMPTY

    def __lt__(self, other: "TensorColumn") -> bool:
        """Order by element size, largest first, so that all columns are aligned; then by name."""
        return (-self.width, self.name) < (-other.width, other.name)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.width * prod(self.shape)

    @staticmethod
    def reserve(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "TensorColumn":
        """Describe a tensor that will be written later."""
        return TensorColumn(name, DTYPE_NAMES[dtype], list(shape), dtype.itemsize)

    @staticmethod
    def from_tensor(name: str, tensor: Tensor) -> "TensorColumn":
        """Take the bytes of a tensor; a contiguous tensor in host memory is not copied."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data.cast("B")
        return TensorColumn(name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), tensor.element_size(), data)


class DamagedFileError(FileError):
    """A file whose content does not match its checksum."""

    code = "file-damaged"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file without a seal, for readers that verify the content themselves."""
    columns = _make_sorted_columns(tensors)
    write_file(path, _iterate_file_chunks(build_header(columns, metadata), columns))


def write_sealed_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], keep: Path | None = None
) -> None:
    """Write a sealed file; `keep` is where to move the file it replaces. A symbolic link is replaced, not followed."""
    columns = _make_sorted_columns(tensors)
    header = build_header(columns, {"sha256": "0" * 64, **metadata})
    header[SEAL_SLICE] = _hash_chunks(_iterate_file_chunks(header, columns))
    write_file(path, _iterate_file_chunks(header, columns), keep, follow_links=False)


def read_sealed_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a sealed file; raise DamagedFileError if a single bit differs."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    if not content[8:].startswith(HEADER_START) or content[SEAL_SLICE] != _hash_chunks([memoryview(content)]):
        raise DamagedFileError(f"{path} is damaged: its content does not match its checksum")
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length])["__metadata__"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error


def map_tensors(path: Path, handle: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Map the tensors of an open file into memory and read its metadata.

    Raises:
        SafetensorError: It is not a safetensors file.
    """
    # safe_open checks the header. With framework="pt" it would reserve memory for the whole file.
    with safe_open(path, framework="np") as file:
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
    """Read the checksum in the header of a sealed file; "" if there is no file."""
    try:
        with path.open("rb") as file:
            return file.read(SEAL_SLICE.stop)[SEAL_SLICE].decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _hash_chunks(chunks: Iterable[memoryview]) -> bytes:
    """Return the SHA-256 of a file without the digest itself, which must be in the first chunk."""
    sha = hashlib.sha256()
    for number, chunk in enumerate(chunks):
        if number == 0:
            sha.update(chunk[: SEAL_SLICE.start])
            sha.update(chunk[SEAL_SLICE.stop :])
        else:
            sha.update(chunk)
    return sha.hexdigest().encode()


def _iterate_file_chunks(header: bytearray, columns: list[TensorColumn]) -> Iterator[memoryview]:
    """Yield the content of a file; pages of memory-mapped columns are released on the way."""
    yield memoryview(header)
    for column in columns:
        for chunk in iterate_chunks(np.frombuffer(column.data, np.uint8)):
            yield chunk.data


def _make_sorted_columns(tensors: Mapping[str, Tensor]) -> list[TensorColumn]:
    return sorted(TensorColumn.from_tensor(name, tensor) for name, tensor in tensors.items())


def build_header(columns: list[TensorColumn], metadata: Mapping[str, str]) -> bytearray:
    """Return the header with its length in front, padded with spaces so that the data is aligned."""
    about: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for column in columns:
        offsets = [end, end := end + column.size]
        about[column.name] = {"dtype": column.dtype, "shape": column.shape, "data_offsets": offsets}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)


class TensorFileWriter:
    """Context manager that writes a sealed file of tensors row by row, in any order.

    The file appears under its name when the block ends without an error.

    Args:
        path: Target.
        shapes: Dtype and shape of each tensor.
        metadata: Entries for the header.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
    ) -> None:
        self._path = path
        self._columns = sorted(TensorColumn.reserve(name, *layout) for name, layout in shapes.items())
        self._header = build_header(self._columns, {"sha256": "0" * 64, **metadata})
        self._offset, end = {}, len(self._header)
        for column in self._columns:
            self._offset[column.name] = end
            end += column.size
        self._row_bytes = {column.name: column.size // max(1, column.shape[0]) for column in self._columns}
        self._part, self._handle = create_temporary_file(path)

    def __enter__(self) -> "TensorFileWriter":
        return self

    def put(self, name: str, row: int, values: np.ndarray) -> None:
        """Write rows of a tensor, beginning at `row`."""
        block = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if len(block):
            write_at(self._handle, self._offset[name] + row * self._row_bytes[name], block.data, self._path)

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
                writing.disk.remove(self._part)  # after publishing there is none of this name

    def _close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            writing.disk.close(handle)

    def _seal(self) -> None:
        """Write the header with the digest of all other bytes, and flush the file to the disk."""
        write_at(self._handle, 0, bytes(self._header), self._path)
        self._header[SEAL_SLICE] = compute_seal(self._handle)
        write_at(self._handle, 0, bytes(self._header), self._path)
        with translate_os_errors(self._path):
            writing.disk.sync(self._handle)


def compute_seal(handle: int) -> bytes:
    """Return the SHA-256 of an open sealed file without the digest itself, reading it in chunks."""
    os.lseek(handle, 0, os.SEEK_SET)
    return _hash_chunks(map(memoryview, iter(lambda: os.read(handle, READ_BYTES), b"")))
