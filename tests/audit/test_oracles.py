"""The oracles, against loops over every event of every timestamp, and the statistics of a stream."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from dygmamba.auditing.oracles import EventsByTime, _expected_untied_ap, compute_ceiling
from dygmamba.auditing.stream_statistics import describe_period, find_last_times, measure_row_order
from dygmamba.data.events.splits import chronological_split
from dygmamba.history.view import PairBatch
from dygmamba.tasks.link import build_link_set, has_events
from strategies import event_streams


def rows(pairs):
    return zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True)


@settings(deadline=None, max_examples=40)
@given(store=event_streams(min_events=1), seed=st.integers(0, 99))
def test_lookups_by_time_equal_a_loop_over_events(store, seed):
    """For all streams and pairs."""
    rng = torch.Generator().manual_seed(seed)
    src, dst = (torch.randint(store.num_nodes, (40,), generator=rng) for _ in range(2))
    pairs = PairBatch.from_pairs(src, dst, store.time[torch.randint(len(store), (40,), generator=rng)])
    first = torch.randint(len(store), (40,), generator=rng)
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    sources, destinations = {(s, t) for s, _, t in events}, {(d, t) for _, d, t in events}
    active = sources | destinations
    events_by_time = EventsByTime(store)
    assert events_by_time.is_event(pairs).tolist() == [pair in events for pair in rows(pairs)]
    both_active = [(s, t) in active and (d, t) in active for s, d, t in rows(pairs)]
    assert events_by_time.has_active_nodes(pairs).tolist() == both_active
    roles = [(s, t) in sources and (d, t) in destinations for s, d, t in rows(pairs)]
    assert events_by_time.has_active_roles(pairs).tolist() == roles
    from_row = [pair in events[row:] for pair, row in zip(rows(pairs), first.tolist(), strict=True)]
    assert events_by_time.is_event_from(pairs, first).tolist() == from_row


def tied_stream():
    """600 events among 12 nodes at 30 timestamps."""
    from dygmamba.data.events.event_store import EventStore

    rng = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(12, (600,), generator=rng) for _ in range(2))
    return EventStore.from_columns(
        src, dst, torch.arange(600).div(20, rounding_mode="floor").double(), num_nodes=12
    )


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
    assert one.edge_oracle_ap_with_order >= one.edge_oracle_ap - 1e-12
    assert one.edge_oracle_ap_untied >= one.edge_oracle_ap - 1e-12
    assert one.edge_oracle_ap >= one.roles_oracle_ap - 1e-12
    assert one.roles_oracle_ap >= one.membership_oracle_ap - 1e-12


def test_the_expected_untied_ap_is_the_mean_over_all_orders():
    """Of 3 positives and 2 negatives that are events: all 120 orders; the other negative is ranked below."""
    label = torch.tensor([1.0, 1, 1, 0, 0, 0])
    true = torch.tensor([True, True, True, True, True, False])
    none = torch.zeros(6, dtype=torch.int64)
    pairs = PairBatch.from_pairs(none, none, none.double()).with_labels(label, none)
    by_hand = [average_precision_score(label.numpy(), [*scores, 0]) for scores in permutations(range(1, 6))]
    assert _expected_untied_ap(pairs, true) == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(store=event_streams(min_events=1))
def test_last_times_are_strictly_before_the_query(store):
    """For all streams: the last time of a pair is its largest earlier timestamp."""
    key, time = (store.src * store.num_nodes + store.dst).numpy(), store.time.numpy()
    found = find_last_times(key, time, key, time)
    for row, (own, when) in enumerate(zip(key, time, strict=True)):
        earlier = time[(key == own) & (time < when)]
        assert found[row] == (earlier.max() if len(earlier) else -float("inf"))


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


def test_sorted_rows_are_detected():
    """Rows of each timestamp sorted by source have an AUC of 1; shuffled rows one of about 0.5."""
    store = tied_stream()
    everything = torch.arange(len(store))
    by_source = torch.argsort(store.time * 100 + store.src, stable=True)
    from dygmamba.data.events.event_store import EventStore

    ordered = EventStore.from_columns(store.src[by_source], store.dst[by_source], store.time, num_nodes=12)
    assert measure_row_order(ordered, everything).source == 1.0
    assert (
        measure_row_order(ordered, everything).neighbors
        > 0.4
        > measure_row_order(store, everything).neighbors
    )
    assert abs(measure_row_order(store, everything).source - 0.5) < 0.05
