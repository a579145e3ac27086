"""The contract of a model: checks of what its scores must not depend on.

`dygmamba.check_model` runs them on a user's model, `dygmamba audit` on a dataset, and the tests on every registered
model. A new check is a function and a row of `CHECKS`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor, nn

from dygmamba.config import build_config
from dygmamba.core.errors import DygError
from dygmamba.data.events.categories import Category
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.node_rows import STATIC_TIME, NodeRows
from dygmamba.data.events.splits import Split
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.length_buckets import max_pairs_per_pass
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.stream import Stream
from dygmamba.history.draws import Draws
from dygmamba.history.query_columns import QueryColumns
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.view import LabelledPairs, LabelledView, NeighborSequence, PairBatch, PairView
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, ModelSpec, Scorer
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import PUBLISHED_BATCH

EVENTS, NODES = 240, 7  # of `sample_stream`
FEW = 8  # events, and about as many negatives, that are scored one by one
NOISE, ROUNDS = 0.02, 4  # deviation that is added to weights; rounds that a round learner is trained for
ROWS = 20  # of node features
EVENT_TYPES = ("", "call", "mail", "visit")  # the first is a missing value
TOLERANCE = 1e-5  # relative difference of scores that must be equal up to rounding
FIRST_IN_AUDIT = ("future", "batch", "order", "padding")


class ContractError(DygError):
    """A model fails a check of the contract; `table` has the result of every check."""

    code = "contract-broken"

    def __init__(self, message: str, table: pa.Table) -> None:
        super().__init__(message)
        self.table = table


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check; `value` is the size of the violation (0 or close to 0 if there is none)."""

    name: str
    passed: bool
    value: float | None
    detail: str = ""


class Finding(NamedTuple):
    """Finding of a check on one stream."""

    problem: str | None  # None if the check passed
    difference: float | None = None  # of scores that must be equal, relative to the largest


