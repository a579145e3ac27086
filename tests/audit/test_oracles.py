"""The oracles, against loops over every event of every timestamp, and the statistics of a stream."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from dygmamba.auditing.audit import describe_period
from dygmamba.auditing.oracles import (
    EventsByTime,
    NegativeDraws,
    _expected_untied_ap,
    compute_ceiling,
    score_moment,
)
from dygmamba.data.events.splits import chronological_split
from dygmamba.history.view import PairBatch
from dygmamba.tasks.link import build_link_set, has_events
from strategies import event_streams
from streams import make_snapshots, tied_stream


def rows(pairs):
    return zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True)


@settings(deadline=None, max_examples=40)
@given(store=event_streams(min_events=1), seed=st.integers(0, 99))
def test_lookups_by_time_equal_a_loop_over_events(store, seed):
    """For all streams and pairs."""
    rng = torch.Generator().manual_seed(seed)
    src, dst = (torch.randint(store.num_nodes, (40,), generator=rng) for _ in range(2))
    pairs = PairBatch.from_pairs(src, dst, store.time[torch.randint(len(store), (40,), generator=rng)])
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    events_by_time = EventsByTime(store)
    assert events_by_time.is_event(pairs).tolist() == [pair in events for pair in rows(pairs)]
    assert events_by_time.count_events(pairs).tolist() == [events.count(pair) for pair in rows(pairs)]
    of_source = [sum((s, t) == (src, time) for s, _, t in events) for src, _, time in rows(pairs)]
    assert events_by_time.count_source_events(pairs).tolist() == of_source


@pytest.mark.parametrize("negatives", ["random", "historical", "inductive"])
@pytest.mark.parametrize("setting", ["transductive", "inductive"])
def test_a_ceiling_is_the_metric_of_a_brute_force_oracle(setting, negatives):
    """On a stream with ties: AP of scores 1 for events of the query time and 0 otherwise, by batch and pooled."""
    store = tied_stream()
    split = chronological_split(store)
    assert has_events(store, split, "test", setting)
    evaluation_set = build_link_set(store, split, "test", setting, negatives)
    events = set(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    says = torch.tensor([float(pair in events) for pair in rows(evaluation_set.pairs)])
    label, batch = evaluation_set.pairs.label, evaluation_set.pairs.group // 200
    one = compute_ceiling(EventsByTime(store), evaluation_set)
    by_batch = [
        average_precision_score(label[batch == b].numpy(), says[batch == b].numpy()) for b in batch.unique()
    ]
    assert one.edge_oracle_ap == pytest.approx(sum(by_batch) / len(by_batch), abs=1e-12)
    assert one.edge_oracle_ap_pooled == pytest.approx(
        average_precision_score(label.numpy(), says.numpy()), abs=1e-12
    )
    assert one.true_share == pytest.approx(float(says[label == 0].mean()))
    assert one.edge_oracle_ap_untied >= one.edge_oracle_ap - 1e-12


def test_the_expected_untied_ap_is_the_mean_over_all_orders():
    """Of 3 positives and 2 negatives that are events: all 120 orders; the other negative is ranked below."""
    label = torch.tensor([1.0, 1, 1, 0, 0, 0])
    true = torch.tensor([True, True, True, True, True, False])
    none = torch.zeros(6, dtype=torch.int64)
    pairs = PairBatch.from_pairs(none, none, none.double()).with_labels(label, none)
    by_hand = [average_precision_score(label.numpy(), [*scores, 0]) for scores in permutations(range(1, 6))]
    assert _expected_untied_ap(pairs, true) == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-12)


def test_visible_events_of_a_period_equal_a_loop():
    """Twenty events per timestamp in batches of 200: visible are events of the same timestamp in earlier batches."""
    store = tied_stream()
    split = chronological_split(store)
    found = describe_period(store, split, "test")
    assert (found.events, found.times, found.tied) == (
        len(split.test),
        len(store.time[split.test].unique()),
        1.0,
    )
    test = split.test.tolist()
    visible = [
        sum(store.time[e] == store.time[k] for e in test[: p // 200 * 200]) for p, k in enumerate(test)
    ]
    assert found.visible == pytest.approx(sum(n > 0 for n in visible) / len(visible))
    assert found.visible_events == pytest.approx(float(sum(visible)) / len(visible))


@pytest.mark.parametrize(
    ("setting", "negatives", "is_drawn"),
    [
        ("transductive", "random", True),
        ("transductive", "historical", False),
        ("transductive", "inductive", True),
        ("inductive", "random", True),
        ("inductive", "historical", True),
    ],
)
def test_expected_negatives_are_the_mean_over_draws(setting, negatives, is_drawn):
    """On snapshots: how often the sampler draws each positive query, over 200 seeds."""
    store = make_snapshots(nodes=60, events=20_000)
    split = chronological_split(store)
    first = build_link_set(store, split, "test", setting, negatives)
    draws = NegativeDraws.of(store, first)
    events = np.bincount(draws.query)[draws.query]
    posterior = draws.compute_posterior()
    _, index = np.unique(draws.query, return_index=True)
    expected = (events * (1 - posterior) / posterior)[index]

    def encode(src, dst, time):
        return (np.asarray(src) * store.num_nodes + np.asarray(dst)) * 100 + np.asarray(time).astype(np.int64)

    wanted = encode(draws.src[index], draws.dst[index], draws.time[index])
    order, count, seeds = np.argsort(wanted), np.zeros(len(expected)), 200
    for seed in range(seeds):
        pairs = build_link_set(store, split, "test", setting, negatives, seed=seed).pairs.select_label(0.0)
        rows = encode(pairs.src, pairs.dst, pairs.time)
        rows = rows[np.isin(rows, wanted)]
        count += np.bincount(order[np.searchsorted(wanted, rows, sorter=order)], minlength=len(count))
    assert (expected.sum() > 1) == is_drawn
    assert count.sum() / seeds == pytest.approx(expected.sum(), rel=0.05, abs=0.05)
    error = np.abs(count / seeds - expected) / np.sqrt((expected + 1 / seeds) / seeds)
    assert error.max() < 6


def test_the_moment_oracle_is_the_posterior_oracle_for_all_nodes():
    """With random negatives both have the same order, and the reference is the best of the oracles."""
    store = make_snapshots()
    evaluation_set = build_link_set(store, chronological_split(store), "test")
    events_by_time = EventsByTime(store)
    one = compute_ceiling(events_by_time, evaluation_set)
    assert one.moment_oracle_ap == one.posterior_oracle_ap
    assert one.reference_ap == max(one.edge_oracle_ap, one.moment_oracle_ap)
    pairs = evaluation_set.pairs
    events = [*zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True)]
    score = score_moment(events_by_time, evaluation_set)
    for row in (0, 1, len(pairs) - 1):
        pair = (int(pairs.src[row]), int(pairs.dst[row]), float(pairs.time[row]))
        of_source = sum((src, time) == (pair[0], pair[2]) for src, _, time in events)
        assert float(score[row]) == pytest.approx(events.count(pair) / of_source)
