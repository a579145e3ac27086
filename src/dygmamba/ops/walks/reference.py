"""Reference of the walks: rows instant by instant. The look-up is vectorised torch on every device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds, WalkRows, WalkTable


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decays: Tensor) -> Tensor:
    """Decay the rows of all nodes from instant to instant; each instant adds the rows from before it."""
    stride, bank = len(ends.instant) + 1, len(decays)
    state = base.new_zeros(len(base), bank, layers + 1, base.shape[1])  # [n c k1 d]
    state[:, :, 0] = base[:, None]
    rows = base.new_zeros(len(ends.key), bank, layers, base.shape[1])
    node, number = ends.key // stride, ends.key % stride
    for now, gap in enumerate(ends.instant.diff(prepend=ends.instant[:1])):
        state *= torch.exp(-decays[:, None] * gap * torch.arange(layers + 1).double())[..., None].to(
            base.dtype
        )
        current = number[ends.entry] == now
        own, partner = node[ends.entry[current]], node[ends.partner[current]]
        state[:, :, 1:] += torch.zeros_like(state[:, :, 1:]).index_add_(0, own, state[partner, :, :-1])
        rows[number == now] = state[node[number == now], :, 1:]
    return rows


def look_up_rows(table: "WalkTable", node: Tensor, time: Tensor) -> Tensor:
    """Decay the rows of the last entry strictly before each time."""
    if not len(table.key):
        return decay_rows(table, node, torch.full_like(node, -1), torch.zeros_like(time))
    stride = len(table.instant) + 1
    rank = torch.searchsorted(table.instant, time.contiguous())  # instants strictly earlier
    last = torch.searchsorted(table.key, node * stride + rank) - 1
    exists = (last >= 0) & (table.key[last] >= node * stride) & (node >= 0)
    last = torch.where(exists, last, 0)
    age = torch.where(exists, time - table.instant[table.key[last] % stride], 0)
    return decay_rows(table, node, torch.where(exists, last, -1), age)


def decay_rows(table: "WalkRows", node: Tensor, last: Tensor, age: Tensor) -> Tensor:
    """Return P^0 of each node and the rows `last` decayed by `age`; zeros for row -1."""
    base = table.base[node.clamp(min=0)] * (node >= 0)[..., None]  # [*q d]
    bank, layers = table.rows.shape[1:3]
    base = base[..., None, None, :].expand(*node.shape, bank, 1, -1)  # the same P^0 for every decay
    if not len(table.rows):
        return torch.cat([base, base.new_zeros(*node.shape, bank, layers, base.shape[-1])], dim=-2)
    exists = last >= 0
    steps = torch.arange(1, layers + 1, device=node.device)
    faded = torch.exp(-table.decays[:, None] * age[..., None, None] * steps)  # [*q c k]
    decay = torch.where(exists[..., None, None], faded, 0)
    rows = table.rows[last.clamp(min=0)] * decay[..., None].to(base.dtype)
    return torch.cat([base, rows], dim=-2)
