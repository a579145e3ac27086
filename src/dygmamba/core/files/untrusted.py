"""Files from elsewhere, piece by piece: plain ones, of a bounded size, behind no link, with the right checksum.

What a folder may be called: a name from a file, a table or another program stays one step of a path.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_file

CHUNK_BYTES = 1 << 22
RETRY_HINT = "get it again"


def read_regular_file(path: Path, most: int) -> Iterator[bytes]:
    """A regular file's bytes, at most so many; behind no link."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise FileError(f"{path} is no plain file of at most {most:,} bytes; {RETRY_HINT}")
        while piece := file.read(CHUNK_BYTES):
            yield piece


def read_verified_file(path: Path, size: int, digest: str) -> Iterator[bytes]:
    """The bytes of a file, unless they are not those that were announced; the error comes before the end."""
    sha, seen = hashlib.sha256(), 0
    try:
        for piece in read_regular_file(path, size):
            sha.update(piece)
            seen += len(piece)
            yield piece
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); {RETRY_HINT}") from error
    if seen != size or sha.hexdigest() != digest:
        raise FileError(f"{path} is damaged: it differs from its checksum; {RETRY_HINT}")


def copy_file(path: Path, target: Path) -> dict[str, Any]:
    """Copy a file, whole or not at all, and say what it is: its bytes and their sha256."""
    sha, size = hashlib.sha256(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        for piece in read_regular_file(path, path.stat().st_size):
            sha.update(piece)
            size += len(piece)
            yield piece

    write_file(target, pieces())
    return {"bytes": size, "sha256": sha.hexdigest()}


MAX_NAME_BYTES = 200  # bytes; file systems take 255, with suffixes
RESERVED_CHARACTERS = frozenset(
    '/\\<>:"|?*'
)  # separators here or elsewhere, and what some file systems refuse


def is_valid_folder_name(name: str) -> bool:
    """Whether the name is one folder's: it climbs nowhere, hides no letters and means the same on every system."""
    whole = name == name.strip() and name == name.rstrip(".") and name.isprintable()
    return (
        bool(name) and whole and not RESERVED_CHARACTERS & set(name) and len(name.encode()) <= MAX_NAME_BYTES
    )
