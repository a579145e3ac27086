"""The one way a kernel for the CPU is compiled by Numba, and where what was compiled is kept (decision 024).

A kernel is one piece of machine code: its parts are inlined, so that a call of one never reaches the copy that another
kernel brought along and which LLVM optimised in other company. Then the bits of a result depend neither on what was
compiled before nor on whether the kernel was compiled here or read from the cache.

What is kept is a pickle, so reading it is running it. It is read only from a folder and a file that are this user's
and that nobody else can write, and only if its SHA-256 is right; anything else is compiled anew.

The binary search that look-ups share.
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
from numba import njit
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from dygmamba.core.errors import DygWarning, WriteError
from dygmamba.core.files.writing import write_file

PACKAGE = Path(__file__).parents[1]
DIGEST_BYTES = hashlib.sha256().digest_size
OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """What Python calls: compiled at the first call for the types it is given, and kept on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        function = unwrap(function)  # tests wrap every function in a type checker, which cannot be compiled
        compiled: Any = njit(nogil=True, **options)(function)
        folder = private_folder()
        if folder is not None:
            compiled._cache = KernelCache(folder, function)
        return compiled

    return decorate


def inlined(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """What kernels call: a piece of each kernel that uses it, and nothing of its own."""
    return lambda function: njit(nogil=True, forceinline=True, **options)(unwrap(function))


class KernelCache:
    """The cache of one kernel, as Numba's dispatcher asks for one: a file per signature, processor and source."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self.folder, self.function = folder, function
        self.cache_path = str(folder)
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")

    def load_overload(self, signature: Any, context: Any) -> CompileResult | None:
        """What was kept for a signature, if it is whole and this user's."""
        context.refresh()
        path = self._path(signature, context.codegen())
        content = read_private(path)
        if content is None or hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            return None
        return CompileResult._rebuild(context, *pickle.loads(content[DIGEST_BYTES:]))

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        """Keep it; where that cannot be, this process has it all the same."""
        content = dumps(result._reduce())
        path = self._path(signature, result.codegen)
        with suppress(WriteError, OSError):
            for old in self.folder.glob(f"{self._name}-*"):
                if not old.name.startswith(f"{self._name}-{hash_sources(getfile(self.function))}"):
                    old.unlink()
            path.unlink(missing_ok=True)  # a link, or a file of somebody else
            write_file(path, [hashlib.sha256(content).digest(), content])
            path.chmod(0o600)

    def flush(self) -> None:
        """Forget everything about this kernel."""
        for old in self.folder.glob(f"{self._name}-*"):
            old.unlink(missing_ok=True)

    def _path(self, signature: Any, codegen: Any) -> Path:
        cells = [cell.cell_contents for cell in self.function.__closure__ or ()]
        names = [getattr(cell, "__qualname__", repr(cell)) for cell in cells]
        versions = (platform.python_version(), numba.__version__, llvmlite.__version__)
        key = repr((signature, codegen.magic_tuple(), names, versions))
        stamp = hash_sources(getfile(self.function))
        return self.folder / f"{self._name}-{stamp}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.kernel"


@cache
def hash_sources(file: str) -> str:
    """What a kernel is made of: its own file and those of all kernels, whose parts it may use."""
    total = hashlib.sha256()
    for path in (Path(file), Path(__file__), *sorted((PACKAGE / "ops").glob("*/cpu*.py"))):
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


@cache
def private_folder() -> Path | None:
    """The first folder that can be this user's alone; a warning where there is none, for compiling takes a while."""
    tried = list(list_cache_folders())
    for root in tried:
        folder = root / f"dygmamba-{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}"
        with suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            if not _is_private(root.stat(), stat.S_IWOTH):
                continue
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_private(folder.lstat(), OTHERS_CAN_WRITE) and os.access(folder, os.W_OK | os.X_OK):
                return folder
    places = ", ".join(map(str, tried))
    warnings.warn(
        DygWarning(
            f"kernels are compiled anew in every process: none of {places} is a folder that this user, and nobody "
            "else, can write; set NUMBA_CACHE_DIR to one"
        ),
        stacklevel=2,
    )
    return None


def list_cache_folders() -> Iterator[Path]:
    """Where Numba looks too: the folder the user names, beside the sources, the user's cache."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"]).absolute()
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "numba"


def read_private(path: Path) -> bytes | None:
    """A file's bytes, if it is there, no link, this user's, and nobody else's to write."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        return file.read() if _is_private(os.fstat(handle), OTHERS_CAN_WRITE) else None
    return None


def _is_private(found: os.stat_result, others: int) -> bool:
    """Whether a folder or file, no link, is this user's and others lack these rights; Windows has its own."""
    if os.name != "posix":
        return True
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return kind and found.st_uid == os.geteuid() and not found.st_mode & others


@inlined(inline="always")
def first_not_less(values, low, high, target):
    """The first place in [low, high) whose value is not below the target, or high: where the past of a time ends."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low
