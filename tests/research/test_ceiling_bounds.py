"""The bounds of AP and AUC, against every ranking of tiny evaluation sets and every draw of their negatives."""

from collections import Counter
from dataclasses import asdict
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.auditing.oracles import EventsByTime, NegativeDraws, compute_ceiling
from dygmamba.data.events.splits import chronological_split
from dygmamba.history.view import PairBatch
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import average_precision, link_metrics, roc_auc
from research.ceiling_bounds import (
    LEVEL,
    _find_likely_auc,
    bound_by_labels,
    bound_expectation,
    compute_bounds,
)
from streams import make_snapshots, tied_stream


def weak_orders(count):
    """Return a score per item for every order of the items, ties included."""
    return [
        torch.tensor(levels).double()
        for levels in product(range(count), repeat=count)
        if set(levels) == set(range(max(levels) + 1))
    ]


@cache
def measure_ranking(levels, batch_size):
    """Return AP, AUC and pooled AUC of four positives and four negatives by their levels."""
    label, group = torch.tensor([1.0] * 4 + [0.0] * 4), torch.arange(4).repeat(2)
    found = link_metrics(torch.tensor(levels).double(), label, group, batch_size)
    return found["ap"], found["auc"], found["auc_pooled"]


def sort_batches(levels, batch_size):
    """Return the levels without gaps, sorted within each batch of positives and of negatives: the same ranking."""
    dense = {level: number for number, level in enumerate(sorted(set(levels)))}
    cells = (levels[at : at + batch_size] for at in range(0, 8, batch_size))
    return tuple(dense[level] for cell in cells for level in sorted(cell))


def pairs_of(query, label, group):
    """Queries with the same number are the same pair at the same time."""
    number = torch.tensor(query)
    pairs = PairBatch.from_pairs(number, number, torch.zeros(len(query)).double())
    return pairs.with_labels(torch.tensor(label).float(), torch.tensor(group))


exams = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=6)


@settings(deadline=None, max_examples=20)
@given(exam=exams)
def test_no_ranking_of_the_queries_exceeds_the_bound(exam):
    """For all sets of up to four queries: every order with ties, in batches of two positives and pooled."""
    positive, negative = ([pair[side] for pair in exam] for side in (0, 1))
    label = [1] * len(exam) + [0] * len(exam)
    pairs = pairs_of(positive + negative, label, [*range(len(exam))] * 2)
    bound = bound_by_labels(pairs, batch=2)
    found = [link_metrics(score[pairs.src], pairs.label, pairs.group, 2) for score in weak_orders(4)]
    assert max(one["ap"] for one in found) <= bound.ap + 1e-12
    assert max(one["ap_pooled"] for one in found) <= bound.ap_pooled + 1e-12
    assert max(one["auc"] for one in found) <= bound.auc + 1e-12
    assert max(one["auc_pooled"] for one in found) == pytest.approx(bound.auc_pooled, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), levels=st.integers(1, 6))
def test_ap_is_at_most_the_mean_of_one_and_auc(seed, count, levels):
    """For all scores, ties included, with as many negatives as positives."""
    rng = torch.Generator().manual_seed(seed)
    score = torch.randint(levels, (2 * count,), generator=rng).double()
    label = (torch.arange(2 * count) < count).float()
    assert average_precision(score, label) <= (1 + roc_auc(score, label)) / 2 + 1e-12


# source, destination and time of events; negatives keep source and time and draw one of three destinations
RANDOM_EXAMS = {
    "one source": ([0, 0, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]),
    "two sources": ([0, 1, 0, 0], [0, 0, 1, 2], [0, 0, 0, 0]),
    "two times": ([0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]),
    "repeated pair": ([0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]),
    "every pair once": ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]),
}


def describe(exam, batch_size):
    src, dst, time = (np.array(column) for column in exam)
    batch = np.arange(len(src)) // batch_size
    return NegativeDraws(src, dst, time.astype(float), batch, np.full(len(src), 3.0), keeps_source=True)


@cache
def evaluate_all_draws(name, batch_size):
    """Return mean AP, AUC and pooled AUC over all draws for every order of the events' queries; others come last."""
    src, dst, time = RANDOM_EXAMS[name]
    events = list(zip(src, dst, time, strict=True))
    queries = sorted(set(events))
    number = {query: index for index, query in enumerate(queries)}
    # the order of the negatives of a batch does not matter
    draws = Counter()
    for drawn in product(range(3), repeat=4):
        rows = [number.get(row, len(queries)) for row in zip(src, drawn, time, strict=True)]
        draws[*(sorted(rows[:2]) + sorted(rows[2:]) if batch_size == 2 else sorted(rows))] += 1
    own = [number[event] for event in events]
    values = []
    for order in weak_orders(len(queries)):
        level = [*order.long().tolist(), -1]
        found = [
            measure_ranking(sort_batches([level[row] for row in (*own, *rows)], batch_size), batch_size)
            for rows in draws
        ]
        values.append((order, *np.average(found, axis=0, weights=[*draws.values()])))
    return queries, values


@pytest.mark.parametrize("batch_size", [2, 4])
@pytest.mark.parametrize("name", RANDOM_EXAMS)
def test_no_ranking_exceeds_the_expected_bound(name, batch_size):
    """For every order of the queries: mean AP and AUC over all 81 draws; in one batch AUC attains the bound."""
    exam = RANDOM_EXAMS[name]
    bound = bound_expectation(describe(exam, batch_size))
    _, values = evaluate_all_draws(name, batch_size)
    best_ap, best_auc = max(one[1] for one in values), max(one[2] for one in values)
    assert best_ap <= bound.ap + 1e-12
    assert best_auc <= bound.auc + 1e-12
    if batch_size == 4:
        assert best_auc == pytest.approx(bound.auc, abs=1e-12)


