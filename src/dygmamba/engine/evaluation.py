"""Evaluation as the published protocol runs it, for any scorer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dygmamba.data.events import EventBatch, EventStore
from dygmamba.data.splits import Split
from dygmamba.engine.buckets import TOKENS, by_length
from dygmamba.errors import EventError
from dygmamba.models.base import EncoderScorer, Scorer
from dygmamba.sampling.index import NeighborIndex, gather_view
from dygmamba.sampling.negatives import SEEDS, NegativeRequest, Negatives, draw_negatives, stored_negatives
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.link import positives_and_negatives
from dygmamba.tasks.metrics import LinkMetrics, link_metrics

SPLITS = ("val", "test")
SETTINGS = ("transductive", "inductive")
SAMPLING_SEED = 1  # models that draw neighbours draw the same ones whenever they are evaluated


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The positives of one split and setting, each with its negative; `earlier` happened before them all."""

    split: str
    setting: str
    strategy: str
    events: Int64[Tensor, "k"]
    earlier: Int64[Tensor, "m"]
    negatives: Negatives

    def to(self, device: torch.device | str) -> "EvaluationSet":
        """The same set on another device."""
        negatives = Negatives(self.negatives.src.to(device), self.negatives.dst.to(device))
        return replace(
            self, events=self.events.to(device), earlier=self.earlier.to(device), negatives=negatives
        )


def negative_request(
    store: EventStore, split: Split, name: str, setting: str, strategy: str, seed: int | None = None
) -> NegativeRequest:
    """How the published protocol draws the negatives of a set; `seed` replaces the published one."""
    events = split.val if name == "val" else split.test
    observed = split.train if name == "val" else split.val
    known = torch.arange(len(store))
    if setting == "inductive":  # the published new-node samplers know the new-node events of their split only
        events = known = split.touching_new_nodes(store, events)
    until = float(store.time[observed[-1]]) if len(observed) else float("-inf")
    seed = SEEDS[name, setting] if seed is None else seed
    return NegativeRequest(strategy, events, known, until, seed)


def has_events(store: EventStore, split: Split, name: str, setting: str) -> bool:
    """Whether a set has any positives: a stream without new nodes has no inductive setting."""
    events = split.val if name == "val" else split.test
    return len(events if setting == "transductive" else split.touching_new_nodes(store, events)) > 0


def evaluation_set(
    store: EventStore,
    split: Split,
    name: str,
    setting: str,
    strategy: str,
    seed: int | None = None,
    folder: Path | None = None,
) -> EvaluationSet:
    """One evaluation set with its negatives, drawn or, where `folder` holds them, read."""
    request = negative_request(store, split, name, setting, strategy, seed)
    earlier = split.train if name == "val" else torch.cat([split.train, split.val])
    drawn = draw_negatives(store, request) if folder is None else stored_negatives(store, request, folder)
    return EvaluationSet(name, setting, strategy, request.events, earlier, drawn)


@dataclass(frozen=True, slots=True)
class Scores:
    """Every pair's score with its label and the number of its positive."""

    score: Float32[Tensor, "p"]
    label: Float32[Tensor, "p"]
    group: Int64[Tensor, "p"]

    def metrics(self) -> LinkMetrics:
        """AP and AUC, both ways."""
        return link_metrics(self.score, self.label, self.group)


def score_set(
    scorer: Scorer,
    store: EventStore,
    index: NeighborIndex,
    chosen: EvaluationSet,
    batch_size: int = 200,
    strict_ties: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score a set in time order, observing each batch after it was scored.

    `strict_ties` also holds back observed events that are not strictly earlier than the next batch, which
    matters to models with memory on streams where many events share one time.
    """
    _require_events(chosen)
    scorer.reset()
    if scorer.stateful:
        for events in store.batches(chosen.earlier, batch_size):
            scorer.observe(events)
    rng = torch.Generator(store.time.device).manual_seed(SAMPLING_SEED)
    columns: tuple[list[Tensor], ...] = ([], [], [])
    waiting: list[EventBatch] = []
    for number, events in enumerate(store.batches(chosen.events, batch_size)):
        waiting = observe_earlier(scorer, waiting, float(events.time[0]) if strict_ties else float("inf"))
        rows = slice(number * batch_size, number * batch_size + len(events))
        src, dst = chosen.negatives.src[rows], chosen.negatives.dst[rows]
        pairs = positives_and_negatives(events, src, dst, first_group=number * batch_size)
        view = gather_view(index, store.features, pairs, scorer.requests, rng)
        for column, value in zip(columns, (scorer(view), pairs.label, pairs.group), strict=True):
            column.append(value)
        if scorer.stateful:
            waiting.append(events)
        advance(len(events))
    return Scores(*(torch.cat(column).cpu() for column in columns))


def score_by_length(
    scorer: EncoderScorer,
    store: EventStore,
    index: NeighborIndex,
    chosen: EvaluationSet,
    tokens: int | None = None,
) -> Scores:
    """As `score_set`, for a model without memory that may be asked for less: pairs of like length together."""
    _require_events(chosen)
    asked = positives_and_negatives(store.select(chosen.events), chosen.negatives.src, chosen.negatives.dst)
    most = NeighborRequest.longest(scorer.requests)
    past = index.past(asked.node, asked.when)[1].clamp(max=most)
    lengths = torch.maximum(past[asked.src_row], past[asked.dst_row])
    score = torch.zeros(len(asked), device=past.device)
    for pairs, length in by_length(lengths, most, tokens or TOKENS[past.device.type]):
        requests = tuple(request.cut(length) for request in scorer.requests)
        score[pairs] = scorer(gather_view(index, store.features, asked.select(pairs), requests)).float()
    return Scores(score.cpu(), asked.label.cpu(), asked.group.cpu())


def _require_events(chosen: EvaluationSet) -> None:
    if not len(chosen.events):
        raise EventError(f"the {chosen.split} period has no {chosen.setting} events; use a longer stream")


def observe_earlier(scorer: Scorer, waiting: list[EventBatch], now: float) -> list[EventBatch]:
    """Let the scorer observe what is strictly earlier than `now`; the rest keeps waiting."""
    held = []
    for events in waiting:
        past = int(torch.searchsorted(events.time, now))
        scorer.observe(events[:past])
        if past < len(events):
            held.append(events[past:])
    return held
