"""A score depends on the pair, the query time and strictly earlier events: for every model, as it is really asked.

Evaluation and prediction, through the walk, on streams of snapshots whose ties cross the borders of cells. Under the
published rule `batch` this holds for models that read sequences alone; what it means for a memory is in
`test_contract_memory.py`, for tables of the past in `tests/engine/test_table_lag.py`.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch

from contract_cases import (
    CASES,
    CELL,
    KEPT,
    PERIODS,
    SIZES,
    STATEFUL,
    WAYS,
    Questions,
    build,
    build_evaluation_set,
    change_events,
    contents,
    label_of,
    other_futures,
    questions,
    snapshots,
)
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.scoring import Ranker, score_view
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from streams import unsplit

every_kept_way = pytest.mark.parametrize(("case", "way"), KEPT, ids=label_of)
every_way = pytest.mark.parametrize(("case", "way"), list(product(CASES, WAYS)), ids=label_of)
every_case = pytest.mark.parametrize("case", CASES, ids=label_of)
every_memory = pytest.mark.parametrize("case", STATEFUL, ids=label_of)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def instants(store, begin=PERIODS[-1]):
    """The first row of each instant of the exam."""
    first = torch.cat([torch.tensor([True]), store.time.diff() > 0])
    return [row for row in first.nonzero()[:, 0].tolist() if row >= begin]


def asked_of(store, asked):
    """The same questions, each beside an event that the stream has."""
    return replace(asked, row=asked.row.clamp(max=max(PERIODS[-1], len(store) - 1)))


@every_kept_way
def test_what_happens_from_a_questions_time_on_changes_no_score(case, way):
    """For all T and streams that are one before T: the scores of questions up to T are the same.

    Events from T on are others, later, in another order, gone, or more.
    """
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    expected = WAYS[way](scorer, store, asked)
    assert float(expected.std()) > 1e-3
    for begin in instants(store)[::2]:
        early = (asked.time <= store.time[begin]).nonzero()[:, 0]
        for other in other_futures(store, begin):
            assert_same(WAYS[way](scorer, other, asked_of(other, asked[early])), expected[early])


@every_kept_way
def test_what_is_strictly_earlier_does_change_scores(case, way):
    """The theorem above is not empty: with another past the questions of the last instant score otherwise."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    last = asked[(asked.time == store.time[-1]).nonzero()[:, 0]]
    other = change_events(store, 0, instants(store)[-1])
    difference = WAYS[way](scorer, other, last) - WAYS[way](scorer, store, last)
    assert float(difference.abs().max()) > 1e-4


