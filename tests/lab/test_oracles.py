"""The oracles, against loops over every event of every time."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from dygmamba.data.events.splits import chronological_split
from dygmamba.lab.audit_stream import find_last_times, order, period
from dygmamba.lab.oracles import EventsByTime, _expected_untied_ap, ceiling
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.link import build_link_set, has_events
from strategies import event_streams


def rows(pairs):
    return zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True)


@settings(deadline=None, max_examples=40)
@given(store=event_streams(min_events=1), seed=st.integers(0, 99))
def test_the_oracles_know_exactly_what_happens_at_a_time(store, seed):
    """For all streams and pairs: happened, present, in role and still to come are what a loop over events says."""
    rng = torch.Generator().manual_seed(seed)
    src, dst = (torch.randint(store.num_nodes, (40,), generator=rng) for _ in range(2))
    pairs = PairBatch.of(src, dst, store.time[torch.randint(len(store), (40,), generator=rng)])
    first = torch.randint(len(store), (40,), generator=rng)
    events = list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    senders, receivers = {(s, t) for s, _, t in events}, {(d, t) for _, d, t in events}
    anyone = senders | receivers
    moments = EventsByTime(store)
    assert moments.happened(pairs).tolist() == [pair in events for pair in rows(pairs)]
    there = [(s, t) in anyone and (d, t) in anyone for s, d, t in rows(pairs)]
    assert moments.present(pairs).tolist() == there
    roles = [(s, t) in senders and (d, t) in receivers for s, d, t in rows(pairs)]
    assert moments.in_role(pairs).tolist() == roles
    coming = [pair in events[row:] for pair, row in zip(rows(pairs), first.tolist(), strict=True)]
    assert moments.still_to_come(pairs, first).tolist() == coming


def tied_stream():
    """600 events among 12 nodes at 30 times."""
    from dygmamba.data.events.event_store import EventStore

    rng = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(12, (600,), generator=rng) for _ in range(2))
    return EventStore.of(src, dst, torch.arange(600).div(20, rounding_mode="floor").double(), num_nodes=12)


@pytest.mark.parametrize("negatives", ["random", "historical", "inductive"])
@pytest.mark.parametrize("setting", ["transductive", "inductive"])
def test_a_ceiling_is_the_metric_of_a_brute_force_oracle(setting, negatives):
    """On a stream with ties: AP of 1 for every event of the moment and 0 otherwise, per batch of 200 and pooled."""
    store = tied_stream()
    split = chronological_split(store)
    assert has_events(store, split, "test", setting)
    evaluation_set = build_link_set(store, split, "test", setting, negatives)
    events = set(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))
    says = torch.tensor([float(pair in events) for pair in rows(evaluation_set.pairs)])
    label, batch = evaluation_set.pairs.label, evaluation_set.pairs.group // 200
    one = ceiling(EventsByTime(store), evaluation_set)
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


def test_ties_broken_by_chance_have_the_mean_of_all_orders():
    """Of 3 positives and 2 true negatives: the mean AP over all 120 orders, the rest being below."""
    label = torch.tensor([1.0, 1, 1, 0, 0, 0])
    true = torch.tensor([True, True, True, True, True, False])
    pairs = PairBatch.of(
        *(torch.zeros(6, dtype=torch.int64),) * 2, torch.zeros(6).double(), label, torch.zeros(6).long()
    )
    by_hand = [average_precision_score(label.numpy(), [*scores, 0]) for scores in permutations(range(1, 6))]
    assert _expected_untied_ap(pairs, true) == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(store=event_streams(min_events=1))
def test_last_seen_is_strictly_before(store):
    """For all streams: when a pair last met is the largest earlier time of it, never its own."""
    key, time = (store.src * store.num_nodes + store.dst).numpy(), store.time.numpy()
    found = find_last_times(key, time, key, time)
    for row, (own, when) in enumerate(zip(key, time, strict=True)):
        earlier = time[(key == own) & (time < when)]
        assert found[row] == (earlier.max() if len(earlier) else -float("inf"))


def test_a_period_counts_what_its_events_share():
    """Twenty events per time in batches of 200: each event sees what its time had before its batch, here nothing."""
    store = tied_stream()
    split = chronological_split(store)
    found = period(store, split, "test")
    assert (found.events, found.times, found.tied) == (
        len(split.test),
        len(store.time[split.test].unique()),
        1.0,
    )
    test = split.test.tolist()
    told = [sum(store.time[e] == store.time[k] for e in test[: p // 200 * 200]) for p, k in enumerate(test)]
    assert found.visible == pytest.approx(sum(n > 0 for n in told) / len(told))
    assert found.visible_events == pytest.approx(float(sum(told)) / len(told))


def test_the_order_of_rows_is_seen():
    """Rows of each time sorted by source: of two, the later has the larger source; shuffled ones say nothing."""
    store = tied_stream()
    everything = torch.arange(len(store))
    by_source = torch.argsort(store.time * 100 + store.src, stable=True)
    from dygmamba.data.events.event_store import EventStore

    ordered = EventStore.of(store.src[by_source], store.dst[by_source], store.time, num_nodes=12)
    assert order(ordered, everything).source == 1.0
    assert order(ordered, everything).neighbors > 0.4 > order(store, everything).neighbors
    assert abs(order(store, everything).source - 0.5) < 0.05
