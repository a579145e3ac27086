"""Tensors in a safetensors file, written through the one writer, and sealed where nothing else vouches for them.

A sealed file holds, first in its header, the sha256 of all its other bytes: no bit of it changes unnoticed.
The layout is the published one (huggingface/safetensors, "Format"), so every reader of that format reads these files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from dygmamba.data.pages import map_file, pieces, tensor_of
from dygmamba.errors import FileError
from dygmamba.files.writing import write_file

DTYPES = {
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
TYPES = {name: dtype for dtype, name in DTYPES.items()}
OPENING = b'{"__metadata__":{"sha256":"'
SEAL = slice(8 + len(OPENING), 8 + len(OPENING) + 64)  # where the digest stands, behind the header's length


NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor as the file holds it."""

    name: str
    dtype: str
    shape: list[int]
    width: int
    data: memoryview = NOTHING

    def __lt__(self, other: "Column") -> bool:
        """The widest numbers first, so that each is aligned; then by name."""
        return (-self.width, self.name) < (-other.width, other.name)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.width * prod(self.shape)

    @staticmethod
    def room(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "Column":
        """A place for a tensor that is not there yet."""
        return Column(name, DTYPES[dtype], list(shape), dtype.itemsize)

    @staticmethod
    def of(name: str, tensor: Tensor) -> "Column":
        """Its bytes on the host; a tensor that lies there in one piece is not copied."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data.cast("B")
        return Column(name, DTYPES[tensor.dtype], list(tensor.shape), tensor.element_size(), data)


class Damaged(FileError):
    """A file that is not, bit for bit, what was written."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A file whose content its reader checks in a way of its own."""
    columns = _columns(tensors)
    write_file(path, _pieces(header_of(columns, metadata), columns))


def write_sealed(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], keep: Path | None = None
) -> None:
    """A file that vouches for itself; what it replaces is kept under another name if one is given."""
    columns = _columns(tensors)
    header = header_of(columns, {"sha256": "0" * 64, **metadata})
    header[SEAL] = _digest(_pieces(header, columns))
    write_file(path, _pieces(header, columns), keep)


def read_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata, unless a single bit differs from what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); restore it") from error
    if not content[8:].startswith(OPENING) or content[SEAL] != _digest([memoryview(content)]):
        raise Damaged(f"{path} is damaged: its bytes differ from their checksum")
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length])["__metadata__"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error


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
            tensors[name] = tensor_of(pages, TYPES[about["dtype"]], tuple(about["shape"]), first)
    return tensors, metadata


def seal_of(path: Path) -> str:
    """What tells a sealed file from every other, read off its header; nothing where there is no such file."""
    try:
        with path.open("rb") as file:
            return file.read(SEAL.stop)[SEAL].decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _digest(pieces: Iterable[memoryview]) -> bytes:
    """sha256 of a whole file but for the digest in it."""
    sha = hashlib.sha256()
    for number, piece in enumerate(pieces):
        if number == 0:
            sha.update(piece[: SEAL.start])
            sha.update(piece[SEAL.stop :])
        else:
            sha.update(piece)
    return sha.hexdigest().encode()


def _pieces(header: bytearray, columns: list[Column]) -> Iterator[memoryview]:
    """A file from its beginning to its end; mapped pages are given back as they are passed."""
    yield memoryview(header)
    for column in columns:
        for piece in pieces(np.frombuffer(column.data, np.uint8)):
            yield piece.data


def _columns(tensors: Mapping[str, Tensor]) -> list[Column]:
    return sorted(Column.of(name, tensor) for name, tensor in tensors.items())


def header_of(columns: list[Column], metadata: Mapping[str, str]) -> bytearray:
    """The length of the header, and the header, filled up with spaces so that the data is aligned."""
    about: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for column in columns:
        offsets = [at, at := at + column.size]
        about[column.name] = {"dtype": column.dtype, "shape": column.shape, "data_offsets": offsets}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)
