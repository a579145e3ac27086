"""The system calls under everything that is written: one object, so that a test can count them, fail them, replay them.

Nobody but `writing` calls it.
"""

import errno
import os
from pathlib import Path

# what a file system that cannot flush a folder answers; that is its nature and no loss
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


class Disk:
    """The real one."""

    def create(self, path: Path) -> int:
        """A new file, open for writing and reading, as public as the umask says."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o666)

    def write(self, handle: int, piece: memoryview) -> int:
        """How many of the bytes were taken."""
        return os.write(handle, piece)

    def seek(self, handle: int, place: int) -> None:
        """What is written next goes there."""
        os.lseek(handle, place, os.SEEK_SET)

    def sync(self, handle: int) -> None:
        """A file's bytes are on the disk."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """The file is let go."""
        os.close(handle)

    def replace(self, old: Path, new: Path) -> None:
        """One name becomes another in one step."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """A name is gone; so it is if it never was."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """A new folder."""
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """A folder's names are on the disk, where its file system can promise that."""
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in NO_FOLDER_SYNC:
                raise
        finally:
            os.close(handle)