@dataclass(frozen=True, slots=True)
class CheckCase:
    """A model to check, the stream, and the queries to score: events of its second half and as many negatives."""

    build: Callable[[], Scorer]
    store: EventStore
    queries: EvaluationSet

    @property
    def pairs(self) -> LabelledPairs:
        return self.queries.pairs

    @property
    def features(self) -> "list[CheckCase]":
        """The same case with the features that the model requests as the score; empty if it requests none."""
        features = FeatureSum(self.build())
        return [replace(self, build=lambda: features)] if features.requests else []

    def select(self, rows: Tensor, time: Tensor | None = None) -> LabelledPairs:
        """Return some of the pairs, if `time` is given at another one."""
        pairs = self.pairs.select(rows)
        return pairs if time is None else replace(pairs, when=time.expand(2 * len(rows)).contiguous())

    @property
    def few(self) -> Tensor:
        """Rows of a few events, the first ones among them, and of a few negatives."""
        half = len(self.queries.events)
        return torch.cat([torch.arange(half)[:FEW], torch.arange(half, 2 * half)[:: -(-half // FEW)]])

    def prepare(self, scorer: Scorer | None = None, store: EventStore | None = None) -> "Score":
        """Return the function that scores pairs; a memory observes every event strictly before each pair."""
        ranker = Ranker(scorer or self.build(), _build_stream(self.store if store is None else store), seed=5)
        return lambda pairs: ranker.logits(pairs.src, pairs.dst, pairs.time, columns=self._columns(pairs))

    def evaluate(self, pairs: LabelledPairs) -> Tensor:
        """Score labelled queries as an evaluation does."""
        queries = pairs.with_columns(self._columns(pairs))
        evaluation_set = replace(self.queries, pairs=queries, event_index=self.queries.event_index[self.few])
        return score_evaluation_set(self.build(), _build_stream(self.store), evaluation_set)

    def view(self, scorer: Scorer, pairs: PairBatch) -> PairView:
        """Return what the model sees of pairs; a memory observes the first half of the stream."""
        if scorer.stateful:
            half = len(self.store) // 2
            for events in self.store.batches(torch.arange(half), max(half // 5, 1)):
                scorer.observe(events)
        queries = pairs.with_columns(self._columns(pairs))
        return _build_stream(self.store).view(queries, scorer.requests, Draws.from_seed(5))

    def _columns(self, pairs: PairBatch) -> QueryColumns | None:
        return _get_first_columns(self.store, pairs)


Score = Callable[[PairBatch], Tensor]


class FeatureSum(nn.Module, Scorer):
    """Sum of the features that a model requests: trees would hide a wrong one until one of them splits on it."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.requests = tuple(one for one in scorer.requests if isinstance(one, FeatureRequest))

    def forward(self, view: PairView) -> Tensor:
        features = torch.cat([view[request] for request in self.requests], dim=1).double()
        # counts and amounts of any size weigh about the same; weights differ, so that no two differences cancel
        return features.asinh() @ torch.linspace(0.5, 1.5, features.shape[1], dtype=torch.float64)


def _get_first_columns(store: EventStore, pairs: PairBatch) -> QueryColumns | None:
    """Return the columns of the first event for every pair, for models that read those of a query."""
    return QueryColumns.of_events(store.features, torch.zeros_like(pairs.src))


def build_case(spec: ModelSpec, config: Any, store: EventStore, facts: DatasetFacts) -> CheckCase:
    """Prepare the checks of a model on a stream.

    Weights are moved a little, so that nothing hides behind one that starts at zero, and trees are grown.
    """
    queries = sample_queries(store)

    def build() -> Scorer:
        # every check builds the model anew and must get the same weights
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            scorer = spec.build(config, facts)
            if not isinstance(scorer, nn.Module):
                return scorer
            for weight in scorer.parameters():
                weight.add_(torch.randn_like(weight), alpha=NOISE)
            for part in scorer.modules():
                if isinstance(part, Scorer) and part.rounds_per_epoch:
                    pairs = queries.pairs.with_columns(_get_first_columns(store, queries.pairs))
                    seen = _build_stream(store).view(pairs, part.requests, Draws.from_seed(5))
                    table = part.study([LabelledView(seen, pairs)])
                    for _ in range(ROUNDS):
                        part.learn(table)
        return scorer.eval()

    return CheckCase(build, store, queries)


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the contract.

    Attributes:
        name: Name in the table of `check_model`.
        find: Checks a case.
        audit_name: Name in an audit; None if audits leave it out.
        needs_weights: Whether it is only for models that are trained.
    """

    name: str
    find: Callable[[CheckCase], Finding]
    audit_name: str | None = None
    needs_weights: bool = False

    def run(self, cases: Iterable[CheckCase], name: str | None = None) -> CheckResult:
        """Check every case; any exception of the model, which may be foreign code, is a failure."""
        findings = [finding for case in cases for finding in self._run(case)]
        problems = [finding.problem for finding in findings if finding.problem is not None]
        differences = [finding.difference for finding in findings if finding.difference is not None]
        detail = "; ".join(dict.fromkeys(problems))
        return CheckResult(name or self.name, not problems, max(differences, default=None), detail)

    def _run(self, case: CheckCase) -> list[Finding]:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                cases = [case] if self.needs_weights else [case, *case.features]
                return [self.find(one) for one in cases]
        except Exception as error:
            message = str(error).splitlines()[0] if str(error) else "no message"
            return [Finding(f"{type(error).__name__}: {message}")]


def list_checks(trainable: bool) -> list[Check]:
    """Return the checks of a model that is trained, or of one that needs no training."""
    return [check for check in CHECKS if trainable or not check.needs_weights]


def list_audit_checks() -> dict[str, Check]:
    """Return the checks of an audit by their names there."""
    checks = {check.audit_name: check for check in CHECKS if check.audit_name is not None}
    return {name: checks[name] for name in sorted(checks, key=lambda name: name not in FIRST_IN_AUDIT)}


def check_model(name: str, settings: dict[str, Any]) -> pa.Table:
    """Run all checks on a registered model.

    Returns:
        A table with the columns check, holds and detail.

    Raises:
        ContractError: A check failed.
    """
    spec, store = find_model(name), sample_stream()
    case = build_case(spec, build_config(spec.config, settings), store, DatasetFacts.of(store))
    case.build()  # a model that cannot be built is one error, and not one of every check
    results = [check.run([case]) for check in list_checks(spec.trainable)]
    rows = [{"check": one.name, "holds": one.passed, "detail": one.detail} for one in results]
    table = pa.Table.from_pylist(rows)
    failed = [f"{one.name} ({one.detail})" for one in results if not one.passed]
    if failed:
        raise ContractError(
            f"model '{name}' fails {len(failed)} of {len(rows)} checks: {'; '.join(failed)}", table
        )
    return table


def sample_stream(events: int = EVENTS, nodes: int = NODES, seed: int = 0, edge_dim: int = 2) -> EventStore:
    """Create a stream with features, repeated pairs, equal times and self-loops; the last node has no event."""
    rng = torch.Generator().manual_seed(seed)
    src, dst = (torch.randint(nodes - 1, (events,), generator=rng) for _ in range(2))
    # near 2004: large enough that float32 times would lose seconds
    time = 1.08e9 + torch.randint(0, 3, (events,), generator=rng).cumsum(0).double()
    features = FeatureTable(
        torch.randn(nodes, 3, generator=rng),
        torch.randn(events, edge_dim, generator=rng),
        torch.randint(len(EVENT_TYPES), (events, 1), generator=rng, dtype=torch.int32),
        categories=(Category("type", EVENT_TYPES),),
        node_rows=sample_node_rows(nodes, time, rng),
    )
    return EventStore.from_columns(src, dst, time, num_nodes=nodes, features=features)


def sample_node_rows(nodes: int, time: Tensor, rng: torch.Generator) -> NodeRows:
    """Create node features that change at times of events; every other node has no row."""
    node = 2 * torch.randint(nodes // 2, (ROWS,), generator=rng)
    at = torch.randint(len(time), (ROWS,), generator=rng)
    since = torch.where(torch.arange(ROWS) < 2, STATIC_TIME, time[at])
    value, known = torch.randn(ROWS, 1, generator=rng), torch.rand(ROWS, 1, generator=rng) < 0.8
    codes = torch.randint(len(EVENT_TYPES), (ROWS, 1), generator=rng, dtype=torch.int32)
    columns = (node, since, value * known, known, codes)
    return NodeRows.from_unsorted(*columns, names=("level",), categories=(Category("kind", EVENT_TYPES),))


def sample_queries(store: EventStore) -> EvaluationSet:
    """Query the first events of the second half, a published batch at most, and as many negatives.

    A negative has the source and the time of its event and the destination of another one.
    """
    half = len(store) // 2
    events = torch.arange(half, min(len(store), half + PUBLISHED_BATCH))
    other = events[torch.randint(len(events), events.shape, generator=torch.Generator().manual_seed(1))]
    number = torch.arange(len(events)).repeat(2)
    ends = store.src[events].repeat(2), torch.cat([store.dst[events], store.dst[other]])
    pairs = PairBatch.from_pairs(*ends, store.time[events].repeat(2))
    labelled = pairs.with_labels((torch.arange(len(pairs)) < len(events)).float(), number)
    return EvaluationSet({}, events, (torch.arange(half),), labelled, number)


def _build_stream(store: EventStore) -> Stream:
    everything, new_nodes = torch.arange(len(store)), torch.zeros(store.num_nodes, dtype=torch.bool)
    split = Split(everything[:0], everything[:0], everything, new_nodes)
    return Stream(store, split, torch.device("cpu"))


def _compare_scores(actual: Tensor, expected: Tensor, change: str) -> Finding:
    difference = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))
    problem = f"{change} changes a score by {difference:.2g}" if not difference <= TOLERANCE else None
    return Finding(problem, difference)


def _check_finite(case: CheckCase) -> Finding:
    pairs, last = case.select(case.few), torch.tensor([case.store.num_nodes - 1])
    without_history = PairBatch.from_pairs(last, last, case.store.time[:1])
    # the ranker raises for scores that are not finite
    scores = torch.cat([case.prepare()(pairs), case.prepare()(without_history)])
    count = len(pairs) + 1
    return Finding(None if scores.shape == (count,) else f"{tuple(scores.shape)} scores for {count} pairs")


def _check_label(case: CheckCase) -> Finding:
    pairs = case.select(case.few)
    flipped = pairs.with_labels(1 - pairs.label, pairs.group.flip(0))
    return _compare_scores(case.evaluate(flipped), case.evaluate(pairs), "its label")


def _check_causal(case: CheckCase) -> Finding:
    """Compare with a stream that ends before the query; in the other one, later columns are far off.

    The pairs are events of the query time and later. Node features of the query time and later are far off in a third
    stream.
    """
    store = case.store
    time = store.time[len(store) // 2]
    now = case.select(case.few, time)
    past = _drop_later_node_rows(store[: int(torch.searchsorted(store.time, time))], float(time))
    other = replace(store, features=_perturb_later_features(store.features, len(past)))
    expected = case.prepare(store=past)(now)
    result = _compare_scores(case.prepare(store=other)(now), expected, "an event at its time or later")
    if result.problem is not None or store.features.node_rows is None:
        return result
    other = replace(past, features=_add_later_node_rows(past, float(time)))
    return _compare_scores(case.prepare(store=other)(now), expected, "a node feature of its time or later")


def _drop_later_node_rows(store: EventStore, time: float) -> EventStore:
    rows = store.features.node_rows
    if rows is None:
        return store
    is_early = rows.time < time
    columns = (column[is_early] for column in rows.columns)
    return replace(
        store,
        features=replace(
            store.features, node_rows=NodeRows(*columns, names=rows.names, categories=rows.categories)
        ),
    )


def _add_later_node_rows(store: EventStore, time: float) -> FeatureTable:
    """Give every node one more row, at exactly this time, with values that are far off."""
    features, rows = store.features, store.features.node_rows
    assert rows is not None
    count = store.num_nodes
    last = torch.tensor([[len(category.values) - 1 for category in rows.categories]], dtype=torch.int32)
    later = (
        torch.arange(count),
        torch.full((count,), time, dtype=torch.float64),
        torch.full((count, len(rows.names)), 1e3),
        torch.ones(count, len(rows.names), dtype=torch.bool),
        last.expand(count, -1),
    )
    both = (torch.cat(pair) for pair in zip(rows.columns, later, strict=True))
    more = NodeRows.from_unsorted(*both, names=rows.names, categories=rows.categories)
    return replace(features, node_rows=more)


def _perturb_later_features(features: FeatureTable, known: int) -> FeatureTable:
    is_later = torch.arange(len(features.edge))[:, None] >= known
    codes = features.codes
    if codes is not None:  # every value becomes the next one
        counts = torch.tensor([len(category.values) for category in features.categories])
        codes = torch.where(is_later, ((codes + 1) % counts).int(), codes)
    return replace(features, edge=torch.where(is_later, 1e3, features.edge), codes=codes)


def _check_batch(case: CheckCase) -> Finding:
    """Compare passes as large as any with a few of their pairs alone, and with halves of them.

    All pairs have one time, which is one pass of a memory too, or times from the first to the last, with histories of
    all lengths.
    """
    scorer, count = case.build(), len(case.pairs)
    every = torch.arange(max(count, max_pairs_per_pass(scorer.requests, case.pairs.node.device))) % count
    halves = torch.randperm(count).split(-(-count // 2))
    spread = case.store.time[torch.linspace(0, len(case.store) - 1, count).long()]
    for time in (case.pairs.time.max().expand(count), spread):
        together = case.prepare(scorer)(case.select(every, time[every].repeat(2)))[:count]
        for parts, change in ((case.few.split(1), "a batch of one pair"), (halves, "another batch")):
            score = case.prepare(scorer)
            found = torch.cat([score(case.select(rows, time[rows].repeat(2))) for rows in parts])
            result = _compare_scores(found, together[torch.cat(parts)], change)
            if result.problem is not None:
                return result
    return result


def _check_order(case: CheckCase) -> Finding:
    pairs = case.select(case.few, case.pairs.time.max())
    order = torch.randperm(len(pairs))
    return _compare_scores(case.prepare()(pairs.select(order)), case.prepare()(pairs)[order], "another order")


def _check_repeat(case: CheckCase) -> Finding:
    """Score queries, others, and the same again; nobody asked for their time before."""
    score, last = case.prepare(), case.store.time.max()
    pairs = case.select(case.few, last + 0.5)
    first = score(pairs)
    score(case.select(case.few, last + 1))
    return _compare_scores(score(pairs), first, "an earlier query")


def _check_padding(case: CheckCase) -> Finding:
    scorer = case.build()
    view = case.view(scorer, case.select(case.few))
    found = {
        request: _widen_hops(part) if isinstance(part, tuple) else part
        for request, part in view.found.items()
    }
    wide = replace(view, found=found)
    with torch.no_grad():
        return _compare_scores(scorer(wide), scorer(view), "more padding")


def _widen_hops(hops: tuple[NeighborSequence, ...]) -> tuple[NeighborSequence, ...]:
    """Add three padding entries with real nodes and a late time; their own next hops are empty."""

    def pad(seq: NeighborSequence) -> NeighborSequence:
        def append(column: Tensor, value: float) -> Tensor:
            return torch.cat([column, column.new_full((column.shape[0], 3), value)], dim=1)

        return replace(seq, node=append(seq.node, 2), event=append(seq.event, 1), time=append(seq.time, 2e9))

    wide = [pad(hop) for hop in hops[:1]]
    for entries, seq in pairwise(hops):
        # the next hop has a row per entry of this one: copy rows for the padding entries, with length 0
        first = torch.arange(len(seq.query_node)).view(entries.node.shape)
        rows = torch.cat([first, first[:, :1].expand(-1, 3)], dim=1)
        is_real = torch.arange(rows.shape[1]) < entries.node.shape[1]
        padded = pad(seq[rows.flatten()])
        wide.append(replace(padded, length=padded.length * is_real.repeat(len(rows))))
    return tuple(wide)


def _check_gradient(case: CheckCase) -> Finding:
    scorer = case.build()
    assert isinstance(scorer, nn.Module)
    if scorer.rounds_per_epoch:
        return Finding(None)  # trained without gradients
    scorer.train()
    view = case.view(scorer, case.select(case.few))
    (scorer(view) * torch.linspace(0.5, 1.5, len(view.pairs))).sum().backward()
    dead = [
        key
        for key, weight in scorer.named_parameters()
        if weight.requires_grad and (weight.grad is None or not bool(weight.grad.any()))
    ]
    return Finding(f"no gradient reaches {', '.join(dead)}" if dead else None)


def _check_round_trip(case: CheckCase) -> Finding:
    first, second, pairs = case.build(), case.build(), case.select(case.few)
    assert isinstance(first, nn.Module)
    assert isinstance(second, nn.Module)
    with torch.no_grad():
        for weight in second.parameters():
            weight.add_(1)
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    return _compare_scores(case.prepare(second)(pairs), case.prepare(first)(pairs), "saving and loading")


CHECKS = (
    Check("finite", _check_finite),
    Check("label", _check_label, "label"),
    Check("causal", _check_causal, "future"),
    Check("batch", _check_batch, "batch"),
    Check("order", _check_order, "order"),
    Check("repeat", _check_repeat, "repeat"),
    Check("padding", _check_padding, "padding"),
    Check("gradient", _check_gradient, needs_weights=True),
    Check("state dict", _check_round_trip, needs_weights=True),
)
