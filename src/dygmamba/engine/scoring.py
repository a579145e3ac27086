"""The one walk: the only code that asks a scorer without gradients.

It owns what a memory has been told of, the draws, how questions are cut by the length of their histories and into
passes, and progress. Validation, evaluation, prediction, ranking, embeddings, probes and benchmarks go through it. A
score depends on its pair, its time and strictly earlier events; how the questions are cut changes nothing but rounding.
Several processes cut them alike and answer the passes in turn, each telling its own memory of everything, so the
answers are one process's to the last bit.

Legend: p questions, k events told, l length.

Any pairs at any times, and the likeliest of many: a trained scorer on a stream that may have gone on since.

Legend: p pairs, s sources, c candidates, k kept.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.errors import ScoreError
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.length_buckets import max_pairs_per_pass, split_by_length
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MEMORY_BATCH, MemorySchedule
from dygmamba.models.base import MemorySaver, Scorer
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborRequest, PairBatch, PairView, Request

Advance = Callable[[int], None]  # told how many more questions are answered


def unwatched(count: int) -> None:
    """Nobody follows the progress."""


class StreamScorer:
    """A scorer on a stream: asks any pairs at any times, its memory told of what each of them may see.

    Draws are a function of the seed. A memory only ever moves forward: questions that see less than it was told of make
    it start again. `tokens` bounds what one pass reads, by default as much as suits the device.
    """

    def __init__(
        self,
        scorer: Scorer,
        stream: Stream,
        seed: int,
        clock: MemorySchedule | None = None,
        tokens: int | None = None,
    ) -> None:
        if isinstance(scorer, nn.Module):
            scorer.eval()
        self.scorer, self.stream, self.clock, self.tokens = scorer, stream, clock, tokens
        self.draws = Draws.of(seed, device=stream.device)
        self._told = -1  # events of the clock that the memory has taken in; -1: unknown
        self._kept = 0 if clock is None else count_kept_events(scorer, stream.store, clock)

    def __call__(
        self, asked: PairBatch, seen: Int64[Tensor, "p"] | None = None, advance: Advance = unwatched
    ) -> Tensor:
        """An answer per pair, on the host, in the order asked; `seen`: how many of the clock's events each may see."""
        here, answers = asked.to(self.stream.device), ScoreBuffer(len(asked))
        passes = count()
        for rows in self._moments(seen, len(asked)):
            for chosen, requests in self._passes(here, rows.to(self.stream.device)):
                if self.stream.ranks.is_mine(next(passes)):
                    pairs = here.shared(chosen, self.stream.store.num_nodes)
                    answers.put(
                        chosen, score_view(self.scorer, self.stream.view(pairs, requests, self.draws))
                    )
                advance(len(chosen))
        self.stream.store.check_unchanged()  # nor while the last questions were asked
        answers.found = self.stream.ranks.collect(answers.found)
        return answers.finite(asked.time)

    def _moments(self, seen: Int64[Tensor, "p"] | None, count: int) -> Iterator[Int64[Tensor, "_"]]:
        """Questions that may be asked of one state: all of them, or with a memory those that see the same events."""
        if not self.scorer.stateful or seen is None or self.clock is None:
            yield torch.arange(count)
            return
        order = torch.argsort(seen, stable=True)
        levels, counts = torch.unique_consecutive(seen[order], return_counts=True)
        for level, rows in zip(levels.tolist(), order.split(counts.tolist()), strict=True):
            with self._told_of(self.clock, level):
                yield rows

    @contextmanager
    def _told_of(self, clock: MemorySchedule, level: int) -> Iterator[None]:
        """The scorer, its memory told of the clock's first `level` events; a cut cell is taken back afterwards.

        Who sees all that is in the memory that training left goes on from there, everybody else from nothing.
        """
        first = self._kept if level >= self._kept else 0
        whole = max(first, int(clock.cells_before(torch.tensor([level]))))
        told, self._told = self._told, -1  # unknown until all is told: whoever is interrupted starts again
        if not first <= told <= whole:
            start_memory(self.scorer, first)
            told = first
        for cell in clock.between(told, whole):
            self._tell(cell)
        self._told = whole
        part = clock.events[whole:level]
        if not len(part):
            yield
            return
        kept = self.scorer.snapshot(self._events(part))
        try:
            self._tell(part)
            yield
        finally:
            self.scorer.restore(kept)

    def _events(self, ids: Int64[Tensor, "k"]):
        return self.stream.events.select(ids.to(self.stream.device))

    def _tell(self, ids: Int64[Tensor, "k"]) -> None:
        self.scorer.observe(self._events(ids))

    def _passes(
        self, asked: PairBatch, rows: Int64[Tensor, "_"]
    ) -> Iterator[tuple[Int64[Tensor, "_"], tuple[Request, ...]]]:
        """Rows that are read together, and what is looked up for them: by length where that changes nothing."""
        requests, device = self.scorer.requests, self.stream.device
        if not self.scorer.elastic:
            order = rows[torch.argsort(asked.time[rows], stable=True)]
            for chosen in order.split(max_pairs_per_pass(requests, device, self.tokens)):
                yield chosen, requests
            return
        most = NeighborRequest.longest(requests)
        past = [
            self.stream.index.past(node[rows], asked.time[rows])[1].clamp(max=most)
            for node in (asked.src, asked.dst)
        ]
        for chosen, length in split_by_length(torch.maximum(*past), most, device, self.tokens):
            yield rows[chosen], tuple(request.cut(length) for request in requests)


