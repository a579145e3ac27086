"""Any pairs at any times, and the likeliest of many: a trained scorer on a stream that may have gone on since.

Legend: p pairs, s sources, c candidates, k kept.
"""

from collections.abc import Callable
from copy import deepcopy
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dygmamba.engine.clock import CELL, Clock
from dygmamba.engine.lengths import pairs_per_pass
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, Walk, unwatched
from dygmamba.models.base import Scorer
from dygmamba.sampling.view import PairBatch


class Best(NamedTuple):
    """The likeliest candidates of each source, their logits, and the log of the sum of all its candidates' odds."""

    node: Int64[Tensor, "s k"]
    logit: Float[Tensor, "s k"]
    total: Float64[Tensor, "s"]


class Ranker:
    """A scorer on a stream: a pair sees all that is strictly earlier than its own time, and nothing else.

    In evaluation a memory lags by up to a cell of events, as published; here it is told of every event that is strictly
    earlier, the last cell cut at the question's time. The memory is the ranker's own, with the weights of when it was
    made: what else is asked of the scorer, on this stream or another, is not in it.
    """

    def __init__(
        self, scorer: Scorer, stream: Stream, seed: int, tokens: int | None = None, cell: int = CELL
    ) -> None:
        everything = torch.arange(len(stream.store))
        self.clock = Clock.of(stream.store, (everything,), cell) if scorer.stateful else None
        own = deepcopy(scorer) if scorer.stateful else scorer
        self.walk = Walk(own, stream, seed, self.clock, tokens)
        self._together = pairs_per_pass(scorer.requests, stream.device, tokens)
        self._loops = bool((stream.store.src == stream.store.dst).any())

    def logits(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        advance: Advance = unwatched,
    ) -> Float[Tensor, "p"]:
        """The logit of each pair, on the host, in the order asked."""
        seen = None if self.clock is None else self.clock.earlier(time)
        return self.walk(PairBatch.of(src, dst, time), seen, advance)

    def best(
        self,
        src: Int64[Tensor, "s"],
        time: Float64[Tensor, "s"],
        candidates: Int64[Tensor, "c"],
        k: int,
        advance: Advance = unwatched,
        *,
        only_new: bool = False,
        log_odds: Callable[[Tensor], Tensor] = Tensor.double,
    ) -> Best:
        """The k likeliest candidates of each source with their logits, the first in line before its ties.

        Where no event of the stream is a self-loop, a node is not its own candidate: its logit is -inf. With `only_new`
        nor is any that the source has met strictly before, whichever of them was the source then.
        """
        c, k = len(candidates), min(k, len(candidates))
        node, logit = torch.zeros(len(src), k, dtype=torch.int64), torch.full((len(src), k), -inf)
        total = torch.full((len(src),), -inf, dtype=torch.float64)
        # in time order, so that a memory only ever moves forward; few enough to keep all their scores
        for rows in torch.argsort(time, stable=True).split(max(1, self._together // max(c, 1))):
            asked = (src[rows].repeat_interleave(c), candidates.repeat(len(rows)))
            scores = self.logits(*asked, time[rows].repeat_interleave(c), advance).view(len(rows), c)
            if not self._loops:
                scores[src[rows][:, None] == candidates] = -inf
            if only_new:
                scores[self.met(src[rows], time[rows], candidates)] = -inf
            found, place = scores.sort(dim=1, descending=True, stable=True)
            node[rows], logit[rows] = candidates[place[:, :k]], found[:, :k].float()
            total[rows] = log_odds(scores).logsumexp(dim=1) if c else total[rows]
        return Best(node, logit, total)

    def met(
        self, src: Int64[Tensor, "s"], time: Float64[Tensor, "s"], candidates: Int64[Tensor, "c"]
    ) -> Bool[Tensor, "s c"]:
        """Which candidates each source has had an event with, strictly before its time."""
        index, device = self.walk.stream.index, self.walk.stream.device
        begin, count = (part.tolist() for part in index.past(src.to(device), time.to(device)))
        neighbor = index.entries.neighbor
        known = [neighbor[a : a + n].cpu().long() for a, n in zip(begin, count, strict=True)]
        return torch.stack([torch.isin(candidates, nodes) for nodes in known])
