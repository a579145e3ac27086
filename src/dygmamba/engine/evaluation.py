"""An exam put to a scorer, as the published protocol does it or strictly.

Legend: p pairs, g positives.
"""

from math import inf

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.engine.scoring import Advance, StreamScorer, unwatched
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.models.base import Scorer
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import CandidateSet
from dygmamba.tasks.metrics import count_ranked_above

STRICT_RULE = VisibilityRule()
MAX_HELD_SCORES = 1 << 18  # pairs whose scores are held at once


def score_evaluation_set(
    scorer: Scorer,
    stream: Stream,
    evaluation_set: EvaluationSet,
    rule: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    advance: Advance = unwatched,
) -> Float[Tensor, "p"]:
    """A score per pair of an exam, on the host; a memory is told of the periods before it and of its events."""
    clock, before = _build_schedule(stream, evaluation_set, rule)
    beside = before + evaluation_set.number
    told = clock.seen(rule.visible, beside, evaluation_set.pairs.time)
    asked = evaluation_set.pairs.as_of(clock.known(rule.visible, beside, evaluation_set.pairs.time))
    return StreamScorer(scorer, stream, seed, clock)(asked, told, advance)


def rank_evaluation_set(
    scorer: Scorer,
    stream: Stream,
    evaluation_set: EvaluationSet,
    candidates: CandidateSet,
    rule: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    advance: Advance = unwatched,
    chosen: Int64[Tensor, "g"] | None = None,
    tokens: int | None = None,
) -> Float[Tensor, "g"]:
    """The rank of each of an exam's events among its candidates, 1 the best, ties as TGB counts them.

    `chosen` are the places of the events to rank, all unless said; a memory is told of the others all the same.

    Everything is asked at the event's time and sees what the event itself sees; however many candidates there are, only
    so many scores are held at once, and `tokens` bounds what a pass reads.
    """
    store, events = stream.store, evaluation_set.events
    clock, before = _build_schedule(stream, evaluation_set, rule)
    places = torch.arange(len(events)) if chosen is None else chosen
    walk, rank = (
        StreamScorer(scorer, stream, seed, clock, tokens),
        torch.ones(len(places), dtype=torch.float64),
    )
    for rows in torch.arange(len(places)).split(max(1, MAX_HELD_SCORES // (candidates.width + 1))):
        own = events[places[rows]]
        told = clock.seen(rule.visible, before + places[rows], store.time[own])
        known = clock.known(rule.visible, before + places[rows], store.time[own])
        others, real = candidates.against(own)
        asked = torch.cat([store.dst[own][:, None], others], dim=1)  # the true one is no candidate of itself
        real = torch.cat([torch.zeros_like(real[:, :1]), real], dim=1)
        true = None
        for dst, counts in zip(
            asked.split(MAX_HELD_SCORES, dim=1), real.split(MAX_HELD_SCORES, dim=1), strict=True
        ):
            c = dst.shape[1]
            ends = store.src[own].repeat_interleave(c), dst.flatten()
            pairs = PairBatch.of(*ends, store.time[own].repeat_interleave(c))
            pairs = pairs.as_of(None if known is None else known.repeat_interleave(c))
            score = walk(pairs, told.repeat_interleave(c), advance).view(dst.shape)
            true = score[:, 0] if true is None else true
            # a list may hold the true one: the same question has the same answer, wherever rounding has put it
            score = torch.where(dst == store.dst[own][:, None], true[:, None], score)
            rank[rows] += count_ranked_above(true, score.masked_fill(~counts, -inf))
    return rank


def _build_schedule(
    stream: Stream, evaluation_set: EvaluationSet, rule: VisibilityRule
) -> tuple[MemorySchedule, int]:
    """The clock of everything up to the end of an exam, and how many events are before it."""
    clock = MemorySchedule.of(stream.store, (*evaluation_set.earlier, evaluation_set.events), rule.cell)
    return clock, len(clock.events) - len(evaluation_set.events)