def count_kept_events(scorer: Scorer, store: EventStore, clock: MemorySchedule) -> int:
    """How many of a clock's first events are in the memory that training left and the scorer has kept.

    None are where it has kept nothing, or what it has kept is of another stream.
    """
    mark = scorer.carried if isinstance(scorer, MemorySaver) else None
    if mark is None or not mark.matches(store):
        return 0
    return int(torch.searchsorted(clock.events, mark.rows))


def start_memory(scorer: Scorer, carried: int) -> None:
    """The memory that training left, if events are carried in it, else an empty one."""
    if carried and isinstance(scorer, MemorySaver):
        scorer.recall()
    else:
        scorer.reset()


class ScoreBuffer:
    """One answer per question, put in place as they come; their shape is that of the first."""

    def __init__(self, count: int) -> None:
        self.count, self.found = count, torch.zeros(count)

    def put(self, rows: Int64[Tensor, "_"], answer: Tensor) -> None:
        """These questions' answers."""
        answer = answer.cpu()
        if self.found.shape[1:] != answer.shape[1:] or self.found.dtype != answer.dtype:
            self.found = answer.new_zeros(self.count, *answer.shape[1:])
        self.found[rows.cpu()] = answer

    def finite(self, time: Float64[Tensor, "p"]) -> Tensor:
        """All answers; a number that is none is an error, never a score."""
        return check_finite(self.found, time)


@torch.no_grad()
def score_view(scorer: Scorer, view: PairView) -> Tensor:
    """What the scorer says of a view, in float32 or wider."""
    answer = scorer(view)
    return answer if answer.dtype == torch.float64 else answer.float()


def score_views(scorer: Scorer, views: Iterable[PairView]) -> Float[Tensor, "p"]:
    """The answers to hand-made views one after another, such as probes of pasts that never were."""
    if isinstance(scorer, nn.Module):
        scorer.eval()
    parts = [(score_view(scorer, view).cpu(), view.pairs.time.cpu()) for view in views]
    answers, times = (torch.cat(column) for column in zip(*parts, strict=True))
    return check_finite(answers, times)


def check_finite(answers: Tensor, time: Float64[Tensor, "p"]) -> Tensor:
    """The answers, unless one of them is not finite."""
    wrong = ~torch.isfinite(answers)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        value = float(answers[row][wrong[row]].flatten()[0])
        raise ScoreError(
            f"the score at time {float(time[row]):g} is {value} ({int(wrong.sum()):,} of {wrong.numel():,} are not "
            "finite); ask about a time nearer to the stream, or train again with a smaller lr if every score is so"
        )
    return answers


class TopCandidates(NamedTuple):
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
        self, scorer: Scorer, stream: Stream, seed: int, tokens: int | None = None, cell: int = MEMORY_BATCH
    ) -> None:
        everything = torch.arange(len(stream.store))
        self.clock = MemorySchedule.of(stream.store, (everything,), cell) if scorer.stateful else None
        own = deepcopy(scorer) if scorer.stateful else scorer
        self.walk = StreamScorer(own, stream, seed, self.clock, tokens)
        self._together = max_pairs_per_pass(scorer.requests, stream.device, tokens)
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
    ) -> TopCandidates:
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
        return TopCandidates(node, logit, total)

    def met(
        self, src: Int64[Tensor, "s"], time: Float64[Tensor, "s"], candidates: Int64[Tensor, "c"]
    ) -> Bool[Tensor, "s c"]:
        """Which candidates each source has had an event with, strictly before its time."""
        index, device = self.walk.stream.index, self.walk.stream.device
        begin, count = (part.tolist() for part in index.past(src.to(device), time.to(device)))
        neighbor = index.entries.neighbor
        known = [neighbor[a : a + n].cpu().long() for a, n in zip(begin, count, strict=True)]
        return torch.stack([torch.isin(candidates, nodes) for nodes in known])
