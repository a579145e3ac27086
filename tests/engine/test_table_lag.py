"""Batch visibility: counts, decayed counts, walks and transitions are as of the first event of a query's batch."""

import pytest
import torch
from hypothesis import given, settings

from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.evaluation import rank_evaluation_set, score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.counts import CountFeatures
from dygmamba.history.decayed_counts import DecayedCountLookup, DecayedCountTable
from dygmamba.history.index import Index, gather_view
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.history.walks import TemporalWalks, WalkRequest
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts, Heuristic, Scorer
from dygmamba.nn.history_features import pair_overlaps
from dygmamba.runs.evaluation import evaluate_link_scorer
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import LinkTask
from strategies import event_streams
from streams import split_stream, unsplit

CELL = 3
TABLES = (
    CountFeatures((2.0, 9.0), 4),
    DecayedCountLookup((2.0, 9.0)),
    WalkRequest(2, 5, (0.1, 0.02)),
    TransitionFeatures((2.0, 9.0), 2),
)


def told(view):
    """Sum of all table features of each pair of a view."""
    (counts, fades, walks, steps), pairs = (view[request] for request in TABLES), view.pairs
    ends = (pairs.src, pairs.dst, pairs.table_time)
    single = (fades.of_node(pairs.src, pairs.table_time), fades.of_node(pairs.dst, pairs.table_time))
    parts = [counts, *single, fades.of_pair(*ends), pair_overlaps(walks, *ends), steps]
    found = torch.cat(parts, dim=1).double()
    return found @ torch.linspace(1, 2, found.shape[1], dtype=torch.float64)


class Reader(Heuristic):
    """Scores with the table features, or with the number of neighbors, which is not from a table."""

    stateful = False

    def __init__(self, *requests):
        self.requests = requests

    def __call__(self, view):
        if self.requests == TABLES:
            return told(view)
        (recent,) = view[self.requests[0]]
        return recent.length[view.pairs.src_row].float()

    def observe(self, events):
        """Nothing."""

    def reset(self):
        """Nothing."""


def build_evaluation_set(store):
    """Build an evaluation set of every event, with its reverse as the negative."""
    ids = torch.arange(len(store))
    ends = torch.cat([store.src, store.dst]), torch.cat([store.dst, store.src])
    pairs = PairBatch.from_pairs(*ends, store.time.repeat(2))
    return EvaluationSet({}, ids, (), pairs.with_labels(torch.ones(len(pairs))), ids.repeat(2))


@settings(max_examples=15)
@given(store=event_streams(min_events=4, max_events=16))
def test_lagging_tables_hold_the_events_before_the_batch(store):
    """For all streams with ties: a batch's scores equal those of tables built from the events before it."""
    evaluation_set = build_evaluation_set(store)
    found = score_evaluation_set(
        Reader(*TABLES), unsplit(store), evaluation_set, VisibilityRule("batch", CELL)
    )
    for first in range(0, len(store), CELL):
        began = store.time[first]
        past = store[: int((store.time < began).sum())]
        rows = torch.cat(
            [torch.arange(first, min(first + CELL, len(store))) + k * len(store) for k in (0, 1)]
        )
        pairs = evaluation_set.pairs.select(rows)
        asked = PairBatch.from_pairs(pairs.src, pairs.dst, began.expand(len(rows)).clone())
        expected = told(gather_view(Index(past), past.features, asked, TABLES))
        torch.testing.assert_close(found[rows], expected)


@settings(max_examples=15)
@given(store=event_streams(min_events=1, max_events=25))
def test_sequences_and_strict_visibility_do_not_lag(store):
    """For all streams: strict tables are asked at the pair's own time, sequences under both rules."""
    evaluation_set, stream = build_evaluation_set(store), unsplit(store)
    expected = told(stream.view(evaluation_set.pairs, TABLES))
    torch.testing.assert_close(
        score_evaluation_set(Reader(*TABLES), stream, evaluation_set, VisibilityRule("strict", CELL)),
        expected,
    )
    reader = Reader(NeighborRequest((4,)))
    both = [
        score_evaluation_set(reader, stream, evaluation_set, VisibilityRule(visible, CELL)).tolist()
        for visible in ("strict", "batch")
    ]
    assert (
        both[0]
        == both[1]
        == stream.index.past(evaluation_set.pairs.src, evaluation_set.pairs.time)[1].clamp(max=4).tolist()
    )


