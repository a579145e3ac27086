"""Co-occurrence counts with one small table per pair, in Numba: indexed by node id if ids are small, hashed otherwise.

A cell holds both counts of a node in one 64-bit number, left in the low half and right in the high half, which is
also how two neighbouring int32 columns of the output lie in memory on the little-endian machines Numba supports.
"""

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import inlined, kernel


def count_pair_tokens(node: Tensor, mask: Tensor) -> Tensor:
    """Count each token's node in both sequences of its pair, sequences i and p + i of 2 p."""
    cells = torch.empty(node.shape, dtype=torch.int64)
    _count(node.contiguous().numpy(), mask.contiguous().numpy(), cells.numpy())
    return cells.view(torch.int32).view(*node.shape, 2)


@inlined(inline="always")
def _slot(keys, bits, token):
    """Find the slot of `token` by multiplicative hashing and linear probing; -1 marks a free slot."""
    size = keys.shape[0]
    at = np.int64((np.uint64(token) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))
    while keys[at] != -1 and keys[at] != token:
        at = (at + 1) & (size - 1)
    return at


@inlined()
def _indexed(cells, left, right, left_mask, right_mask, in_left, in_right):
    """Count with the id as the slot; ids are read as unsigned, which spares Numba the check for negative indices."""
    for j in range(left.shape[0]):
        if left_mask[j]:
            cells[np.uint32(left[j])] += np.int64(1)
    for j in range(right.shape[0]):
        if right_mask[j]:
            cells[np.uint32(right[j])] += np.int64(1) << np.int64(32)
    for j in range(left.shape[0]):
        in_left[j] = cells[np.uint32(left[j])] if left_mask[j] else np.int64(0)
    for j in range(right.shape[0]):
        in_right[j] = cells[np.uint32(right[j])] if right_mask[j] else np.int64(0)


@inlined()
def _hashed(cells, keys, bits, left, right, left_mask, right_mask, in_left, in_right):
    """Count with a hash table; the output holds each token's slot until all counts are known."""
    for tokens, mask, out, one in (
        (left, left_mask, in_left, np.int64(1)),
        (right, right_mask, in_right, np.int64(1) << np.int64(32)),
    ):
        for j in range(tokens.shape[0]):
            out[j] = -1
            if mask[j]:
                at = _slot(keys, bits, tokens[j])
                keys[at] = tokens[j]
                cells[at] += one
                out[j] = at
    for out in (in_left, in_right):
        for j in range(out.shape[0]):
            out[j] = cells[out[j]] if out[j] >= 0 else 0


# not parallel: if a core is busy, waiting for a second thread costs a time slice, a hundred times the work
@kernel()
def _count(node, mask, out):
    p, length = node.shape[0] // 2, node.shape[1]
    high = np.int32(0)
    for token in node.flat:
        high = max(high, token)
    # few nodes: a table by id; many: a hash table, at most half full
    bits = 0
    size = 1 + np.int64(high)
    if size > 16 * length:
        bits = 1
        while (1 << bits) < 4 * length:
            bits += 1
        size = 1 << bits
    for i in range(p):
        cells = np.zeros(size, np.int64)
        if bits:
            keys = np.full(size, -1, np.int32)
            _hashed(cells, keys, bits, node[i], node[p + i], mask[i], mask[p + i], out[i], out[p + i])
        else:
            _indexed(cells, node[i], node[p + i], mask[i], mask[p + i], out[i], out[p + i])
