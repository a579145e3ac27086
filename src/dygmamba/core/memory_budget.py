"""How much memory there is for this process, and one sentence before, or at the latest when, it runs out.

Importing this is light.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError

# what torch, NumPy and Arrow say where the system gives no more; a MemoryError says so by its type
OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "CUDA out of memory",
    "not enough memory",
    "bad_alloc",
    "malloc of size",
)
TENSOR_FACTORIES = (
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
)  # functions of torch that make a tensor of a size
DEFAULT_BUDGET = 10**9  # bytes: beyond it, columns and look-ups are made and kept on the disk
UNLIMITED = 1 << 62


class MemoryBudgetError(ConfigError):
    """Something that would take more memory than there is."""


def get_free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its container, of its own limits."""
    machine = _read_memory_table("/proc/meminfo").get("MemAvailable", UNLIMITED)
    try:
        container = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # none, or "max"
        container = UNLIMITED
    return min([machine, container, *_get_process_limits()])


def get_memory_limit() -> int:
    """Bytes of data that this process may ever have: what it has, and what is free."""
    return get_free_memory() + _read_memory_table("/proc/self/status").get("VmData", 0)


def require_memory(size: float, what: str) -> None:
    """Refuse what takes so many bytes, where there are fewer."""
    if size > (free := get_free_memory()):
        raise MemoryBudgetError(
            f"{what} takes {format_bytes(size)} of memory and {format_bytes(free)} are free here; choose less"
        )


@contextmanager
def limit_tensor_memory(what: str, share: float = 1.0) -> Iterator[None]:
    """No tensor is made inside that would, with those before it, take more than a share of the free memory.

    Sizes are added up before anything is allocated, so a width of a million costs nothing but a sentence.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    free, makers, taken = get_free_memory(), {getattr(torch, name) for name in TENSOR_FACTORIES}, 0

    class Adding(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal taken
            if func in makers:
                taken += 4 * _count_elements(args, kwargs or {})
                if taken > share * free:
                    need = f"at least {format_bytes(taken / share)} of memory and {format_bytes(free)} are free here"
                    raise MemoryBudgetError(f"{what} takes {need}; choose smaller ones")
            return func(*args, **(kwargs or {}))

    with Adding():
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, of whatever package, says that there is no more memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_MESSAGES)
    )


def describe_shortage(error: BaseException) -> str:
    """The sentence about an error that says there is no more memory."""
    asked = re.search(r"allocate ([\d,]+) bytes|allocate ([\d.]+ \w?i?B)", str(error))
    more = (
        f" ({asked[2] or format_bytes(int(asked[1].replace(',', '')))} more were asked for)" if asked else ""
    )
    return (
        f"this takes more memory than there is{more}; choose a smaller batch, length or width, or less data"
    )


def format_bytes(size: float) -> str:
    """Bytes as a person says them."""
    return f"{size / 1e9:,.2f} GB" if size < 1e15 else f"{size / 1e9:.1e} GB"


def parse_gigabytes(gigabytes: float) -> int:
    """What a person calls so many GB."""
    if not 0.001 <= gigabytes < 1e6:
        raise ConfigError(f"`memory` is {gigabytes:g} GB; give at least 0.001 and less than a million")
    return int(gigabytes * 1e9)


def _count_elements(args: Any, named: dict[str, Any]) -> int:
    """How many a maker is asked for."""
    size = args if args else named.get("size", ())
    size = size[0] if size and not isinstance(size[0], int) else size
    return math.prod(number for number in size if isinstance(number, int))


def _get_process_limits() -> list[int]:
    """What the limits on this process leave of the address space and of its data."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    used = _read_memory_table("/proc/self/status")
    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    softs = [(resource.getrlimit(kind)[0], used.get(name, 0)) for kind, name in limits]
    return [max(0, soft - taken) for soft, taken in softs if soft != resource.RLIM_INFINITY]


def _read_memory_table(path: str) -> dict[str, int]:
    """The lines "name: number kB" of a file of the system, in bytes; none where there is no such file."""
    if not os.path.exists(path):
        return {}
    found = re.findall(r"^(\w+):\s+(\d+) kB$", Path(path).read_text(), re.MULTILINE)
    return {name: int(number) << 10 for name, number in found}
