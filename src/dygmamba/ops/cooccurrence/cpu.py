"""Counting with one small table per pair, in Numba: indexed by node id where ids are small, hashed otherwise."""

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor


def cooccurrence(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of each token in the left and in the right sequence."""
    (p, length), r = left.shape, right.shape[1]
    in_left = torch.empty(p, length, 2, dtype=torch.int32)
    in_right = torch.empty(p, r, 2, dtype=torch.int32)
    inputs = [x.contiguous().numpy() for x in (left, right, left_mask, right_mask)]
    highest = max((int(tokens.max()) for tokens in (left, right) if tokens.numel()), default=0)
    _count(*inputs, in_left.numpy(), in_right.numpy(), highest)
    return in_left, in_right


@njit(cache=True, nogil=True, inline="always")
def _slot(keys, bits, token):
    """Where `token` is or belongs: multiplicative hashing, linear probing; -1 marks a free slot."""
    size = keys.shape[0]
    at = np.int64((np.uint64(token) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))
    while keys[at] != -1 and keys[at] != token:
        at = (at + 1) & (size - 1)
    return at


@njit(cache=True, nogil=True, inline="always")
def _insert(keys, counts, bits, tokens, mask, side, slots):
    for j in range(tokens.shape[0]):
        slots[j] = -1
        if mask[j]:
            at = np.int64(tokens[j])
            if bits:
                at = _slot(keys, bits, tokens[j])
                keys[at] = tokens[j]
            counts[at, side] += 1
            slots[j] = at


@njit(cache=True, nogil=True, inline="always")
def _read(counts, slots, out):
    for j in range(slots.shape[0]):
        at = slots[j]
        out[j, 0] = counts[at, 0] if at >= 0 else 0
        out[j, 1] = counts[at, 1] if at >= 0 else 0


@njit(cache=True, nogil=True, parallel=True)
def _count(left, right, left_mask, right_mask, in_left, in_right, highest):
    (p, length), r = left.shape, right.shape[1]
    # few nodes: the id is the slot; many: a hash table, at most half full
    bits = 0
    size = highest + 1
    if size > 8 * (length + r):
        bits = 1
        while (1 << bits) < 2 * (length + r):
            bits += 1
        size = 1 << bits
    for i in prange(p):
        keys = np.full(size if bits else 0, -1, np.int32)
        counts = np.zeros((size, 2), np.int32)
        left_slots = np.empty(length, np.int32)
        right_slots = np.empty(r, np.int32)
        _insert(keys, counts, bits, left[i], left_mask[i], 0, left_slots)
        _insert(keys, counts, bits, right[i], right_mask[i], 1, right_slots)
        _read(counts, left_slots, in_left[i])
        _read(counts, right_slots, in_right[i])
