"""Speed of one core of this machine, relative to the one on which trainings were measured.

A short kernel with the two kinds of work that boosted trees do, sums into a table at random places and binary searches,
is timed in processor time, so that other programs hardly matter. Neither uses vector instructions: sorting and
exponentials are up to ten times faster where numpy finds AVX-512, and trees are not.
"""

import time
from functools import cache

import numpy as np

REFERENCE_SECONDS = 0.035  # of the kernel on the machine of `measured.json`
ROWS, BINS, REPETITIONS = 400_000, 4096, 5
SLOWNESS_RANGE = (0.2, 10.0)  # at most 5 times faster, 10 times slower


@cache
def measure_slowness() -> float:
    """Return how many times as long this machine takes as the measured one; about 0.2 s at the first call."""
    rng = np.random.Generator(np.random.PCG64(0))
    places, values, edges = rng.integers(0, BINS, ROWS), rng.random(ROWS), np.linspace(0, 1, BINS)
    # the shortest: another program can only make it longer
    seconds = min(_time_kernel(places, values, edges) for _ in range(REPETITIONS))
    return min(max(seconds / REFERENCE_SECONDS, SLOWNESS_RANGE[0]), SLOWNESS_RANGE[1])


def _time_kernel(places: np.ndarray, values: np.ndarray, edges: np.ndarray) -> float:
    start = time.thread_time()
    for _ in range(4):
        np.bincount(places, values, BINS)
    np.searchsorted(edges, values)
    return time.thread_time() - start
