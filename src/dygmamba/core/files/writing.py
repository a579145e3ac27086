"""The system calls under everything that is written: one object, so that a test can count them, fail them, replay them.

Nobody but `writing` calls it.

The one way a file is written: whole and on the disk, or not at all.

The bytes go into a temporary file beside the target, which is flushed to the disk, renamed, and its folder flushed.
Whoever reads sees the old file or the new one; after a power cut, too. Importing this is light.
"""

import errno
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dygmamba.core.errors import WriteError
from dygmamba.core.files.locking import get_host_id, get_process_start, is_process_dead

# what a file system that cannot flush a folder answers; that is its nature and no loss
FOLDER_SYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


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
            if error.errno not in FOLDER_SYNC_UNSUPPORTED:
                raise
        finally:
            os.close(handle)


disk = Disk()
Bytes = bytes | memoryview

TEMPORARY_NAME = re.compile(r"\.dygmamba-(\w+)-(\d+)-(\d+)-\d+\.part")
COALESCE_BYTES = 2**20  # bytes
_counter = itertools.count()

MAX_FOLDER_DEPTH = (
    200  # folders in one another: many programs that walk down folders go no further than a thousand
)
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


def write_text(path: Path, text: str) -> None:
    """A whole file of UTF-8, whatever the locale; line ends as they are."""
    try:
        letters = text.encode("utf-8")
    except UnicodeEncodeError as error:
        odd = text[error.start : error.end]
        raise WriteError(
            f"cannot write {path}: {odd!r} is no letter of UTF-8; rename what holds it"
        ) from error
    write_file(path, [letters])


def write_file(path: Path, pieces: Iterable[Bytes], keep: Path | None = None) -> None:
    """A whole file of bytes, piece by piece; what it replaces is kept under another name if one is given."""
    with translate_os_errors(path):
        target = _resolve_target(path)
        remove_stale_temporaries(target.parent)
        part = target.with_name(_make_temporary_name())
        try:
            _write_temporary(part, pieces)
            if keep is not None and target.exists():
                disk.replace(target, keep)
            disk.replace(part, target)
        except BaseException:
            with suppress(OSError):
                disk.remove(part)
            raise
        disk.sync_folder(target.parent)


def create_anonymous_file(folder: Path) -> int:
    """A file without a name, open: it is gone when it is closed, or the process ends, however it ends."""
    part, handle = create_temporary_file(folder / "scratch")
    with suppress(PermissionError):  # Windows keeps the name until the file is closed; it is swept later
        disk.remove(part)
    return handle


def create_temporary_file(path: Path) -> tuple[Path, int]:
    """A temporary file beside a target, open; who asks for it fills, flushes, closes and publishes or removes it."""
    make_folder(path.parent)
    with translate_os_errors(path):
        remove_stale_temporaries(path.parent)
        part = path.with_name(_make_temporary_name())
        return part, disk.create(part)


def write_at(handle: int, place: int, piece: Bytes, path: Path) -> None:
    """Bytes into a file that is open, from this place on; `path` is what an error calls it."""
    with translate_os_errors(path):
        disk.seek(handle, place)
        _write_all(handle, piece)


def publish_path(part: Path, target: Path) -> None:
    """A finished file or folder gets its name, for good; its bytes were flushed by whoever wrote them."""
    with translate_os_errors(target):
        disk.replace(part, target)
        disk.sync_folder(target.parent)


def remove_file(path: Path) -> None:
    """A file is gone for good."""
    with translate_os_errors(path):
        disk.remove(path)
        disk.sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """A folder and all above it, there for good; one that is there already is left as it is."""
    if len(path.parts) > MAX_FOLDER_DEPTH:
        raise WriteError(
            f"{str(path)[:60]}... has {len(path.parts):,} folders in one another; choose one with at most {MAX_FOLDER_DEPTH}"
        )
    with translate_os_errors(path):
        missing = [one for one in (path, *path.parents) if not one.is_dir()]
        for one in reversed(missing):
            try:
                disk.make_folder(one)
            except FileExistsError:  # another process was faster, or a file is in the way
                if not one.is_dir():
                    raise
            disk.sync_folder(one.parent)


def create_new_folder(path: Path) -> bool:
    """Make a folder that is nobody else's; False where there is something of that name already."""
    with translate_os_errors(path):
        try:
            disk.make_folder(path)
        except FileExistsError:
            return False
        disk.sync_folder(path.parent)
        return True


def remove_stale_temporaries(folder: Path) -> None:
    """Remove temporary files whose processes are dead; those of the living, and all other files, stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = TEMPORARY_NAME.fullmatch(entry.name)
            if found and is_process_dead(found[1], int(found[2]), int(found[3]), entry.stat().st_mtime):
                disk.remove(Path(entry.path))


def sync_file(handle: int, path: Path) -> None:
    """The bytes of a file that grew in place are on the disk."""
    with translate_os_errors(path):
        disk.sync(handle)


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Any error of the system inside becomes one sentence about this path."""
    try:
        yield
    except OSError as error:
        raise WriteError(describe_os_error(error, path)) from error


def describe_os_error(error: OSError, path: Path | None = None) -> str:
    """What could not be written (or, of an error met elsewhere, used), why, and what to do."""
    what = f"write {path}" if path else f"use {error.filename}" if error.filename else "write the output"
    advice = (ADVICE | TARGET_ADVICE).get(error.errno or 0, "choose another folder")
    return f"cannot {what}: {error.strerror or type(error).__name__}; {advice}"


def _resolve_target(path: Path) -> Path:
    """Where the bytes will be: behind links, and never in place of something that is no file."""
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = FILE_KINDS.get(stat.S_IFMT(mode), "no regular file")
            raise WriteError(f"cannot write {path}: it is {kind}; give the name of a file")
    return Path(os.path.realpath(path))


def _write_temporary(part: Path, pieces: Iterable[Bytes]) -> None:
    handle = disk.create(part)
    try:
        for piece in _coalesce_chunks(pieces):
            _write_all(handle, piece)
        disk.sync(handle)
    finally:
        disk.close(handle)


def _write_all(handle: int, piece: "Bytes | bytearray") -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[disk.write(handle, rest) :]


def _make_temporary_name() -> str:
    return f".dygmamba-{get_host_id()}-{os.getpid()}-{get_process_start()}-{next(_counter)}.part"


def _coalesce_chunks(pieces: Iterable[Bytes]) -> Iterator[Bytes | bytearray]:
    """Small pieces together, so that a file of many takes few calls; large ones as they are, not copied."""
    small = bytearray()
    for piece in pieces:
        if len(small) + len(piece) > COALESCE_BYTES:
            yield small
            small = bytearray()
        if len(piece) > COALESCE_BYTES:
            yield piece
        else:
            small += piece
    yield small