@pytest.mark.parametrize("name", RANDOM_EXAMS)
def test_the_posterior_maximizes_expected_auc(name):
    """Over all orders of the queries and all 81 draws, pooled."""
    exam = RANDOM_EXAMS[name]
    queries, values = evaluate_all_draws(name, 4)
    share = dict(zip(zip(*exam, strict=True), describe(exam, 4).compute_posterior(), strict=True))
    score = [share[query] for query in queries]
    levels = torch.tensor(np.unique(score, return_inverse=True)[1]).double()
    by_posterior = next(one for one in values if torch.equal(one[0], levels))
    assert by_posterior[3] == pytest.approx(max(one[3] for one in values), abs=1e-12)


def test_a_likely_bound_is_exceeded_by_few_draws():
    """The posterior oracle over 200 draws: its mean AUC is below the expected bound, few values above the likely."""
    store = make_snapshots()
    split = chronological_split(store)
    first = build_link_set(store, split, "test")
    draws = NegativeDraws.of(store, first)
    bound = bound_expectation(draws)
    aucs = []
    for seed in range(200):
        pairs = build_link_set(store, split, "test", seed=seed).pairs
        score = torch.from_numpy(draws.score_posterior(pairs))
        aucs.append(link_metrics(score, pairs.label, pairs.group)["auc"])
    assert 0.5 < np.mean(aucs) < bound.auc
    assert np.mean(np.array(aucs) > bound.likely_auc) <= LEVEL
    assert bound.likely_auc < 1


def test_the_likely_bound_is_the_chernoff_quantile():
    """At the returned AUC the probability is the level; with few draws, or none lost, nothing is excluded."""
    auc, draws = 0.9, 1000
    found = _find_likely_auc(auc, draws)
    lost, mean = 1 - found, 1 - auc
    divergence = lost * np.log(lost / mean) + found * np.log(found / auc)
    assert np.exp(-draws * divergence) == pytest.approx(LEVEL, rel=1e-6)
    assert _find_likely_auc(0.9, 5) == 1.0
    assert _find_likely_auc(1.0, 1000) == 1.0


def test_batches_of_a_large_snapshot_may_be_bounded_one_by_one(monkeypatch):
    """The bound is then higher, never lower."""
    store = make_snapshots(sort_by_source=False)
    draws = NegativeDraws.of(store, build_link_set(store, chronological_split(store), "test"))
    joint = bound_expectation(draws).auc
    monkeypatch.setattr("research.ceiling_bounds.MAX_PRODUCTS", 1)
    assert joint < bound_expectation(draws).auc <= 1


@pytest.mark.parametrize("negatives", ["random", "historical", "inductive"])
@pytest.mark.parametrize("setting", ["transductive", "inductive"])
def test_order_and_activity_are_those_of_a_loop_over_events(setting, negatives):
    """On a stream with ties: which rows are past, which nodes are active and in which role; and the order of bounds."""
    store = tied_stream()
    evaluation_set = build_link_set(store, chronological_split(store), "test", setting, negatives)
    events_by_time, pairs = EventsByTime(store), evaluation_set.pairs
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    sources, destinations = {(s, t) for s, _, t in events}, {(d, t) for _, d, t in events}
    rows = list(zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True))
    active = [all((node, t) in sources | destinations for node in (s, d)) for s, d, t in rows]
    roles = [(s, t) in sources and (d, t) in destinations for s, d, t in rows]
    first = evaluation_set.events[evaluation_set.event_index // 200 * 200].tolist()
    unseen = [row in events[begin:] for row, begin in zip(rows, first, strict=True)]
    one = asdict(compute_ceiling(events_by_time, evaluation_set))
    one |= compute_bounds(events_by_time, evaluation_set)
    for name, says in (("membership_oracle", active), ("roles_oracle", roles)):
        found = link_metrics(torch.tensor(says).double(), pairs.label, pairs.group)
        assert (one[f"{name}_ap"], one[f"{name}_ap_pooled"]) == (found["ap"], found["ap_pooled"])
    with_order = link_metrics(torch.tensor(unseen).double(), pairs.label, pairs.group)["ap"]
    assert one["edge_oracle_ap_with_order"] == with_order >= one["edge_oracle_ap"] - 1e-12
    assert one["edge_oracle_ap"] >= one["roles_oracle_ap"] - 1e-12 >= one["membership_oracle_ap"] - 2e-12
    for metric in ("ap", "auc"):
        assert one[f"reference_{metric}"] <= one[f"bound_{metric}"] + 1e-12 <= 1 + 1e-12
        assert 0.5 <= one[f"expected_bound_{metric}"] <= 1
        assert one[f"likely_bound_{metric}"] <= one[f"bound_{metric}"]


@pytest.mark.parametrize(
    ("setting", "edge", "best"), [("transductive", 93.93, 94.78), ("inductive", 70.48, 81.92)]
)
def test_oracles_of_can_parl(setting, edge, best, real_data):
    """Random negatives: ranking true pairs by the number of the source's events is above the edge oracle."""
    import dygmamba as dm

    store = dm.load("CanParl", real_data).store
    evaluation_set = build_link_set(store, chronological_split(store), "test", setting)
    one = compute_ceiling(EventsByTime(store), evaluation_set)
    bounds = compute_bounds(EventsByTime(store), evaluation_set)
    assert 100 * one.edge_oracle_ap == pytest.approx(edge, abs=0.005)
    assert 100 * one.reference_ap == pytest.approx(best, abs=0.005)
    limits = [bounds[f"{name}_auc"] for name in ("expected_bound", "likely_bound", "bound")]
    assert [one.reference_auc, *limits] == sorted({one.reference_auc, *limits})
