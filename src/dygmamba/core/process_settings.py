"""What changes the whole process, in one place: nobody else sets a flag that others feel.

Importing this is light: the first function must be called before torch is imported.
"""

import atexit
import ctypes
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dygmamba.core.errors import ConfigError, first_line

PROCESS_GROUP_TIMEOUT = timedelta(
    hours=2
)  # for a process that is alive and says nothing: the first one may write a page alone
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
MAX_INT32 = 2**31 - 1


def use_passive_wait_policy() -> None:
    """A waiting thread must sleep, not spin: torch's and Numba's thread pools share the cores (docs/research/log.md).

    The user's own choice holds. It is read when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def keep_freed_memory() -> bool:
    """What a step on the CPU frees is kept for the next one: mapping it anew would cost a fault for every page.

    glibc serves large blocks from its heap and keeps them; whether it will. Other platforms are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, MAX_INT32))


def limit_process_memory(most: int) -> bool:
    """Hold no more than so many bytes of data: an error can be told, a killed process tells nothing.

    Whether it is so: a lower limit of the user's own stays, and with a GPU's driver, whose addresses count as memory,
    nothing is limited.
    """
    try:
        import resource
    except ImportError:  # Windows
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if (
        soft != resource.RLIM_INFINITY
        or os.path.exists("/dev/nvidiactl")
        or not sys.platform.startswith("linux")
    ):
        return False
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return True


def enable_determinism() -> None:
    """Two runs agree in every bit on a GPU too, or torch refuses; call it before CUDA is first used.

    On a CPU that takes the same number of threads, which a run writes down (`runs/provenance.py`).
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def join_process_group(kind: str) -> bool:
    """Meet the processes that torchrun, or `processes=`, started for the same training; whether there are any.

    On GPUs each takes one of its machine's; what is decided and gathered on the hosts goes over gloo, gradients over
    NCCL.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ):
        return False
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return False
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        if place >= torch.cuda.device_count():
            raise ConfigError(
                f"process {place + 1} of this machine has no GPU, torch sees {torch.cuda.device_count()}; "
                "start one process per GPU, or use the cpu"
            )
        torch.cuda.set_device(place)
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", timeout=PROCESS_GROUP_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this training did not find each other ({first_line(error)}); start them with torchrun, "
            "or unset RANK to train with one"
        ) from error
    atexit.register(leave_process_group)
    return True


def is_first_process() -> bool:
    """Return whether this process is alone, or the first of those that a launcher started together."""
    return not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ) or os.environ["RANK"] == "0"


def leave_process_group() -> None:
    """The end of what `join_others` began, at the latest with the process."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def set_thread_count(count: int) -> None:
    """Let torch, and the kernels that ask it, compute with so many threads."""
    import torch

    torch.set_num_threads(count)


def escape_unencodable_output() -> None:
    """A letter that the terminal's encoding lacks is written as its escape, on stdout as Python does on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def redirect_warnings(kind: type[Warning], say: Callable[[str], None]) -> None:
    """Warnings of a kind are said each time, as their own sentence; all others are shown as before."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, kind):
            say(str(message))
        else:
            before(message, category, *place, **more)

    warnings.simplefilter("always", kind)
    warnings.showwarning = show


@contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Matrix products at torch's "highest", "high" (TF32) or "medium" inside, and what was in use before afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
