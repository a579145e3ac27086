"""The rows instant by instant, and the look-up as vectorised torch: the definition, and the path of every device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dygmamba.ops.walks import WalkEnds, WalkTable


def walk_rows(ends: "WalkEnds", base: Tensor, layers: int, decay: float) -> Tensor:
    """All rows of all nodes, faded from instant to instant; each instant adds what was there before it."""
    stride = len(ends.instant) + 1
    state = torch.cat([base[:, None], base.new_zeros(len(base), layers, base.shape[1])], dim=1)  # [n k1 d]
    rows = base.new_zeros(len(ends.key), layers, base.shape[1])
    node, number = ends.key // stride, ends.key % stride
    for now, gap in enumerate(ends.instant.diff(prepend=ends.instant[:1])):
        state *= torch.exp(-decay * gap * torch.arange(layers + 1).double())[:, None].to(base.dtype)
        here = number[ends.entry] == now
        own, partner = node[ends.entry[here]], node[ends.partner[here]]
        state[:, 1:] += torch.zeros_like(state[:, 1:]).index_add_(0, own, state[partner, :-1])
        rows[number == now] = state[node[number == now], 1:]
    return rows


def rows_before(table: "WalkTable", node: Tensor, time: Tensor) -> Tensor:
    """The rows of the last entry strictly before each time, faded since."""
    base = table.base[node.clamp(min=0)] * (node >= 0)[..., None]  # [*q d]
    layers = table.rows.shape[1]
    if not len(table.key):
        return torch.cat([base[..., None, :], base.new_zeros(*node.shape, layers, base.shape[-1])], dim=-2)
    stride = len(table.instant) + 1
    rank = torch.searchsorted(table.instant, time.contiguous())  # instants strictly earlier
    last = torch.searchsorted(table.key, node * stride + rank) - 1
    some = (last >= 0) & (table.key[last] >= node * stride) & (node >= 0)
    last = torch.where(some, last, 0)
    age = torch.where(some, time - table.instant[table.key[last] % stride], 0)
    steps = torch.arange(1, layers + 1, device=node.device)
    fade = torch.where(some[..., None], torch.exp(-table.decay * age[..., None] * steps), 0)  # [*q k]
    rows = table.rows[last] * fade[..., None].to(base.dtype)
    return torch.cat([base[..., None, :], rows], dim=-2)
