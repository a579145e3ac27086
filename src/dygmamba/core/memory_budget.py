"""Memory that this process may use, and errors before (or at the latest when) it runs out.

Importing this module is cheap.
"""

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError

try:
    import resource
except ImportError:  # Windows
    resource = None

# parts of the messages with which torch, NumPy and Arrow report that memory ran out; a MemoryError is recognized by
# its type
OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "CUDA out of memory",
    "not enough memory",
    "bad_alloc",
    "malloc of size",
    "failed to map segment",  # of a library, on import
)
TENSOR_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn")  # functions of torch
DEFAULT_BUDGET = 10**9  # bytes; larger columns and indexes are built and kept on disk
UNLIMITED = 1 << 62
CONTAINER = Path("/sys/fs/cgroup")


class MemoryBudgetError(ConfigError):
    """Something that would take more memory than there is."""

    code = "out-of-memory"


def get_free_memory() -> int:
    """Return the bytes this process may still allocate: of the machine, its container and its own limits."""
    machine = _read_memory_table("/proc/meminfo").get("MemAvailable", UNLIMITED)
    return min([machine, _get_container_memory(), *_get_process_limits()])


def get_memory_limit() -> int:
    """Return the bytes of data this process may ever have: what it has, and what is free."""
    return get_free_memory() + _read_memory_table("/proc/self/status").get("VmData", 0)


def reset_peak_memory() -> bool:
    """Forget the largest memory of this process so far; returns False where that is not possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # 5: only the peak, see proc(5)
    except OSError:
        return False
    return True


def get_peak_memory() -> int:
    """Return the largest memory of this process since its start or the last reset, in bytes; 0 if unknown.

    Outside Linux it is since the start: the peak cannot be reset there.
    """
    # Unlike getrusage, /proc does not inherit the peak of the parent process.
    return _read_memory_table("/proc/self/status").get("VmHWM", 0) or _get_usage_peak()


def require_memory(size: float, what: str) -> None:
    """Raise MemoryBudgetError if something needs more bytes than are free."""
    if size > (free := get_free_memory()):
        raise MemoryBudgetError(
            f"{what} needs {format_bytes(size)} of memory, {format_bytes(free)} are free here; choose less"
        )


@contextmanager
def limit_tensor_memory(what: str, share: float = 1.0) -> Iterator[None]:
    """Context manager: raise MemoryBudgetError before tensors together take more than a share of the free memory.

    Sizes are added up before anything is allocated, so a width of a million is an error at once.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    free, factories, taken = get_free_memory(), {getattr(torch, name) for name in TENSOR_FACTORIES}, 0

    class Adding(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal taken
            if func in factories:
                taken += 4 * _count_elements(args, kwargs or {})
                if taken > share * free:
                    need = f"at least {format_bytes(taken / share)} of memory, {format_bytes(free)} are free here"
                    raise MemoryBudgetError(f"{what} needs {need}; choose smaller settings")
            return func(*args, **(kwargs or {}))

    with Adding():
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of any package says that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError)
        and any(words in str(error) for words in OUT_OF_MEMORY_MESSAGES)
    )


def describe_shortage(error: BaseException) -> str:
    """Return the message for an error that says memory ran out."""
    amount = re.search(r"allocate ([\d,]+) bytes|allocate ([\d.]+ \w?i?B)", str(error))
    more = ""
    if amount:
        more = f" ({amount[2] or format_bytes(int(amount[1].replace(',', '')))} more were requested)"
    return (
        f"this needs more memory than there is{more}; choose a smaller batch, length or width, or less data"
    )


def format_bytes(size: float) -> str:
    """Format bytes in GB."""
    return f"{size / 1e9:,.2f} GB" if size < 1e15 else f"{size / 1e9:.1e} GB"


def parse_gigabytes(gigabytes: float) -> int:
    """Return GB as bytes; raise ConfigError for a value that makes no sense."""
    if not 0.001 <= gigabytes < 1e6:
        raise ConfigError(
            f"`memory` takes at least 0.001 and less than a million GB; got {gigabytes:g}",
            code="memory-out-of-range",
        )
    return int(gigabytes * 1e9)


def _count_elements(args: Any, named: dict[str, Any]) -> int:
    """Return how many elements a tensor factory is called for."""
    size = args if args else named.get("size", ())
    size = size[0] if size and not isinstance(size[0], int) else size
    return math.prod(number for number in size if isinstance(number, int))


def _get_container_memory() -> int:
    """Return what is left of the limit of the control group; pages of files do not count, as they can be taken back."""
    try:
        limit, used = (
            int((CONTAINER / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current")
        )
        statistics = (CONTAINER / "memory.stat").read_text(encoding="utf-8")
    except (OSError, ValueError):  # none, or "max"
        return UNLIMITED
    files = re.findall(r"^(?:in)?active_file (\d+)$", statistics, re.MULTILINE)
    return max(0, limit - max(0, used - sum(map(int, files))))


def _get_process_limits() -> list[int]:
    """Return what the limits of this process leave of its address space and of its data."""
    if resource is None:
        return []
    used = _read_memory_table("/proc/self/status")
    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    softs = [(resource.getrlimit(kind)[0], used.get(name, 0)) for kind, name in limits]
    return [max(0, soft - taken) for soft, taken in softs if soft != resource.RLIM_INFINITY]


def _get_usage_peak() -> int:
    """Return the peak that the system counts for this process, in bytes; 0 on Windows."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _read_memory_table(path: str) -> dict[str, int]:
    """Return the lines "name: number kB" of a system file, in bytes; empty if there is no such file."""
    if not os.path.exists(path):
        return {}
    found = re.findall(r"^(\w+):\s+(\d+) kB$", Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(number) << 10 for name, number in found}
