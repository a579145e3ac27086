"""A 64-bit checksum of bytes at the speed of memory, to notice damaged files; it is no protection against forgery.

The bytes are read as 64-bit words, the last one filled up with zeros, and dealt to four lanes in turn. A lane is
h <- (h XOR word) * PRIME modulo 2^64 (FNV-1a with words instead of bytes), and the lanes are joined in the same way.
Both steps are one-to-one in h and in the word, so a change of a single word always changes the result.
"""

import numpy as np
from jaxtyping import UInt8

WORD_BYTES = 8


def compute_checksum(content: UInt8[np.ndarray, "b"]) -> int:
    """Return the checksum of contiguous bytes; their number is part of it."""
    from dygmamba.ops.checksum import cpu

    whole = len(content) // WORD_BYTES * WORD_BYTES
    rest = np.zeros(WORD_BYTES, np.uint8)
    rest[: len(content) - whole] = content[whole:]
    last = np.array([rest.view(np.uint64)[0], len(content)], np.uint64)
    return int(cpu.join_lanes(np.concatenate([cpu.hash_lanes(content[:whole].view(np.uint64)), last])))
