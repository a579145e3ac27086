"""Distribute the tasks of a compiled kernel to threads.

The threads are Python's, around kernels that release the GIL. Unlike Numba's thread pools they can be used from several
Python threads and after a fork, and they bring no second OpenMP runtime next to torch's.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

PIECES = 8  # calls per thread: sequences differ in length, so a thread that finishes early takes more
SERIAL = 1 << 19  # with fewer updates, starting a thread costs more than it saves


def run_in_threads(kernel: Callable[..., None], tasks: int, size: int, *arguments: Any) -> None:
    """Run all tasks of a kernel (`size` updates in total) on as many threads as torch may use, where it is imported."""
    torch = sys.modules.get("torch")
    allowed = (os.cpu_count() or 1) if torch is None else torch.get_num_threads()
    threads = min(allowed, tasks) if size > SERIAL else 1
    if threads <= 1:
        kernel(0, tasks, *arguments)
        return
    pieces = min(PIECES * threads, tasks)
    cuts = [tasks * piece // pieces for piece in range(pieces + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(kernel, a, b, *arguments) for a, b in pairwise(cuts)]:
            done.result()
