"""Settings that change the whole process, all in one place.

Importing this module is cheap: `use_passive_wait_policy` must be called before torch is imported.
"""

import atexit
import ctypes
import gc
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dygmamba.core.errors import ConfigError, first_line

try:
    import resource
except ImportError:  # Windows
    resource = None

# A process may be silent for long: the first one may write a page while the others wait.
PROCESS_GROUP_TIMEOUT = timedelta(hours=2)
USUAL_GC_THRESHOLD, RARE_GC_THRESHOLD = gc.get_threshold(), 200_000
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
MAX_INT32 = 2**31 - 1
LAUNCHER_VARIABLES = {"RANK", "WORLD_SIZE", "MASTER_ADDR"}  # set by torchrun in each process


def use_passive_wait_policy() -> None:
    """Let waiting threads sleep instead of spin, because the thread pools of torch and Numba share the cores.

    The variable is read when torch is imported. A value that the user has set is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def collect_garbage_rarely() -> None:
    """Let the garbage collector run rarely, for a command that ends soon.

    Importing torch makes more than a million objects that stay, and the collector looks through them many times.
    """
    gc.set_threshold(RARE_GC_THRESHOLD)


def collect_garbage_as_usual() -> None:
    """Undo `collect_garbage_rarely`, for work in which a cycle of references may hold large tensors."""
    gc.set_threshold(*USUAL_GC_THRESHOLD)


def keep_freed_memory() -> bool:
    """Keep freed memory for the next training step, because mapping it anew costs a fault for every page.

    glibc then serves large blocks from its heap and keeps them. Returns False on other platforms, which stay as they
    are.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, MAX_INT32))


def limit_process_memory(most: int) -> bool:
    """Limit the data of this process to `most` bytes, so that it gets an error instead of being killed.

    Returns False if nothing was limited: a limit that the user has set is kept, and with a GPU driver, whose addresses
    count as memory, there is no limit.
    """
    if resource is None or os.path.exists("/dev/nvidiactl") or not sys.platform.startswith("linux"):
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        return False
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return True


def extend_memory_limit(size: int) -> None:
    """Raise the limit of this process by the size of a file that is going to be mapped copy-on-write.

    Linux counts all of such a map as data, although only the pages that are changed take memory. A hard limit, such as
    one set with `ulimit`, is not exceeded.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        raised = soft + size if hard == resource.RLIM_INFINITY else min(soft + size, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (raised, hard))


def enable_determinism() -> None:
    """Make two runs on a GPU agree in every bit, or raise an error; call it before CUDA is first used.

    On a CPU that only takes the same number of threads, which a run records (`runs/provenance.py`).
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def join_process_group(kind: str) -> bool:
    """Join the processes that torchrun, or `processes=`, started for the same training; returns whether there are any.

    Each process takes one GPU of its machine. Gradients go over NCCL, everything else over gloo.
    """
    if not set(os.environ) >= LAUNCHER_VARIABLES:
        return False
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return False
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local_rank + 1} of this machine has no GPU, torch sees {torch.cuda.device_count()}; "
                "start one process per GPU, or use the cpu",
                code="process-without-gpu",
            )
        torch.cuda.set_device(local_rank)
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", timeout=PROCESS_GROUP_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this training did not find each other ({first_line(error)}); start them with torchrun, "
            "or unset RANK to train with one",
            code="process-group-failed",
        ) from error
    atexit.register(leave_process_group)
    return True


def is_first_process() -> bool:
    """Return whether this process is alone, or the first of those that a launcher started together."""
    return not set(os.environ) >= LAUNCHER_VARIABLES or os.environ["RANK"] == "0"


def leave_process_group() -> None:
    """Leave the group that `join_process_group` joined, at the latest when the process ends."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def set_thread_count(count: int) -> None:
    """Set the number of threads of torch, and of the kernels that follow it."""
    import torch

    torch.set_num_threads(count)


def use_one_thread_after_fork() -> None:
    """Give torch one thread in every process that is forked from this one.

    A child has none of the threads of its parent's OpenMP pool, but waits for them, for ever, as soon as it uses more
    than one. It may set another number itself if its parent never used several.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=lambda: set_thread_count(1))


def escape_unencodable_output() -> None:
    """Write characters that the terminal's encoding lacks as escapes, on stdout as Python does on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def redirect_warnings(category: type[Warning], report: Callable[[str], None]) -> None:
    """Pass the text of warnings of a category to `report`, every time; all others are shown as before."""
    previous = warnings.showwarning

    def show(message: Warning | str, kind: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(kind, category):
            report(str(message))
        else:
            previous(message, kind, *where, **more)

    warnings.simplefilter("always", category)
    warnings.showwarning = show


@contextmanager
def use_matmul_precision(precision: str) -> Iterator[None]:
    """Context manager: float32 matrix products have torch's precision "highest", "high" (TF32) or "medium"."""
    import torch

    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
