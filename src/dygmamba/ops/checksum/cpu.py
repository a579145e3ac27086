"""The checksum in Numba: four independent products at once, which hides their latency."""

import numpy as np

from dygmamba.ops.numba_kernels import kernel


@kernel()
def hash_lanes(words):
    """Return the hashes of the four lanes."""
    prime, offset = np.uint64(0x00000100000001B3), np.uint64(0xCBF29CE484222325)
    a, b, c, d = offset, offset, offset, offset
    whole = words.shape[0] // 4 * 4
    for i in range(0, whole, 4):
        a = (a ^ words[i]) * prime
        b = (b ^ words[i + 1]) * prime
        c = (c ^ words[i + 2]) * prime
        d = (d ^ words[i + 3]) * prime
    lanes = np.array([a, b, c, d])
    for i in range(whole, words.shape[0]):
        lanes[i - whole] = (lanes[i - whole] ^ words[i]) * prime
    return lanes


@kernel()
def join_lanes(words):
    """Return the hash of a few words, one after the other."""
    prime, joined = np.uint64(0x00000100000001B3), np.uint64(0xCBF29CE484222325)
    for i in range(words.shape[0]):
        joined = (joined ^ words[i]) * prime
    return joined