@every_way
def test_a_score_depends_on_no_other_question(case, way):
    """For all subsets and orders of an exam's or a prediction's questions, one alone included: the same scores."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    together = WAYS[way](scorer, store, asked)
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(2))
    for chosen in (order, order[9:10], torch.cat([order[:3], order[:6]])):
        assert_same(WAYS[way](scorer, store, asked[chosen]), together[chosen])


@every_case
@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_no_model_reads_the_answer(case, visible):
    """For all labels and groups of the asked pairs: the same bits."""
    store = snapshots()
    scorer, evaluation_set = build(case, store), build_evaluation_set(store, questions(store))
    found = []
    for label in (0.0, 1.0):
        pairs = replace(
            evaluation_set.pairs,
            label=torch.full_like(evaluation_set.pairs.label, label),
            group=(evaluation_set.pairs.group * int(label)).flip(0),
        )
        found.append(
            score_evaluation_set(
                scorer, unsplit(store), replace(evaluation_set, pairs=pairs), VisibilityRule(visible, CELL)
            )
        )
    assert torch.equal(*found)


def past_of(store, asked):
    """Nodes and events that earlier events connect with a pair.

    In any order: a neighbour is read as it is now (TGN), with what happened to it since they met.
    """
    earlier = int(torch.searchsorted(store.time, asked.time[0]))
    node, event = torch.zeros(store.num_nodes, dtype=torch.bool), torch.zeros(len(store), dtype=torch.bool)
    node[asked.src], node[asked.dst] = True, True
    for _ in range(store.num_nodes):
        event[:earlier] = node[store.src[:earlier]] | node[store.dst[:earlier]]
        node[store.src[event]], node[store.dst[event]] = True, True
    return node, event


def apart(groups=3):
    """Snapshots in which nodes meet only nodes of their own group until the last two instants."""
    store = snapshots()
    row, mixed = torch.arange(len(store)), sum(SIZES[:-2])
    group = torch.where(row < mixed, row % groups, 0)
    among = torch.where(row < mixed, groups, store.num_nodes)
    ends = {"src": store.src % among, "dst": store.dst % among}
    return replace(store, **{name: end + groups * group for name, end in ends.items()})


@pytest.mark.parametrize("way", ["strict", "prediction"])
@every_case
def test_features_outside_a_pairs_past_reach_no_score(case, way):
    """For all pairs: NaN in the features of nodes and events that no chain of earlier events connects with the pair.

    Events at or after its time, nodes that are first met then, and whatever happens among others.
    """
    store = apart()
    begin = instants(store)[0]
    scorer, at = build(case, store), torch.tensor([begin])
    for src, dst in ((3, 5), (1, 7)):
        asked = Questions(torch.tensor([src]), torch.tensor([dst]), store.time[at], at)
        node, event = past_of(store, asked)
        assert 0 < int(event.sum()) < begin
        assert 0 < int(node.sum()) < store.num_nodes
        features = replace(
            store.features,
            node=store.features.node.masked_fill(~node[:, None], torch.nan),
            edge=store.features.edge.masked_fill(~event[:, None], torch.nan),
            codes=store.features.codes.masked_fill(~event[:, None], 10**6),
        )
        poisoned = WAYS[way](scorer, replace(store, features=features), asked)
        assert_same(poisoned, WAYS[way](scorer, store, asked))


@every_case
def test_a_prediction_sees_exactly_what_is_strictly_earlier(case):
    """For all T: the score of a scorer that was told of every event before T, cell by cell, and of nothing else."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    found = WAYS["prediction"](scorer, store, asked)
    for time in torch.unique(asked.time):
        past, rows = store[: int(torch.searchsorted(store.time, time))], (asked.time == time).nonzero()[:, 0]
        scorer.reset()
        for events in past.batches(torch.arange(len(past)), CELL):
            scorer.observe(events)
        pairs = PairBatch.from_pairs(asked.src[rows], asked.dst[rows], asked.time[rows])
        index = Index(past)
        view = gather_view(index, past.features, pairs, scorer.requests, Draws.from_seed(0))
        assert_same(found[rows], score_view(scorer, view))


@every_case
def test_predictions_in_any_order_have_the_same_bits(case):
    """For all questions A and B, earlier or later: A, A again, B, and A once more; all A the same to the last bit."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    late = asked[(asked.time == store.time[-1]).nonzero()[:, 0]]
    early = asked[(asked.time == store.time[PERIODS[-1]]).nonzero()[:, 0]]
    for first, second in ((late, early), (early, late)):
        links = Ranker(scorer, unsplit(store), 0, batch_size=CELL)
        told = [links.logits(q.src, q.dst, q.time) for q in (first, first, second, first, second)]
        assert torch.equal(told[0], told[1])
        assert torch.equal(told[0], told[3])
        assert torch.equal(told[2], told[4])


@every_memory
def test_a_prediction_leaves_no_cut_cell_behind(case):
    """Afterwards the memory holds the whole cells before the question's time, bit for bit."""
    store = snapshots()
    links = Ranker(build(case, store), unsplit(store), 0, batch_size=CELL)
    for begin in (*instants(store), *instants(store)[::-1]):
        links.logits(store.src[:3], store.dst[:3], store.time[begin].repeat(3))
        expected, whole = build(case, store), begin // CELL * CELL
        assert begin > whole
        for events in store.batches(torch.arange(whole), CELL):
            expected.observe(events)
        assert contents(links.stream_scorer.scorer) == contents(expected)


@every_memory
def test_two_askers_of_one_scorer_do_not_meet(case):
    """A ranker's scores are the same whatever else is done with its scorer: other streams, exams, a reset."""
    store = snapshots()
    scorer, asked = build(case, store), questions(store)
    asked = asked[(asked.time == store.time[-1]).nonzero()[:, 0]]
    links, others = (Ranker(scorer, unsplit(s), 0, batch_size=CELL) for s in (store, change_events(store, 0)))
    first = links.logits(asked.src, asked.dst, asked.time)
    others.logits(asked.src, asked.dst, asked.time)
    assert torch.equal(links.logits(asked.src, asked.dst, asked.time), first)
    score_evaluation_set(
        scorer, unsplit(store), build_evaluation_set(store, asked), VisibilityRule("batch", 3)
    )
    assert torch.equal(links.logits(asked.src, asked.dst, asked.time), first)
    scorer.reset()
    assert torch.equal(links.logits(asked.src, asked.dst, asked.time), first)
