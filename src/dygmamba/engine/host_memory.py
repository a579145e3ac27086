"""What a step on the CPU frees is kept for the next one: mapping it anew would cost a fault for every page."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of glibc
MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc serve large blocks from its heap and keep them; whether it will. Other platforms are left alone."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, MOST))
