"""Any pairs at any times, and the likeliest of many: a trained scorer on a stream that may have gone on since.

Legend: p pairs, s sources, c candidates, k kept.
"""

from copy import deepcopy
from math import inf

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dygmamba.engine.clock import CELL, Clock
from dygmamba.engine.lengths import pairs_per_pass
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, Walk, unwatched
from dygmamba.models.base import Scorer
from dygmamba.sampling.view import PairBatch


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
    ) -> tuple[Int64[Tensor, "s k"], Float[Tensor, "s k"]]:
        """The k likeliest candidates of each source with their logits, the first in line before its ties.

        Where no event of the stream is a self-loop, a node is not its own candidate: its logit is -inf.
        """
        c, k = len(candidates), min(k, len(candidates))
        node, logit = torch.zeros(len(src), k, dtype=torch.int64), torch.full((len(src), k), -inf)
        # in time order, so that a memory only ever moves forward; few enough to keep all their scores
        for rows in torch.argsort(time, stable=True).split(max(1, self._together // max(c, 1))):
            asked = (src[rows].repeat_interleave(c), candidates.repeat(len(rows)))
            scores = self.logits(*asked, time[rows].repeat_interleave(c), advance).view(len(rows), c)
            if not self._loops:
                scores[src[rows][:, None] == candidates] = -inf
            found, place = scores.sort(dim=1, descending=True, stable=True)
            node[rows], logit[rows] = candidates[place[:, :k]], found[:, :k].float()
        return node, logit
