"""Folder locks and process liveness.

`FileLock` lets one process at a time write into a folder. `is_process_dead` says whether the process that left a
temporary file behind still runs.
"""

import hashlib
import os
import socket
import stat
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from dygmamba.core.errors import DygWarning, FileError, LockedError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None

# Seconds. A process on another machine cannot be probed; its files count as abandoned after this long without a change.
ABANDONED_AFTER = 24 * 3600.0
_import_time = int(time.time())


class FileLock:
    """Exclusive right to write into a folder, held until `release` or the end of the process.

    The operating system releases the lock when its holder dies, even by SIGKILL or a power cut.

    Raises:
        LockedError: Another process holds the lock.
        FileError: The lock file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self._handle = self._open(path)
            try:
                self._acquire(path)
            except BaseException:
                self.release()
                raise
            if self._is_current():
                return
            self.release()  # its last holder removed the file: lock the new one

    @staticmethod
    def _open(path: Path) -> int:
        try:
            # a link is not followed: the folder may come from somebody else, and the file behind it would be changed
            return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            is_link = path.is_symlink()
            reason = "its lock file is a link" if is_link else error.strerror
            advice = f"delete {path}" if is_link else "choose a folder that can be written to"
            raise FileError(
                f"cannot lock {path.parent}: {reason}; {advice}", code="folder-not-lockable"
            ) from error

    def _is_current(self) -> bool:
        """Return whether the locked file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(self._handle), os.lstat(self._path))
        except OSError:
            return False

    def release(self, remove: bool = False) -> None:
        """Release the lock; with `remove` the lock file is deleted first, while no other process can hold it."""
        if self._handle >= 0:
            if remove and fcntl is not None and self._is_current():
                with suppress(OSError):
                    os.unlink(self._path)
            os.close(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.release()

    def _acquire(self, path: Path) -> None:
        if fcntl is None:
            _warn_unlocked(f"this system cannot lock {path.parent}; let no second process write there")
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LockedError(
                f"{who} is writing {path.parent}; wait until it is done, or stop it", code="folder-locked"
            ) from error
        except OSError as error:
            _warn_unlocked(
                f"{path.parent} cannot be locked ({error.strerror}); let no second process write there"
            )
            return
        status = os.fstat(self._handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return  # the content may be that of another file
        # The process id only serves the message above, so a full disk must not make locking fail.
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            return


def _warn_unlocked(message: str) -> None:
    warnings.warn(DygWarning(message), stacklevel=4)


@cache
def get_host_id() -> str:
    """Short id of the scope in which process ids are unique: this machine and, on Linux, this PID namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def get_process_start(pid: int | None = None) -> int:
    """Return when a process started, in clock ticks since boot; `None` is this process.

    Without /proc the result is the import time of this module for this process, and 0 for any other.
    """
    try:
        # Field 22 of proc(5). The command name in parentheses may itself hold spaces and parentheses.
        fields = (
            Path(f"/proc/{pid or os.getpid()}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return _import_time if pid is None else 0


def is_process_dead(host_id: str, pid: int, start: int, modified: float) -> bool:
    """Return whether the process that wrote a file is certainly gone.

    Args:
        host_id: `get_host_id` of the writer.
        pid: Its process id.
        start: Its `get_process_start`, because process ids are reused.
        modified: When the file last changed; decides for processes of another machine.
    """
    if host_id != get_host_id() or os.name == "nt":  # on Windows os.kill(pid, 0) would terminate the process
        return time.time() - modified > ABANDONED_AFTER
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs under another user
        pass
    current = get_process_start(pid)
    return current != 0 and current != start