def test_a_candidate_sees_what_its_event_sees():
    """Under batch visibility an event is ranked by its evaluation score among candidates at the same time."""
    store = generate_stream(GeneratorConfig(nodes=20, events=60, seed=2))
    evaluation_set, stream, rule, reader = (
        build_evaluation_set(store),
        unsplit(store),
        VisibilityRule("batch", 8),
        Reader(*TABLES),
    )
    rank = rank_evaluation_set(reader, stream, evaluation_set, SampledCandidates.create(store, None, 0), rule)
    for event in range(0, len(store), 7):
        others = torch.unique(store.dst)
        others = others[others != store.dst[event]]
        dst = torch.cat([store.dst[event : event + 1], others])
        pairs = PairBatch.from_pairs(
            store.src[event].expand_as(dst), dst, store.time[event].expand(len(dst)).clone()
        )
        score = score_evaluation_set(
            reader,
            stream,
            EvaluationSet(
                {},
                evaluation_set.events,
                (),
                pairs.with_labels(torch.ones(len(pairs))),
                torch.full((len(dst),), event),
            ),
            rule,
        )
        above, level = int((score[1:] > score[0]).sum()), int((score[1:] == score[0]).sum())
        assert float(rank[event]) == 1 + above + level / 2


class Noting(torch.nn.Module, Scorer):
    """A trainable scorer that records the times at which tables are asked."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.asked = []

    def forward(self, view):
        self.asked.append((view.pairs.table_time.clone(), view.pairs.time.clone()))
        return self.weight.expand(len(view.pairs))


@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_a_step_asks_tables_as_of_its_first_event(visible, tmp_path):
    """Under batch visibility as of the first event of the batch, under strict as of each query."""
    stream, witness = split_stream(generate_stream(GeneratorConfig(nodes=30, events=300, seed=1))), Noting()
    task = LinkTask.create(stream.store, stream.split, stream.device)
    fit = Trainer(task, witness, stream, FitConfig(batch=10, visible=visible), RunDirectory(tmp_path), 0)
    for step in range(fit.steps_per_epoch):
        fit.executor.step(fit.batch(fit.epoch(0), step))
    for number, (known, time) in enumerate(witness.asked):
        began = float(stream.store.time[stream.split.train[10 * number]])
        assert known.tolist() == ([began] * len(time) if visible == "batch" else time.tolist())


@pytest.mark.parametrize("batch", [7, 10_000])
def test_trees_learn_from_lagging_tables(batch, tmp_path):
    """For all batches: the training rows of trees are as of the batch's first event, in any passes."""
    stream = split_stream(generate_stream(GeneratorConfig(nodes=30, events=200, seed=1)))
    spec, train = find_model("walk-trees"), stream.split.train
    facts = DatasetFacts.of(stream.store, train)
    scorer = spec.build(spec.config(neighbors=3), facts)
    task = LinkTask.create(stream.store, stream.split, stream.device)
    fit = Trainer(
        task, scorer, stream, LinkFitConfig(batch=batch, visible="batch"), RunDirectory(tmp_path), 0
    )
    view = next(fit.executor._look_up()).view
    began = stream.store.time[train][torch.arange(len(train)) // batch * batch]
    assert torch.equal(view.pairs.table_time, began.repeat(2))
    assert torch.equal(view.pairs.time, stream.store.time[train].repeat(2))
    pairs = PairBatch.from_pairs(view.pairs.src, view.pairs.dst, began.repeat(2))
    expected = scorer.features(stream.training_view(pairs, scorer.requests))
    torch.testing.assert_close(scorer.features(view), expected)


def test_a_result_row_has_its_visibility():
    """Results with batch visibility are labelled and differ."""
    stream = split_stream(generate_stream(GeneratorConfig(nodes=30, events=2000, seed=1)))
    scorer = find_model("source-recency")
    model = scorer.build(scorer.config(), DatasetFacts.of(stream.store, stream.split.train))
    asked = [("historical", "test", "transductive")]
    about = {"dataset": "made", "model": "source-recency", "seed": 0}
    strict, batch = (
        evaluate_link_scorer(model, stream, about, asked, VisibilityRule(rule, 50))[0]
        for rule in ("strict", "batch")
    )
    assert (strict["visible"], batch["visible"]) == ("strict", "batch")
    assert strict["ap"] != batch["ap"]


@pytest.mark.parametrize("name", ["tpnet", "dyg-mamba-counts", "walk-trees"])
def test_models_ask_tables_at_the_table_time(name, monkeypatch):
    """Look-ups of decayed counts and walks, for tokens and pairs, use the lagging time."""
    store, asked = generate_stream(GeneratorConfig(nodes=20, events=80, seed=3)), []
    spec = find_model(name)
    scorer = spec.build(spec.config(), DatasetFacts.of(store, torch.arange(len(store)))).eval()
    pairs = PairBatch.from_pairs(store.src[60:], store.dst[60:], store.time[60:]).with_table_time(
        store.time[40].repeat(20)
    )
    for kind, method in (
        (TemporalWalks, "at"),
        (DecayedCountTable, "of_node"),
        (DecayedCountTable, "of_pair"),
    ):
        own = getattr(kind, method)
        monkeypatch.setattr(
            kind, method, lambda *given, own=own: asked.append(given[-1].unique()) or own(*given)
        )
    scorer(unsplit(store).view(pairs, scorer.requests))
    assert asked
    assert {time for times in asked for time in times.tolist()} == {float(store.time[40])}
