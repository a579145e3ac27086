"""The walk rows in Numba: each entry is computed from the previous entry of its node."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import inlined, kernel

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decays: Tensor) -> Tensor:
    rows = np.empty((len(ends.key), len(decays), layers, base.shape[1]), base.numpy().dtype)
    given = (ends.instant, ends.key, ends.entry, ends.partner, base.contiguous(), decays)
    _fill(*(column.numpy() for column in given), rows)
    return torch.from_numpy(rows)


@inlined()
def _start_entry(rows, at, decays, age, earlier):
    """Set an entry to the rows of the entry before it, decayed by `age`; to 0 if its node has no earlier entry."""
    bank, layers, width = rows.shape[1:]
    for c in range(bank):
        for i in range(layers):
            fade = np.exp(-decays[c] * (i + 1) * age) if earlier else 0.0
            for j in range(width):
                rows[at, c, i, j] = rows[at - 1, c, i, j] * fade if earlier else 0.0


@inlined()
def _add_walks(rows, at, partner, decays, age):
    """Add the rows of the partner's entry, decayed by `age`, each to the next layer."""
    bank, layers, width = rows.shape[1:]
    for c in range(bank):
        for i in range(1, layers):
            fade = np.exp(-decays[c] * i * age)
            for j in range(width):
                rows[at, c, i, j] += rows[partner, c, i - 1, j] * fade


@kernel()
def _fill(instant, key, entry, partner, base, decays, rows):
    stride = instant.shape[0] + 1
    current = -1  # the ends of an entry are adjacent
    for end in range(entry.shape[0]):
        at, other = entry[end], partner[end]
        node, now = key[at] // stride, instant[key[at] % stride]
        if at != current:
            current = at
            earlier = at > 0 and key[at - 1] >= node * stride
            age = now - instant[key[at - 1] % stride] if earlier else 0.0
            _start_entry(rows, at, decays, age, earlier)
        # the partner's rows strictly before this instant: the entry before its own of this instant
        partner_node = key[other] // stride
        for c in range(decays.shape[0]):
            for j in range(base.shape[1]):
                rows[at, c, 0, j] += base[partner_node, j]
        if other > 0 and key[other - 1] >= partner_node * stride:
            _add_walks(rows, at, other - 1, decays, now - instant[key[other - 1] % stride])
