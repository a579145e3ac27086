"""Evaluation: score or rank the queries of an evaluation set, with the visibility of the published protocol or strict.

Legend: p pairs, g positives.
"""

from math import inf

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dygmamba.core.progress import Advance, no_advance
from dygmamba.engine.scoring import StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.view import PairBatch
from dygmamba.models.base import Scorer
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import CandidateSet
from dygmamba.tasks.metrics import count_ranked_above

STRICT_RULE = VisibilityRule()
MAX_HELD_SCORES = 1 << 18  # scores of ranked candidates in memory at once


def score_evaluation_set(
    scorer: Scorer,
    stream: Stream,
    evaluation_set: EvaluationSet,
    rule: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    advance: Advance = no_advance,
) -> Float[Tensor, "p *c"]:
    """Return the score of each pair of an evaluation set, on the host.

    A memory observes the periods before the set and the events of the set, as far as each query may see them.
    """
    schedule, before = _build_schedule(stream, evaluation_set, rule)
    position = before + evaluation_set.event_index
    visible = schedule.count_visible(rule.visible, position, evaluation_set.pairs.time)
    pairs = evaluation_set.pairs.with_table_time(
        schedule.table_times(rule.visible, position, evaluation_set.pairs.time)
    )
    return StreamScorer(scorer, stream, seed, schedule)(pairs, visible, advance)


def rank_evaluation_set(
    scorer: Scorer,
    stream: Stream,
    evaluation_set: EvaluationSet,
    candidates: CandidateSet,
    rule: VisibilityRule = STRICT_RULE,
    seed: int = 0,
    advance: Advance = no_advance,
    chosen: Int64[Tensor, "g"] | None = None,
    tokens: int | None = None,
) -> Float[Tensor, "g"]:
    """Return the rank of each event of an evaluation set among its candidates, 1 the best, ties as in TGB.

    Candidates are scored at the event's time and see what the event itself sees. Memory stays bounded however many
    candidates there are.

    Args:
        scorer: The model.
        stream: The events.
        evaluation_set: Events to rank.
        candidates: Candidates of each event.
        rule: Visibility.
        seed: Seed of the neighbor draws.
        advance: Called with the number of pairs of each finished pass.
        chosen: Indices of the events to rank (default: all); a memory observes the others all the same.
        tokens: Tokens that one pass may read.
    """
    store, events = stream.store, evaluation_set.events
    schedule, before = _build_schedule(stream, evaluation_set, rule)
    chosen = torch.arange(len(events)) if chosen is None else chosen
    stream_scorer = StreamScorer(scorer, stream, seed, schedule, tokens)
    rank = torch.ones(len(chosen), dtype=torch.float64)
    for rows in torch.arange(len(chosen)).split(max(1, MAX_HELD_SCORES // (candidates.width + 1))):
        own = events[chosen[rows]]
        visible = schedule.count_visible(rule.visible, before + chosen[rows], store.time[own])
        table_time = schedule.table_times(rule.visible, before + chosen[rows], store.time[own])
        others, mask = candidates.for_events(own)
        # the true destination comes first and is masked: it is not a candidate of itself
        destinations = torch.cat([store.dst[own][:, None], others], dim=1)
        mask = torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1)
        true = None
        for dst, counts in zip(
            destinations.split(MAX_HELD_SCORES, dim=1), mask.split(MAX_HELD_SCORES, dim=1), strict=True
        ):
            c = dst.shape[1]
            ends = store.src[own].repeat_interleave(c), dst.flatten()
            pairs = PairBatch.from_pairs(*ends, store.time[own].repeat_interleave(c))
            pairs = pairs.with_table_time(None if table_time is None else table_time.repeat_interleave(c))
            pairs = pairs.with_columns(QueryColumns.of_events(store.features, own.repeat_interleave(c)))
            score = stream_scorer(pairs, visible.repeat_interleave(c), advance).view(dst.shape)
            true = score[:, 0] if true is None else true
            # a list may contain the true destination: it must tie exactly, though its score may be rounded differently
            score = torch.where(dst == store.dst[own][:, None], true[:, None], score)
            rank[rows] += count_ranked_above(true, score.masked_fill(~counts, -inf))
    return rank


def _build_schedule(
    stream: Stream, evaluation_set: EvaluationSet, rule: VisibilityRule
) -> tuple[MemorySchedule, int]:
    """Return the schedule of all events up to the end of an evaluation set, and the number of events before it."""
    schedule = MemorySchedule.from_periods(
        stream.store, (*evaluation_set.earlier, evaluation_set.events), rule.batch_size
    )
    return schedule, len(schedule.events) - len(evaluation_set.events)
