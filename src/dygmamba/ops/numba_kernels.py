"""Compile CPU kernels with Numba and cache the machine code on disk (decision 024).

A kernel is one piece of machine code: its helpers are inlined. A helper that were a function of its own could be
resolved to the copy of another kernel, which LLVM optimised in another context. So the bits of a result depend neither
on what was compiled before nor on whether a kernel was compiled in this process or read from the cache.

A cached kernel is a pickle, and loading a pickle runs code. It is therefore read only from a folder and a file that
belong to this user and that nobody else can write, and only if its SHA-256 is right. Otherwise it is compiled again.
"""

import hashlib
import os
import pickle
import platform
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from inspect import getfile, unwrap
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import njit
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from dygmamba.core.errors import DygWarning, WriteError
from dygmamba.core.files.writing import write_file

PACKAGE = Path(__file__).parents[1]
DIGEST_BYTES = hashlib.sha256().digest_size
OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator for a function that Python calls: compiled at the first call per signature, cached on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        function = unwrap(function)  # tests wrap every function in a type checker, which cannot be compiled
        compiled: Any = njit(nogil=True, **options)(function)
        folder = private_folder()
        if folder is not None:
            compiled._cache = KernelCache(folder, function)
        return compiled

    return decorate


def inlined(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator for a helper that kernels call: inlined into each of them, never compiled on its own."""
    return lambda function: njit(nogil=True, forceinline=True, **options)(unwrap(function))


class KernelCache:
    """Disk cache of one kernel with the interface Numba's dispatcher expects: a file per signature, CPU and source."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self.folder, self.function = folder, function
        self.cache_path = str(folder)
        # at once: the path of the package may be relative, and the working directory may change
        self._stamp = hash_sources(getfile(function))
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")

    def load_overload(self, signature: Any, context: Any) -> CompileResult | None:
        """Return the cached kernel of a signature, None if there is no file that is intact and private."""
        context.refresh()
        path = self._path(signature, context.codegen())
        content = read_private(path)
        if content is None or hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            return None
        return CompileResult._rebuild(context, *pickle.loads(content[DIGEST_BYTES:]))

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        """Write the kernel to the cache; a failure is ignored, as this process already has the kernel."""
        content = dumps(result._reduce())
        path = self._path(signature, result.codegen)
        with suppress(WriteError, OSError):
            for old in self.folder.glob(f"{self._name}-*"):
                if not old.name.startswith(f"{self._name}-{self._stamp}"):
                    old.unlink()
            path.unlink(missing_ok=True)  # it may be a symbolic link or belong to another user
            write_file(path, [hashlib.sha256(content).digest(), content])
            path.chmod(0o600)

    def flush(self) -> None:
        """Delete all cached files of this kernel."""
        for old in self.folder.glob(f"{self._name}-*"):
            old.unlink(missing_ok=True)

    def _path(self, signature: Any, codegen: Any) -> Path:
        cells = [cell.cell_contents for cell in self.function.__closure__ or ()]
        names = [getattr(cell, "__qualname__", repr(cell)) for cell in cells]
        versions = (platform.python_version(), numba.__version__, llvmlite.__version__)
        key = repr((signature, codegen.magic_tuple(), names, versions))
        return (
            self.folder / f"{self._name}-{self._stamp}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"
        )


@cache
def hash_sources(file: str) -> str:
    """Hash the sources of a kernel: its own file, this one, and all kernel files, whose helpers it may inline."""
    total = hashlib.sha256()
    for path in (Path(file), Path(__file__), *sorted((PACKAGE / "ops").glob("*/cpu*.py"))):
        # by the loader: the package may be in a zip file
        total.update(hashlib.sha256(__loader__.get_data(str(path))).digest())
    return total.hexdigest()[:16]


@cache
def private_folder() -> Path | None:
    """Return the first cache folder that only this user can write; None, with a warning, if there is none."""
    candidates = list(list_cache_folders())
    for root in candidates:
        folder = root / f"dygmamba-{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}"
        with suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            if not _is_private(root.stat(), stat.S_IWOTH):
                continue
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder.lstat(), OTHERS_CAN_WRITE) and os.access(folder, os.W_OK | os.X_OK):
                return folder
    places = ", ".join(map(str, candidates))
    warnings.warn(
        DygWarning(
            f"compiled kernels cannot be cached, so every process compiles them again: none of {places} "
            "is a folder that only this user can write; set NUMBA_CACHE_DIR to such a folder"
        ),
        stacklevel=2,
    )
    return None


def list_cache_folders() -> Iterator[Path]:
    """List the folders Numba itself would use: $NUMBA_CACHE_DIR, `__pycache__` of the package, the user's cache."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"]).absolute()
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # the user has no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "numba"


def read_private(path: Path) -> bytes | None:
    """Read a regular file that only this user can write; None for any other file or a symbolic link."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        return file.read() if _is_private(os.fstat(handle), OTHERS_CAN_WRITE) else None
    return None


def _is_private(status: os.stat_result, forbidden: int) -> bool:
    """Return whether a regular file or folder belongs to this user and has none of the `forbidden` mode bits."""
    if os.name != "posix":  # Windows keeps access rights elsewhere
        return True
    is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return is_plain and status.st_uid == os.geteuid() and not status.st_mode & forbidden


@inlined(inline="always")
def first_not_less(values, low, high, target):
    """Binary search: the first index in [low, high) whose value is >= target, else high."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@inlined()
def move_block(start, room, group, used, capacity):
    """Give a full block twice its room behind all others, where its entries are to be copied (`copy_block`).

    Returns the block's old start and the entries in use; the old start is -1 if `capacity` does not suffice.
    """
    wanted = max(4, 2 * room[group])
    if used + wanted > capacity:
        return np.int64(-1), used
    old = start[group]
    start[group] = used
    room[group] = wanted
    return old, used + wanted


@inlined()
def copy_block(column, old, new, count):
    """Copy the entries of a block that moved, in one column."""
    for k in range(count):
        column[new + k] = column[old + k]
