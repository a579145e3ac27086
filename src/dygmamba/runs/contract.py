"""What every model must keep, checked on a small stream with ties, self-loops, features and a node without events."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor, nn

from dygmamba.config import build_config
from dygmamba.core.errors import DygError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.splits import Split
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, RoundLearner, Scorer
from dygmamba.sampling.draws import Draws
from dygmamba.sampling.view import NeighborSequence, PairBatch, PairView

EVENTS, NODES, PAIRS = 60, 7, 12
TOLERANCE = 1e-5  # scores that must be equal may differ by rounding


class ContractError(DygError):
    """A model that breaks what every model must keep; `table` has every check."""

    def __init__(self, sentence: str, table: pa.Table) -> None:
        super().__init__(sentence)
        self.table = table


class CheckResult(NamedTuple):
    """What a check found: what is wrong, in words, and by how much a score moved, relative to the largest."""

    broken: str | None
    moved: float | None = None


@dataclass(frozen=True, slots=True)
class CheckCase:
    """A model's builder, the stream it is checked on, and what it is asked there."""

    build: Callable[[], Scorer]
    store: EventStore
    pairs: PairBatch

    def scores(
        self, pairs: PairBatch, store: EventStore | None = None, scorer: Scorer | None = None
    ) -> Tensor:
        """The scores of pairs on a stream, each told of every strictly earlier event."""
        ranker = Ranker(scorer or self.build(), _build_stream(self.store if store is None else store), seed=5)
        return ranker.logits(pairs.src, pairs.dst, pairs.time)

    def view(self, scorer: Scorer, pairs: PairBatch) -> PairView:
        """What the model may see; a memory is told of the first half of the stream."""
        if scorer.stateful:
            half = len(self.store) // 2
            for events in self.store.batches(torch.arange(half), max(half // 5, 1)):
                scorer.observe(events)
        return _build_stream(self.store).view(pairs, scorer.requests, Draws.of(5))


def check_model(name: str, settings: dict[str, Any]) -> pa.Table:
    """Every check of a model by name, as a table of check, holds and detail; ContractError where one fails."""
    spec, store = find_model(name), sample_stream()
    config = build_config(spec.config, settings)

    def build() -> Scorer:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            scorer = spec.build(config, DatasetFacts.of(store))
        return scorer.eval() if isinstance(scorer, nn.Module) else scorer

    bench = CheckCase(build, store, sample_pairs(store))
    asked = [key for key in CHECKS if spec.trainable or key not in WEIGHT_CHECKS]
    found = {key: run_check(key, bench) for key in asked}
    rows = [
        {"check": key, "holds": one.broken is None, "detail": one.broken or ""} for key, one in found.items()
    ]
    table = pa.Table.from_pylist(rows)
    failed = [f"{row['check']} ({row['detail']})" for row in rows if not row["holds"]]
    if failed:
        raise ContractError(
            f"model '{name}' fails {len(failed)} of {len(rows)} checks: {'; '.join(failed)}", table
        )
    return table


def run_check(check: str, bench: CheckCase) -> CheckResult:
    """What a check finds; a model is foreign code, so whatever it raises is one of the ways to fail."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return CHECKS[check](bench)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else "no message"
        return CheckResult(f"{type(error).__name__}: {said}")


def sample_stream() -> EventStore:
    """Repeated pairs, ties and self-loops at times near 2004; the last node never occurs."""
    rng = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(NODES - 1, (EVENTS,), generator=rng) for _ in range(2))
    time = 1.08e9 + torch.randint(0, 3, (EVENTS,), generator=rng).cumsum(0).double()
    features = FeatureTable(torch.randn(NODES, 3, generator=rng), torch.randn(EVENTS, 2, generator=rng))
    return EventStore.of(src, dst, time, num_nodes=NODES, features=features)


def sample_pairs(store: EventStore, count: int = PAIRS) -> PairBatch:
    """Any two nodes at times of the second half."""
    rng = torch.Generator().manual_seed(1)
    src, dst = (torch.randint(NODES, (count,), generator=rng) for _ in range(2))
    at = torch.randint(EVENTS // 2, EVENTS, (count,), generator=rng)
    return PairBatch.of(src, dst, store.time[at])


def _build_stream(store: EventStore) -> Stream:
    everything, nobody = torch.arange(len(store)), torch.zeros(store.num_nodes, dtype=torch.bool)
    return Stream(store, Split(everything[:0], everything[:0], everything, nobody), torch.device("cpu"))


def _compare_scores(found: Tensor, expected: Tensor, what: str) -> CheckResult:
    gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1))
    return CheckResult(f"{what} moves a score by {gap:.2g}" if not gap <= TOLERANCE else None, gap)


def _check_finite(bench: CheckCase) -> CheckResult:
    pairs, last = bench.pairs, torch.tensor([bench.store.num_nodes - 1])
    alone = PairBatch.of(last, last, bench.store.time[:1])
    scores = torch.cat([bench.scores(pairs), bench.scores(alone)])  # scores that are not finite raise
    count = len(pairs) + 1
    return CheckResult(
        None if scores.shape == (count,) else f"{tuple(scores.shape)} scores for {count} pairs"
    )


def _check_causal(bench: CheckCase) -> CheckResult:
    store, pairs = bench.store, bench.pairs
    time = store.time[len(store) // 2]
    now = PairBatch.of(pairs.src, pairs.dst, time.expand(len(pairs)).contiguous())
    past = store[: int(torch.searchsorted(store.time, time))]
    other = replace(
        store, features=FeatureTable(store.features.node, _perturb_later_features(store, len(past)))
    )
    return _compare_scores(
        bench.scores(now, other), bench.scores(now, past), "what happens at its time or later"
    )


def _perturb_later_features(store: EventStore, known: int) -> Tensor:
    """Edge features, those of later events far away from all others."""
    later = torch.arange(len(store))[:, None] >= known
    return torch.where(later, 1e3, store.features.edge)


def _check_batch(bench: CheckCase) -> CheckResult:
    pairs = bench.pairs
    together = bench.scores(pairs)
    rows = [
        bench.scores(PairBatch.of(*(column[k : k + 1] for column in (pairs.src, pairs.dst, pairs.time))))
        for k in range(4)
    ]
    return _compare_scores(torch.cat(rows), together[:4], "being asked alone")


def _check_order(bench: CheckCase) -> CheckResult:
    pairs = bench.pairs
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(2))
    turned = PairBatch.of(pairs.src[order], pairs.dst[order], pairs.time[order])
    return _compare_scores(bench.scores(turned), bench.scores(pairs)[order], "another order")


def _check_padding(bench: CheckCase) -> CheckResult:
    scorer = bench.build()
    view = bench.view(scorer, bench.pairs)
    wide = replace(view, neighbors=tuple(_widen(hops) for hops in view.neighbors))
    with torch.no_grad():
        return _compare_scores(scorer(wide), scorer(view), "more padding")


def _widen(hops: tuple[NeighborSequence, ...]) -> tuple[NeighborSequence, ...]:
    """Three more entries that do not exist, filled with real nodes and a late time, their own hops empty."""

    def grown(seq: NeighborSequence) -> NeighborSequence:
        def more(column: Tensor, value: float) -> Tensor:
            return torch.cat([column, column.new_full((column.shape[0], 3), value)], dim=1)

        return replace(seq, node=more(seq.node, 2), event=more(seq.event, 1), time=more(seq.time, 2e9))

    wide = [grown(hop) for hop in hops[:1]]
    for entries, seq in pairwise(hops):
        first = torch.arange(len(seq.query_node)).view(entries.node.shape)
        rows = torch.cat([first, first[:, :1].expand(-1, 3)], dim=1)
        real = torch.arange(rows.shape[1]) < entries.node.shape[1]
        more = grown(seq[rows.flatten()])
        wide.append(replace(more, length=more.length * real.repeat(len(rows))))
    return tuple(wide)


def _check_gradient(bench: CheckCase) -> CheckResult:
    scorer = bench.build()
    assert isinstance(scorer, nn.Module)
    if isinstance(scorer, RoundLearner):
        return CheckResult(None)  # it follows no gradient
    scorer.train()
    view = bench.view(scorer, sample_pairs(bench.store, 40))
    (scorer(view) * torch.linspace(0.5, 1.5, 40)).sum().backward()
    dead = [
        key
        for key, weight in scorer.named_parameters()
        if weight.requires_grad and (weight.grad is None or not bool(weight.grad.any()))
    ]
    return CheckResult(f"no gradient reaches {', '.join(dead)}" if dead else None)


def _check_round_trip(bench: CheckCase) -> CheckResult:
    first, second, pairs = bench.build(), bench.build(), bench.pairs
    assert isinstance(first, nn.Module)
    assert isinstance(second, nn.Module)
    with torch.no_grad():
        for weight in second.parameters():
            weight.add_(1)
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    return _compare_scores(
        bench.scores(pairs, scorer=second), bench.scores(pairs, scorer=first), "saving and loading"
    )


CHECKS: dict[str, Callable[[CheckCase], CheckResult]] = {
    "finite": _check_finite,
    "causal": _check_causal,
    "batch": _check_batch,
    "order": _check_order,
    "padding": _check_padding,
    "gradient": _check_gradient,
    "state dict": _check_round_trip,
}
WEIGHT_CHECKS = ("gradient", "state dict")
