"""Shortlist of candidates for streams with so many destinations that scoring all of them takes long.

A node's shortlist has its recent neighbors, their recent neighbors, the most frequent of the neighbors of these (what
sources of the same destinations went on to), the nodes of the last events, and nodes that were popular on the ranked
side, of late and since the stream began. Only events strictly before the query count.

Legend: n nodes, w neighbors, s their neighbors, c candidates.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor

from dygmamba.engine.stream import Stream

MAX_EXACT = 20_000  # candidates that are all scored
# Neighbors of the node that are candidates, and the last of them, whose neighbors are too
OWN_NEIGHBORS, LAST_NEIGHBORS = 256, 20
SECOND_NEIGHBORS, THIRD_NEIGHBORS = 64, 16  # of each of the last ones, and of each of these
FOLLOWERS, POPULAR = 1_000, 700  # POPULAR twice: of late, and since the stream began
LAST_EVENTS, RECENT_EVENTS = (
    500,
    20_000,
)  # of the stream: all their nodes are candidates, and the popular ones


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Proposes candidates among the nodes of one side of a stream.

    Attributes:
        stream: The events.
        side: "dst" or "src": the side of the candidates.
        candidates: All of them.
    """

    stream: Stream
    side: str
    candidates: Int64[Tensor, "c"]
    _popular: dict[int, Tensor] = field(default_factory=dict)  # by number of earlier events

    def propose(self, node: int, time: float) -> Int64[Tensor, "_"]:
        """Return the shortlist of a node at a time, in ascending order."""
        own = self._list_recent(torch.tensor([node]), time, OWN_NEIGHBORS)
        second = self._list_recent(own[-LAST_NEIGHBORS:], time, SECOND_NEIGHBORS)
        third = self._list_recent(second, time, THIRD_NEIGHBORS)
        frequent = _list_frequent(third, FOLLOWERS)
        proposed = torch.cat([own, second, frequent, self._list_popular(time)]).unique()
        return proposed[torch.isin(proposed, self.candidates)]

    def _list_recent(self, node: Int64[Tensor, "n"], time: float, count: int) -> Int64[Tensor, "_"]:
        """Return the last neighbors of nodes before a time, each as often as it is one, the newest of a node last."""
        when = torch.full(node.shape, time, dtype=torch.float64)
        device = self.stream.device
        recent = self.stream.index.recent(node.to(device), when.to(device), count)
        return recent.node[recent.mask].cpu().long()

    def _list_popular(self, time: float) -> Int64[Tensor, "_"]:
        store = self.stream.store
        earlier = int(torch.searchsorted(store.time, time))
        if earlier not in self._popular:
            column = getattr(store, self.side)[:earlier]
            popular = [_list_frequent(part, POPULAR) for part in (column[-RECENT_EVENTS:], column)]
            self._popular[earlier] = torch.cat([column[-LAST_EVENTS:], *popular])
        return self._popular[earlier]


def _list_frequent(node: Int64[Tensor, "n"], count: int) -> Int64[Tensor, "_"]:
    """Return the nodes that are listed most often; of equally frequent ones those with the smallest numbers."""
    number = torch.bincount(node)
    frequent = number.sort(descending=True, stable=True).indices[:count]
    return frequent[number[frequent] > 0]
