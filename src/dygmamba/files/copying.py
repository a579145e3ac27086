"""Files from elsewhere, piece by piece: plain ones, of a bounded size, behind no link, with the right checksum."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dygmamba.errors import FileError
from dygmamba.files.writing import write_file

PIECE = 1 << 22
AGAIN = "get it again"


def plain_pieces(path: Path, most: int) -> Iterator[bytes]:
    """A regular file's bytes, at most so many; behind no link."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise FileError(f"{path} is no plain file of at most {most:,} bytes; {AGAIN}")
        while piece := file.read(PIECE):
            yield piece


def checked_pieces(path: Path, size: int, digest: str) -> Iterator[bytes]:
    """The bytes of a file, unless they are not those that were announced; the error comes before the end."""
    sha, seen = hashlib.sha256(), 0
    try:
        for piece in plain_pieces(path, size):
            sha.update(piece)
            seen += len(piece)
            yield piece
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); {AGAIN}") from error
    if seen != size or sha.hexdigest() != digest:
        raise FileError(f"{path} is damaged: it differs from its checksum; {AGAIN}")


def copied(path: Path, target: Path) -> dict[str, Any]:
    """Copy a file, whole or not at all, and say what it is: its bytes and their sha256."""
    sha, size = hashlib.sha256(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        for piece in plain_pieces(path, path.stat().st_size):
            sha.update(piece)
            size += len(piece)
            yield piece

    write_file(target, pieces())
    return {"bytes": size, "sha256": sha.hexdigest()}
