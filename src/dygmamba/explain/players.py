"""Which past events a score is divided among: those of either node of a pair, old ones of a long past in groups.

Legend: k entries of a past, l entries a look-up brings, n events.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.view import PairBatch

MOST = 64  # players of one explanation: both pasts of a default model are 62 events
GROUPS = 4  # of each node's older events
MEETINGS = 8  # of the pair, that stand alone however old they are


@dataclass(frozen=True, slots=True)
class Player:
    """Events that are there or not there together, oldest first; nearly always one."""

    events: tuple[int, ...]
    of_src: bool  # in the past of the pair's source
    of_dst: bool


def arranged(src: Int64[Tensor, "n"], dst: Int64[Tensor, "m"], most: int = MOST) -> tuple[Player, ...]:
    """The events of two pasts, each once, oldest first; beyond `most` the older ones are put in groups.

    An event of both pasts is a meeting of the pair; the last of them are never in a group.
    """
    own, others = set(src.tolist()), set(dst.tolist())
    events = sorted(own | others)
    alone = events
    if len(events) > most:
        met = sorted(own & others)[-MEETINGS:]
        recent = [event for event in events if event not in met][-(most - 2 * GROUPS - len(met)) :]
        alone = sorted({*met, *recent})
    rest = sorted(set(events) - set(alone))
    grouped = [
        run
        for chosen in ([e for e in rest if e in own], [e for e in rest if e not in own])
        for run in _runs(chosen, GROUPS)
    ]
    players = [
        Player(tuple(run), any(e in own for e in run), any(e in others for e in run))
        for run in [*grouped, *([event] for event in alone)]
    ]
    return tuple(sorted(players, key=lambda player: player.events[-1]))


def newest(index: NeighborIndex, pairs: PairBatch, each: int, met: int) -> tuple[Player, ...]:
    """Of one pair the last events of each node and the last meetings of the two, one player each, oldest first."""
    src, dst = (
        history(index, node[None], pairs.time[:1]) for node in (pairs.src[0], pairs.dst[0])
    )  # both oldest first
    both = src[torch.isin(src, dst)]
    kept = torch.cat([src[-each:], dst[-each:], both[-met:] if met else both[:0]])
    own, others = set(src.tolist()), set(dst.tolist())
    return tuple(
        Player((event,), event in own, event in others) for event in torch.unique(kept, sorted=True).tolist()
    )


def history(index: NeighborIndex, node: Int64[Tensor, "1"], time: Float64[Tensor, "1"]) -> Int64[Tensor, "k"]:
    """Every event of a node strictly before a time, oldest first, on the host."""
    begin, count = (int(value) for value in index.past(node, time))
    return index.entries.event[begin : begin + count].long().cpu()


def _runs(events: list[int], count: int) -> list[list[int]]:
    """Consecutive events in at most so many runs of about the same size."""
    size = -(-len(events) // count)
    return [events[at : at + size] for at in range(0, len(events), size)] if events else []
