"""The walk rows in Numba: each entry is computed from the previous entry of its node."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dygmamba.ops.numba_kernels import kernel

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decay: float) -> Tensor:
    rows = np.empty((len(ends.key), layers, base.shape[1]), base.numpy().dtype)
    given = (ends.instant, ends.key, ends.entry, ends.partner, base.contiguous())
    _fill(*(column.numpy() for column in given), layers, decay, rows)
    return torch.from_numpy(rows)


@kernel()
def _fill(instant, key, entry, partner, base, layers, decay, rows):
    stride = instant.shape[0] + 1
    width = base.shape[1]
    current = -1  # the ends of an entry are adjacent
    for end in range(entry.shape[0]):
        at, other = entry[end], partner[end]
        node, now = key[at] // stride, instant[key[at] % stride]
        if at != current:
            current = at
            earlier = at > 0 and key[at - 1] >= node * stride
            age = now - instant[key[at - 1] % stride] if earlier else 0.0
            for i in range(layers):
                fade = np.exp(-decay * (i + 1) * age) if earlier else 0.0
                for j in range(width):
                    rows[at, i, j] = rows[at - 1, i, j] * fade if earlier else 0.0
        # the partner's rows strictly before this instant: the entry before its own of this instant
        partner_node = key[other] // stride
        for j in range(width):
            rows[at, 0, j] += base[partner_node, j]
        if other > 0 and key[other - 1] >= partner_node * stride:
            age = now - instant[key[other - 1] % stride]
            for i in range(1, layers):
                fade = np.exp(-decay * i * age)
                for j in range(width):
                    rows[at, i, j] += rows[other - 1, i - 1, j] * fade
