"""Look-ups with more padding than they came with."""

from dataclasses import replace
from itertools import pairwise

import torch

from dygmamba.sampling.view import NeighborSequence


def widen(seq: NeighborSequence) -> NeighborSequence:
    """Three more padding entries, filled with ids of real nodes and events and with a later time."""

    def grow(x, value):
        return torch.cat([x, torch.full((x.shape[0], 3), value, dtype=x.dtype)], dim=1)

    return replace(seq, node=grow(seq.node, 2), event=grow(seq.event, 1), time=grow(seq.time, 2e9))


def widen_hops(hops: tuple[NeighborSequence, ...]) -> tuple[NeighborSequence, ...]:
    """One or two hops, wider; the second holds three more sequences per query, empty ones, for the new entries."""
    wide = [widen(hops[0])]
    for entries, seq in pairwise(hops):
        first = torch.arange(len(seq.query_node)).view(entries.node.shape)
        rows = torch.cat([first, first[:, :1].expand(-1, 3)], dim=1)
        real = torch.arange(rows.shape[1]) < entries.node.shape[1]
        more = widen(seq[rows.flatten()])
        wide.append(replace(more, length=more.length * real.repeat(len(rows))))
    return tuple(wide)
