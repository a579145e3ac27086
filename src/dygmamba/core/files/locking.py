"""One process at a time: a lock on a file, which the system takes back when its holder dies, however it dies.

Which process wrote something, and whether it still lives: its machine, its number and when it started.
"""

import hashlib
import os
import socket
import time
import warnings
from functools import cache
from pathlib import Path

from dygmamba.core.errors import DygWarning, FileError, LockedError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None


class FileLock:
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
            _warn_unlocked(f"this system cannot lock {path.parent}; let no second process write there")
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LockedError(f"{who} is writing {path.parent}; wait until it is done, or stop it") from error
        except OSError as error:
            _warn_unlocked(
                f"{path.parent} cannot be locked ({error.strerror}); let no second process write there"
            )
            return
        try:  # for the sentence above; a full disk is no reason not to go on
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            return


def _warn_unlocked(said: str) -> None:
    warnings.warn(DygWarning(said), stacklevel=4)


ABANDONED_AFTER = (
    24 * 3600.0
)  # seconds: what another machine left and did not touch for so long, nobody is writing
_import_time = int(time.time())


@cache
def get_host_id() -> str:
    """A word for where process numbers mean the same: this machine and, on Linux, this namespace."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]


def get_process_start(pid: int | None = None) -> int:
    """When a process started, in ticks since the machine did; where that is not told, when it imported this."""
    try:
        words = (
            Path(f"/proc/{pid or os.getpid()}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
        return int(words[19])
    except (OSError, IndexError, ValueError):
        return _import_time if pid is None else 0


def is_process_dead(where: str, pid: int, start: int, touched: float) -> bool:
    """Whether the process is surely gone; of another machine's only its long silence tells."""
    if where != get_host_id() or os.name == "nt":  # Windows has no harmless way to ask
        return time.time() - touched > ABANDONED_AFTER
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives and is another user's
        pass
    now = get_process_start(pid)
    return now != 0 and now != start
