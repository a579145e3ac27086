"""One process at a time: a lock on a file, which the system takes back when its holder dies, however it dies."""

import os
import warnings
from pathlib import Path

from dygmamba.errors import DygWarning, FileError, LockedError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None


class Lock:
    """The right to write into a folder, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FileError(
                f"cannot lock {path.parent}: {error.strerror}; choose a folder that can be written to"
            ) from error
        try:
            self._take(path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Others may have it; the file stays, for removing it would let two processes lock two files of one name."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.release()

    def _take(self, path: Path) -> None:
        if fcntl is None:
            _warn(f"this system cannot lock {path.parent}; let no second process write there")
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LockedError(f"{who} is writing {path.parent}; wait until it is done, or stop it") from error
        except OSError as error:
            _warn(f"{path.parent} cannot be locked ({error.strerror}); let no second process write there")
            return
        try:  # for the sentence above; a full disk is no reason not to go on
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            return


def _warn(said: str) -> None:
    warnings.warn(DygWarning(said), stacklevel=4)
