"""The file behind columns that are mapped pages: as it was when it was opened, or no longer of any use.

A mapped page that another process has cut off is a signal that ends this one, and one that was overwritten is other
data under the old digest. Whoever is about to read asks first; it costs one system call. A file that was replaced or
removed by name is no concern: the pages of the old one stay.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from dygmamba.core.errors import FileError


class FileHandle:
    """An open file, closed when nobody needs it any more."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file held open, and what told it from any other state of itself when it was opened."""

    path: Path
    handle: FileHandle
    device: int
    inode: int
    size: int
    changed: int  # nanoseconds
    digest: str = ""  # of all that is in it, where that is known and all of it is meant

    @staticmethod
    def of(path: Path) -> "MappedFile":
        """The file as it is now; an OSError where it cannot be opened."""
        handle = FileHandle(path)
        state = os.fstat(handle.number)
        return MappedFile(path, handle, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the columns, here or in another process, has no file behind it."""
        return type(None), ()

    def check(self) -> None:
        """A FileError where the file was written to since."""
        state = os.fstat(self.handle.number)
        if (state.st_size, state.st_mtime_ns) == (self.size, self.changed):
            return
        what = "was cut short" if state.st_size < self.size else "was written to"
        raise FileError(
            f"{self.path} {what} while it was in use; stores never change: import or fetch it again, and let "
            "nothing write into it"
        )

    def check_name(self) -> None:
        """A FileError where the name leads to another file by now, which may be the one that was mapped."""
        state = os.stat(self.path)
        if (state.st_dev, state.st_ino) != (self.device, self.inode):
            raise FileError(f"{self.path} was replaced while it was opened; run the command again")
