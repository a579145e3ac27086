"""Reference of the walks: rows instant by instant. The look-up is vectorised torch on every device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds, WalkTable


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decay: float) -> Tensor:
    """Decay the rows of all nodes from instant to instant; each instant adds the rows from before it."""
    stride = len(ends.instant) + 1
    state = torch.cat([base[:, None], base.new_zeros(len(base), layers, base.shape[1])], dim=1)  # [n k1 d]
    rows = base.new_zeros(len(ends.key), layers, base.shape[1])
    node, number = ends.key // stride, ends.key % stride
    for now, gap in enumerate(ends.instant.diff(prepend=ends.instant[:1])):
        state *= torch.exp(-decay * gap * torch.arange(layers + 1).double())[:, None].to(base.dtype)
        current = number[ends.entry] == now
        own, partner = node[ends.entry[current]], node[ends.partner[current]]
        state[:, 1:] += torch.zeros_like(state[:, 1:]).index_add_(0, own, state[partner, :-1])
        rows[number == now] = state[node[number == now], 1:]
    return rows


def look_up_rows(table: "WalkTable", node: Tensor, time: Tensor) -> Tensor:
    """Decay the rows of the last entry strictly before each time."""
    base = table.base[node.clamp(min=0)] * (node >= 0)[..., None]  # [*q d]
    layers = table.rows.shape[1]
    if not len(table.key):
        return torch.cat([base[..., None, :], base.new_zeros(*node.shape, layers, base.shape[-1])], dim=-2)
    stride = len(table.instant) + 1
    rank = torch.searchsorted(table.instant, time.contiguous())  # instants strictly earlier
    last = torch.searchsorted(table.key, node * stride + rank) - 1
    exists = (last >= 0) & (table.key[last] >= node * stride) & (node >= 0)
    last = torch.where(exists, last, 0)
    age = torch.where(exists, time - table.instant[table.key[last] % stride], 0)
    steps = torch.arange(1, layers + 1, device=node.device)
    decay = torch.where(exists[..., None], torch.exp(-table.decay * age[..., None] * steps), 0)  # [*q k]
    rows = table.rows[last] * decay[..., None].to(base.dtype)
    return torch.cat([base[..., None, :], rows], dim=-2)
