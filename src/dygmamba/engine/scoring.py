"""Scoring without gradients: the only code that runs a scorer in evaluation and prediction.

`StreamScorer` controls what a memory has observed, the random draws, how queries are bucketed by history length and cut
into passes, and progress. Validation, evaluation, prediction, ranking, embeddings, explanations and benchmarks all use
it. A score depends on its pair, its time and strictly earlier events; how queries are cut changes only rounding.
Several processes cut queries alike and score the passes in turn, each with a memory that observes every event, so the
scores equal those of one process to the last bit.

`Ranker` scores any pairs at any times and finds the best of many candidates, on a stream that may have grown since
training.

Legend: p pairs, k events (of `top_k`: best candidates), s sources, c candidates.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from itertools import count
from math import inf
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from dygmamba.core.errors import ScoreError
from dygmamba.core.process_settings import use_one_thread_after_fork
from dygmamba.core.progress import Advance, no_advance
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.length_buckets import max_pairs_per_pass, split_by_length
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MEMORY_BATCH, MemorySchedule
from dygmamba.history.draws import Draws
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.view import NeighborRequest, PairBatch, PairView
from dygmamba.models.base import Scorer

use_one_thread_after_fork()  # servers fork processes after a first score, or after loading a run


class StreamScorer:
    """A scorer on a stream: scores pairs at any times, with a memory that has observed what each pair may see.

    Queries are scored in the order of visible events, because a memory only moves forward: a query that sees fewer
    events than the memory has observed makes it start again. Several threads may call it: those that need the memory
    take turns.

    Args:
        scorer: The model.
        stream: The events.
        seed: Seed of the neighbor draws.
        schedule: Batches in which a memory observes events; needed by stateful scorers only.
        tokens: Tokens that one pass may read; defaults to what suits the device.
    """

    def __init__(
        self,
        scorer: Scorer,
        stream: Stream,
        seed: int,
        schedule: MemorySchedule | None = None,
        tokens: int | None = None,
    ) -> None:
        if isinstance(scorer, nn.Module):
            scorer.eval()
        self.scorer, self.stream, self.schedule, self.tokens = scorer, stream, schedule, tokens
        self.draws = Draws.from_seed(seed, device=stream.device)
        # a memory is one state for all callers: only one thread at a time may move it and read from it
        self._turn = Lock() if scorer.stateful else nullcontext()
        self._observed = -1  # events of the schedule that the memory has observed; -1: unknown
        self._saved = 0 if schedule is None else count_saved_events(scorer, stream.store, schedule)

    def follow(self, stream: Stream, schedule: MemorySchedule | None, unchanged: int) -> None:
        """Go on with a stream that has the same first `unchanged` events; no other thread may score meanwhile."""
        self.stream, self.schedule = stream, schedule
        if self._observed > unchanged:
            self._observed = -1
        if self._saved > unchanged:
            self._saved = 0

    def __call__(
        self, pairs: PairBatch, visible: Int64[Tensor, "p"] | None = None, advance: Advance = no_advance
    ) -> Tensor:
        """Score pairs.

        Args:
            pairs: The queries, on any device.
            visible: How many of the schedule's first events each query sees.
            advance: Called with the number of pairs of each finished pass.

        Returns:
            One output per pair in the given order, on the host.

        Raises:
            ScoreError: A score is not finite.
        """
        queries, scores = pairs.without_labels().to(self.stream.device), ScoreBuffer(len(pairs))
        with self._turn, closing(self._group_by_visible(visible, len(pairs))) as groups:
            self._score_groups(groups, queries, scores, advance)
        self.stream.store.check_unchanged()  # a file that changed under the last pass would have spoiled it
        scores.values = self.stream.processes.gather_rows(scores.values)
        return check_finite(scores.values, pairs.time)

    def _score_groups(
        self,
        groups: Iterable[Int64[Tensor, "_"]],
        queries: PairBatch,
        scores: "ScoreBuffer",
        advance: Advance,
    ) -> None:
        passes, requests = count(), self.scorer.requests
        # features of pairs are looked up and cached by pair, so there is no query to merge
        is_by_pair = not self.scorer.stateful and all(isinstance(own, FeatureRequest) for own in requests)
        for rows in groups:
            for chosen, length in self._split_passes(queries, rows.to(self.stream.device)):
                if self.stream.processes.owns(next(passes)):
                    part = (
                        queries.select(chosen)
                        if is_by_pair
                        else queries.select_shared(chosen, self.stream.store.num_nodes)
                    )
                    view = self.stream.view(part, self.scorer.requests, self.draws, length)
                    scores.put(chosen, score_view(self.scorer, view))
                advance(len(chosen))

    def _group_by_visible(
        self, visible: Int64[Tensor, "p"] | None, count: int
    ) -> Generator[Int64[Tensor, "_"], None, None]:
        """Iterate over groups of pairs that see the same events, with the memory advanced to each group."""
        if not self.scorer.stateful or visible is None or self.schedule is None:
            yield torch.arange(count)
            return
        order = torch.argsort(visible, stable=True)
        levels, counts = torch.unique_consecutive(visible[order], return_counts=True)
        for level, rows in zip(levels.tolist(), order.split(counts.tolist()), strict=True):
            with self._memory_at(self.schedule, level):
                yield rows

    @contextmanager
    def _memory_at(self, schedule: MemorySchedule, level: int) -> Iterator[None]:
        """Advance the memory to the first `level` events; a partial batch is rolled back on exit.

        If training saved its memory and the query sees all of it, the memory starts there, otherwise empty.
        """
        first = self._saved if level >= self._saved else 0
        whole = max(first, int(schedule.count_before_batch(torch.tensor([level]))))
        # unknown until done: an interrupted memory starts again
        observed, self._observed = self._observed, -1
        if not first <= observed <= whole:
            start_memory(self.scorer, first)
            observed = first
        for batch in schedule.batches_between(observed, whole):
            self._observe(batch)
        self._observed = whole
        partial = schedule.events[whole:level]
        if not len(partial):
            yield
            return
        snapshot = self.scorer.snapshot(self._select_events(partial))
        try:
            self._observe(partial)
            yield
        finally:
            self.scorer.restore(snapshot)

    def _select_events(self, ids: Int64[Tensor, "k"]):
        return self.stream.events.select(ids.to(self.stream.device))

    def _observe(self, ids: Int64[Tensor, "k"]) -> None:
        self.scorer.observe(self._select_events(ids))

    def _split_passes(
        self, pairs: PairBatch, rows: Int64[Tensor, "_"]
    ) -> Iterator[tuple[Int64[Tensor, "_"], int | None]]:
        """Iterate over (rows, length of their sequences) of passes; elastic scorers get buckets by history length."""
        requests, device = self.scorer.requests, self.stream.device
        if not self.scorer.elastic:
            order = rows[torch.argsort(pairs.time[rows], stable=True)]
            for chosen in order.split(max_pairs_per_pass(requests, device, self.tokens)):
                yield chosen, None
            return
        most = NeighborRequest.longest(requests)
        past = [
            self.stream.index.past(node[rows], pairs.time[rows])[1].clamp(max=most)
            for node in (pairs.src, pairs.dst)
        ]
        for chosen, length in split_by_length(torch.maximum(*past), most, device, self.tokens):
            yield rows[chosen], length


def count_saved_events(scorer: Scorer, store: EventStore, schedule: MemorySchedule) -> int:
    """Count the schedule's first events that are in the memory saved after training.

    Returns 0 if no memory was saved or if it belongs to another stream.
    """
    mark = scorer.saved_prefix
    if mark is None or not mark.matches(store):
        return 0
    return int(torch.searchsorted(schedule.events, mark.rows))


def start_memory(scorer: Scorer, saved_events: int) -> None:
    """Restore the memory saved after training if it holds events (`saved_events`), otherwise reset it."""
    if saved_events:
        scorer.load_saved_memory()
    else:
        scorer.reset()


class ScoreBuffer:
    """Host buffer with one output per pair; it takes shape and type of the first output."""

    def __init__(self, count: int) -> None:
        self.count, self.values = count, torch.zeros(count)

    def put(self, rows: Int64[Tensor, "_"], output: Tensor) -> None:
        output = output.cpu()
        if self.values.shape[1:] != output.shape[1:] or self.values.dtype != output.dtype:
            self.values = output.new_zeros(self.count, *output.shape[1:])
        self.values[rows.cpu()] = output


@torch.no_grad()
def score_view(scorer: Scorer, view: PairView) -> Tensor:
    """Run the scorer on a view without gradients; the output is float32 or float64."""
    output = scorer(view)
    return output if output.dtype == torch.float64 else output.float()


def score_views(scorer: Scorer, views: Iterable[PairView]) -> Float[Tensor, "p"]:
    """Score views that were built by hand, such as counterfactual histories."""
    if isinstance(scorer, nn.Module):
        scorer.eval()
    parts = [(score_view(scorer, view).cpu(), view.pairs.time.cpu()) for view in views]
    scores, times = (torch.cat(column) for column in zip(*parts, strict=True))
    return check_finite(scores, times)


def check_finite(scores: Tensor, time: Float64[Tensor, "p"]) -> Tensor:
    """Return the scores; raise ScoreError if one of them is not finite."""
    wrong = ~torch.isfinite(scores)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        value = float(scores[row][wrong[row]].flatten()[0])
        raise ScoreError(
            f"the score at time {float(time[row]):g} is {value} ({int(wrong.sum()):,} of {wrong.numel():,} are not "
            "finite); use a time closer to the events, or train again with a smaller lr if every score is affected",
            code="not-finite",
        )
    return scores


def _to_float32(scores: Float[Tensor, "s k"]) -> Float[Tensor, "s k"]:
    """Round to 32 bits; a finite score beyond them stays finite, because -inf means that there is no candidate."""
    most = torch.finfo(torch.float32).max
    return torch.where(torch.isfinite(scores), scores.clamp(-most, most), scores).float()


class TopCandidates(NamedTuple):
    """The best candidates of each source, their logits, and the log of the summed odds of all its candidates."""

    node: Int64[Tensor, "s k"]
    logit: Float[Tensor, "s k"]
    total: Float64[Tensor, "s"]


class Ranker:
    """A scorer on a stream for prediction: every pair sees all events strictly earlier than its own time.

    In evaluation a memory lags by up to one batch, as in DyGLib. Here it observes every strictly earlier event; the
    last batch is cut at the query's time. The ranker works on a copy of a stateful scorer, so later use of the scorer
    does not affect it.
    """

    def __init__(
        self,
        scorer: Scorer,
        stream: Stream,
        seed: int,
        tokens: int | None = None,
        batch_size: int = MEMORY_BATCH,
    ) -> None:
        everything = torch.arange(len(stream.store))
        self._batch_size = batch_size
        self.schedule = (
            MemorySchedule.from_periods(stream.store, (everything,), batch_size) if scorer.stateful else None
        )
        own = deepcopy(scorer) if scorer.stateful else scorer
        self.stream_scorer = StreamScorer(own, stream, seed, self.schedule, tokens)
        self._max_pairs = max_pairs_per_pass(scorer.requests, stream.device, tokens)
        self._has_loops = stream.store.has_loops

    def follow(self, stream: Stream, unchanged: int) -> None:
        """Go on with a stream that has the same first `unchanged` events.

        Batches of a memory are full ones from now on: later events would change a last batch that is not full.
        """
        if self.schedule is not None:
            self.schedule = MemorySchedule.from_full_batches(stream.store, self._batch_size)
        self.stream_scorer.follow(stream, self.schedule, unchanged)
        self._has_loops = stream.store.has_loops

    def logits(
        self,
        src: Int64[Tensor, "p"],
        dst: Int64[Tensor, "p"],
        time: Float64[Tensor, "p"],
        advance: Advance = no_advance,
        columns: QueryColumns | None = None,
    ) -> Float[Tensor, "p"]:
        """Return the logit of each pair in the given order, on the host; `columns` are those of the queries."""
        visible = None if self.schedule is None else self.schedule.count_earlier(time)
        pairs = PairBatch.from_pairs(src, dst, time).with_columns(columns)
        return self.stream_scorer(pairs, visible, advance)

    def top_k(
        self,
        src: Int64[Tensor, "s"],
        time: Float64[Tensor, "s"],
        candidates: Int64[Tensor, "c"],
        k: int,
        advance: Advance = no_advance,
        *,
        only_new: bool = False,
        rank_sources: bool = False,
        log_odds: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> TopCandidates:
        """Return the `k` best candidates of each source; ties keep the order of `candidates`.

        A node is not its own candidate (its logit is -inf) unless the stream has self-loops.

        Args:
            src: Sources.
            time: Query time of each source.
            candidates: Candidate destinations of all sources.
            k: Number of candidates to return.
            advance: Called with the number of pairs of each finished pass.
            rank_sources: `src` are destinations, and `candidates` are sources.
            only_new: Also exclude candidates that the source had an event with before, in either direction.
            log_odds: Map from logits of all candidates of some sources, and the positions of these sources in `src`, to
                the log-odds that are summed up in `total`; default: the logits themselves.
        """
        c, k = len(candidates), min(k, len(candidates))
        node, logit = torch.zeros(len(src), k, dtype=torch.int64), torch.full((len(src), k), -inf)
        total = torch.full((len(src),), -inf, dtype=torch.float64)
        # in time order, because a memory only moves forward; few sources at once, so that their scores fit into memory
        for rows in torch.argsort(time, stable=True).split(max(1, self._max_pairs // max(c, 1))):
            ends = (src[rows].repeat_interleave(c), candidates.repeat(len(rows)))
            ends = ends[::-1] if rank_sources else ends
            scores = self.logits(*ends, time[rows].repeat_interleave(c), advance).view(len(rows), c)
            if not self._has_loops:
                scores[src[rows][:, None] == candidates] = -inf
            if only_new:
                scores[self.has_met(src[rows], time[rows], candidates)] = -inf
            ranked, order = scores.sort(dim=1, descending=True, stable=True)
            node[rows], logit[rows] = candidates[order[:, :k]], _to_float32(ranked[:, :k])
            odds = scores.double() if log_odds is None else log_odds(scores, rows)
            total[rows] = odds.logsumexp(dim=1) if c else total[rows]
        return TopCandidates(node, logit, total)

    def has_met(
        self, src: Int64[Tensor, "s"], time: Float64[Tensor, "s"], candidates: Int64[Tensor, "c"]
    ) -> Bool[Tensor, "s c"]:
        """Return which candidates each source had an event with strictly before its time."""
        index, device = self.stream_scorer.stream.index, self.stream_scorer.stream.device
        begin, count = (part.tolist() for part in index.past(src.to(device), time.to(device)))
        neighbor = index.entries.neighbor
        met = [neighbor[a : a + n].cpu().long() for a, n in zip(begin, count, strict=True)]
        return torch.stack([torch.isin(candidates, nodes) for nodes in met])
