"""What a numpy array file says it holds, known before any of it is allocated."""

import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from typing import IO

import numpy as np

from dygmamba.errors import first_line

# what zipfile, zlib and numpy raise over a damaged file; RuntimeError: encrypted, or of a later version of the format
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, ValueError, EOFError, OSError),
    *(KeyError, TypeError, RuntimeError, OverflowError, MemoryError),
)
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes and the kind of an array."""

    axes: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.axes)}"[:120]


def read_shape(file: IO[bytes], size: int) -> Shape:
    """The header of an array of that many bytes in all; a ValueError where the two do not agree."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"version {version} is for names that no number has")
    axes, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if min(axes, default=0) < 0 or prod(axes) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{Shape(axes, dtype)} does not fit {size - file.tell():,} bytes")
    return Shape(axes, dtype)


def reason(error: Exception) -> str:
    """Why an array did not load, without numpy's advice to trust the file."""
    return "it holds Python objects" if "pickle" in str(error) else first_line(error)
