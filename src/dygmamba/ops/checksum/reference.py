"""Reference of the checksum: integers of Python, a word at a time."""

import numpy as np

from dygmamba.ops import checksum


def hash_lanes(words: np.ndarray) -> np.ndarray:
    """Return the hash of every fourth word, from the first, second, third and fourth on."""
    lanes = [_hash(words[first :: checksum.LANES]) for first in range(checksum.LANES)]
    return np.array(lanes, np.uint64)


def join_lanes(words: np.ndarray) -> int:
    return _hash(words)


def _hash(words: np.ndarray) -> int:
    joined = checksum.OFFSET
    for word in words.tolist():
        joined = (joined ^ word) * checksum.PRIME % 2**64
    return joined
