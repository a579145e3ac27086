"""Atomic, durable file writing.

A file is first written to a temporary file in the same folder, flushed to the disk and renamed over the target; then
the folder is flushed. Readers see the old file or the new one, never a mixture, even after a power cut. All writing in
the package goes through this module; importing it is cheap.
"""

import errno
import hashlib
import itertools
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from dygmamba.core.errors import WriteError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # of macOS, whose fsync leaves data in the cache of the drive
# Errors of file systems that cannot flush a folder at all; there is nothing to be done about them.
FOLDER_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


class Disk:
    """The system calls of this module, in one object so that tests can count, fail and replay them."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist and open it for reading and writing; permissions follow the umask."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o666)

    def write(self, handle: int, chunk: memoryview) -> int:
        return os.write(handle, chunk)

    def seek(self, handle: int, offset: int) -> None:
        os.lseek(handle, offset, os.SEEK_SET)

    def sync(self, handle: int) -> None:
        """Flush a file to the disk, through the cache of the drive."""
        if fcntl is not None and FULL_SYNC is not None:
            with suppress(OSError):  # a file system without it
                fcntl.fcntl(handle, FULL_SYNC)
                return
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def replace(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Delete a folder and all in it, as far as possible; what stays is no error."""
        shutil.rmtree(path, ignore_errors=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """Flush a folder's entries to the disk, where the file system supports it."""
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in FOLDER_SYNC_UNSUPPORTED:
                raise
        finally:
            os.close(handle)


disk = Disk()
Bytes = bytes | memoryview

TEMPORARY_NAME = re.compile(r"\.dygmamba-(\w+)-(\d+)(-\d+){2}\.part")  # machine, process, its start, number
# Seconds without a change after which a temporary file counts as abandoned, whatever its process seems to be: it may
# be on another machine, or another one with the same id.
ABANDONED_AFTER = 24 * 3600.0
COALESCE_BYTES = 2**20
_START = time.time_ns()  # keeps names apart from those of an earlier process with the same id
_counter = itertools.count()

MAX_FOLDER_DEPTH = 200  # programs that walk folders recursively often fail at about a thousand
# What to do about an error, by errno.
ADVICE = {
    errno.ENOSPC: "free space or choose another folder",
    errno.EDQUOT: "free space or choose another folder",
    errno.EFBIG: "choose a folder on a file system that takes larger files",
    errno.EIO: "the disk is failing; choose a folder on another one",
    errno.EACCES: "allow it, or choose another folder",
    errno.EPERM: "allow it, or choose another folder",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "a part of the path is a file; choose another folder",
    errno.EISDIR: "it is a folder; give the name of a file",
    errno.ELOOP: "its links lead in a circle; choose another folder",
    errno.EMFILE: "too many files are open; close some or raise the limit with ulimit -n",
    errno.ENFILE: "too many files are open on this machine; close some programs",
}
# These two mean something else where the error is not about a target that is being written.
TARGET_ADVICE = {
    errno.ENOENT: "make its folder first, or choose another",
    errno.EEXIST: "a file is in its place; choose another folder",
}
FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def write_text(path: Path, text: str, *, follow_links: bool = True) -> None:
    """Write a text file as UTF-8 whatever the locale; line endings stay as they are. See `write_file`."""
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        invalid = text[error.start : error.end]
        raise WriteError(
            f"cannot write {path}: {invalid!r} cannot be encoded as UTF-8; rename what contains it",
            code="not-utf8",
        ) from error
    write_file(path, [content], follow_links=follow_links)


def write_file(
    path: Path, chunks: Iterable[Bytes], keep: Path | None = None, *, follow_links: bool = True
) -> None:
    """Write a file atomically, chunk by chunk.

    Args:
        path: Target.
        chunks: Its content in order.
        keep: Where to move the file that is replaced; by default it is overwritten.
        follow_links: Whether a symbolic link is followed, as for a path that the user chose, or replaced, as in folders
            that may come from somebody else.
    """
    write_files({path: chunks}, keep, follow_links=follow_links)


def write_files(
    contents: Mapping[Path, Iterable[Bytes]], keep: Path | None = None, *, follow_links: bool = False
) -> None:
    """Write several files of one folder: all of them are complete on the disk before the first one gets its name.

    Then they are renamed in the given order. A failure before that changes none of them. See `write_file`.
    """
    parts: dict[Path, tuple[Path, Path]] = {}  # temporary file and target of each path
    try:
        for path, chunks in contents.items():
            with translate_os_errors(path):
                target = _resolve_target(path) if follow_links else _require_replaceable(path)
                remove_stale_temporaries(target.parent)
                parts[path] = target.with_name(_make_temporary_name()), target
                _write_temporary(parts[path][0], chunks)
        for path, (part, target) in parts.items():
            with translate_os_errors(path):
                if keep is not None and target.exists():
                    disk.replace(target, keep)
                disk.replace(part, target)
                disk.sync_folder(target.parent)
    except BaseException:
        for part, _ in parts.values():
            with suppress(OSError):
                disk.remove(part)
        raise


def create_anonymous_file(folder: Path) -> int:
    """Open a file without a name; it disappears when it is closed or the process ends, however it ends."""
    part, handle = create_temporary_file(folder / "scratch")
    with suppress(PermissionError):  # Windows keeps the name until the file is closed
        disk.remove(part)
    return handle


def create_temporary_file(path: Path) -> tuple[Path, int]:
    """Create a temporary file next to `path` and open it.

    The caller writes, flushes and closes it, and then calls `publish_path` or removes it.
    """
    make_folder(path.parent)
    with translate_os_errors(path):
        remove_stale_temporaries(path.parent)
        part = path.with_name(_make_temporary_name())
        return part, disk.create(part)


def write_at(handle: int, offset: int, chunk: Bytes, path: Path) -> None:
    """Write bytes into an open file at an offset; `path` names the file in error messages."""
    with translate_os_errors(path):
        disk.seek(handle, offset)
        _write_all(handle, chunk)


def publish_path(part: Path, target: Path) -> None:
    """Rename a finished temporary file or folder to its final name, durably; its content must be flushed already."""
    with translate_os_errors(target):
        disk.replace(part, target)
        disk.sync_folder(target.parent)


def remove_file(path: Path) -> None:
    """Delete a file durably; a missing one is no error."""
    with translate_os_errors(path):
        disk.remove(path)
        disk.sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably; existing ones stay as they are."""
    if len(path.parts) > MAX_FOLDER_DEPTH:
        raise WriteError(
            f"{str(path)[:60]}... is {len(path.parts):,} folders deep; choose a path of at most {MAX_FOLDER_DEPTH}",
            code="folder-too-deep",
        )
    with translate_os_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
        for folder in reversed(missing):
            try:
                disk.make_folder(folder)
            except FileExistsError:  # another process was faster, or a file is in the way
                if not folder.is_dir():
                    raise
            disk.sync_folder(folder.parent)


def create_new_folder(path: Path) -> bool:
    """Create a folder and return True, or return False if something of that name exists already."""
    with translate_os_errors(path):
        try:
            disk.make_folder(path)
        except FileExistsError:
            return False
        disk.sync_folder(path.parent)
        return True


def remove_stale_temporaries(folder: Path) -> None:
    """Delete this package's temporary files and folders whose processes are dead."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = TEMPORARY_NAME.fullmatch(entry.name)
            if name and _is_abandoned(name[1], int(name[2]), entry.stat(follow_symlinks=False).st_mtime):
                if entry.is_dir(follow_symlinks=False):
                    disk.remove_folder(Path(entry.path))
                else:
                    disk.remove(Path(entry.path))


def _is_abandoned(host_id: str, pid: int, modified: float) -> bool:
    """Return whether the process that wrote a temporary file is certainly gone, or the file was left long ago."""
    if time.time() - modified > ABANDONED_AFTER:
        return True
    if host_id != get_host_id() or os.name == "nt":  # on Windows os.kill(pid, 0) would terminate the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs under another user
        pass
    return False


@cache
def get_host_id() -> str:
    """Return a short id of the scope in which process ids are unique: this machine and, on Linux, PID namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


@contextmanager
def create_temporary_folder(parent: Path) -> Iterator[Path]:
    """Context manager: an empty folder in `parent`; if the process is killed, a later one removes the folder."""
    make_folder(parent)
    remove_stale_temporaries(parent)
    folder = parent / _make_temporary_name()
    make_folder(folder)
    try:
        yield folder
    finally:
        disk.remove_folder(folder)


def sync_file(handle: int, path: Path) -> None:
    """Flush an open file to the disk."""
    with translate_os_errors(path):
        disk.sync(handle)


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Turn every OSError inside the block into a WriteError about `path`."""
    try:
        yield
    except OSError as error:
        raise WriteError(describe_os_error(error, path), code="write-failed") from error


def describe_os_error(error: OSError, path: Path | None = None) -> str:
    """Return a message for an OSError: what could not be written or used, why, and what to do."""
    what = f"write {path}" if path else f"use {error.filename}" if error.filename else "write the output"
    advice = (ADVICE | TARGET_ADVICE).get(error.errno or 0, "choose another folder")
    return f"cannot {what}: {error.strerror or type(error).__name__}; {advice}"


def _resolve_target(path: Path) -> Path:
    """Follow symbolic links to the file that will be replaced; refuse anything but a regular file."""
    with suppress(FileNotFoundError):
        _require_regular(path, os.stat(path).st_mode)
    return Path(os.path.realpath(path))


def _require_replaceable(path: Path) -> Path:
    """Return the path if nothing is there, or a regular file or a link, which will be replaced."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode):
            _require_regular(path, mode)
    return path


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = FILE_KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise WriteError(
            f"cannot write {path}: it is {kind}; give the name of a file", code="not-a-regular-file"
        )


def _write_temporary(part: Path, chunks: Iterable[Bytes]) -> None:
    handle = disk.create(part)
    try:
        for chunk in _coalesce_chunks(chunks):
            _write_all(handle, chunk)
        disk.sync(handle)
    finally:
        disk.close(handle)


def _write_all(handle: int, chunk: "Bytes | bytearray") -> None:
    rest = memoryview(chunk)
    while rest:  # a single call may write less than it was given
        rest = rest[disk.write(handle, rest) :]


def _make_temporary_name() -> str:
    return f".dygmamba-{get_host_id()}-{os.getpid()}-{_START}-{next(_counter)}.part"


def _coalesce_chunks(chunks: Iterable[Bytes]) -> Iterator[Bytes | bytearray]:
    """Join small chunks so that many of them take few system calls; large ones are passed on without a copy."""
    small = bytearray()
    for chunk in chunks:
        if len(small) + len(chunk) > COALESCE_BYTES:
            yield small
            small = bytearray()
        if len(chunk) > COALESCE_BYTES:
            yield chunk
        else:
            small += chunk
    yield small
