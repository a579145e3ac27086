"""Folder locks: one process at a time writes into a folder."""

import errno
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from dygmamba.core.errors import DygWarning, FileError, LockedError

# Errors of systems and file systems that have no locks.
LOCKS_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


def acquire_lock(path: Path, seconds: float = 0) -> BaseFileLock:
    """Lock a folder by a file in it, until `release` or the end of the process; wait so long for another process.

    The operating system releases the lock when its holder dies, even by SIGKILL or a power cut. Where there are no
    locks, a warning says so and work goes on.

    Raises:
        LockedError: Another process holds the lock.
        FileError: The lock file cannot be created.
    """
    # not thread-local: a server opens a folder in one thread and closes it in another
    lock = FileLock(
        path, timeout=seconds, thread_local=False, fallback_to_soft=False, on_acquired=_write_holder
    )
    try:
        lock.acquire()
    except Timeout as error:
        raise LockedError(
            f"{_read_holder(path)} is writing {path.parent}; wait until it is done, or stop it",
            code="folder-locked",
        ) from error
    except OSError as error:
        if error.errno in LOCKS_UNSUPPORTED:
            message = f"{path.parent} cannot be locked ({error.strerror}); let no second process write there"
            warnings.warn(DygWarning(message), stacklevel=2)
            return lock
        is_link = path.is_symlink()  # not followed: the folder may come from somebody else
        reason = "its lock file is a link" if is_link else error.strerror
        advice = f"delete {path}" if is_link else "choose a folder that can be written to"
        raise FileError(
            f"cannot lock {path.parent}: {reason}; {advice}", code="folder-not-lockable"
        ) from error
    return lock


@contextmanager
def hold_lock(path: Path, seconds: float = 0) -> Iterator[None]:
    """Context manager: lock a folder by a file in it, which is deleted at the end; the errors are `acquire_lock`'s."""
    lock = acquire_lock(path, seconds)
    try:
        yield
    finally:
        if lock.is_locked:  # deleted first, while no other process can hold it; on Windows that fails
            with suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()


def _write_holder(handle: int) -> None:
    """Write the process id, which only serves the message: a full disk must not make locking fail."""
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # else the content may be that of another file
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())


def _read_holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            holder = file.read(20).decode("ascii", "replace").strip()
    except OSError:  # Windows lets nobody read a locked file
        holder = ""
    return f"process {holder}" if holder.isdigit() else "another process"
