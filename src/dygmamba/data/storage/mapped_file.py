"""Detect that a memory-mapped file was modified while it is in use.

Reading a mapped page that another process has truncated kills this process (SIGBUS), and an overwritten page is other
data under the old digest. So readers call `MappedFile.check` first, which costs one system call. A file that was
replaced or deleted by name does no harm: the mapping keeps the old content.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dygmamba.core.errors import FileError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None


class FileHandle:
    """An open file descriptor, closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """An open file, and its state when it was opened."""

    path: Path
    handle: FileHandle
    opened: os.stat_result
    digest: str = ""  # of the whole content, if known and the columns are all of it

    @staticmethod
    def open(path: Path) -> "MappedFile":
        """Open a file and record its state; raise OSError if it cannot be opened."""
        handle = FileHandle(path)
        return MappedFile(path, handle, os.fstat(handle.number))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickle as None: a copy of the columns, also in another process, is not backed by the file."""
        return type(None), ()

    def check(self) -> None:
        """Raise FileError if the file was modified since it was opened."""
        state = os.fstat(self.handle.number)
        if (state.st_size, state.st_mtime_ns) == (self.opened.st_size, self.opened.st_mtime_ns):
            return
        what = "was truncated" if state.st_size < self.opened.st_size else "was modified"
        raise FileError(
            f"{self.path} {what} while it was in use; import or fetch the dataset again and let no other program write "
            "to it",
            code="file-modified",
        )

    def check_name(self) -> None:
        """Raise FileError if the path now names another file, which may be the one that was mapped."""
        if not os.path.samestat(os.stat(self.path), self.opened):
            raise FileError(
                f"{self.path} was replaced while it was opened; run the command again", code="file-replaced"
            )


@contextmanager
def mark_in_use(source: MappedFile | None) -> Iterator[None]:
    """Context manager: `is_in_use` is true for the file; the mark ends with the process, however that ends."""
    _lock(source, "LOCK_SH")
    try:
        yield
    finally:
        _lock(source, "LOCK_UN")


def _lock(source: MappedFile | None, operation: str) -> None:
    if source is not None and fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(source.handle.number, getattr(fcntl, operation) | fcntl.LOCK_NB)


def is_in_use(path: Path) -> bool:
    """Return whether a process has marked the file with `mark_in_use`; False where locks are not available."""
    if fcntl is None:
        return False
    handle = FileHandle(path)
    try:
        fcntl.flock(handle.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
