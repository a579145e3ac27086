from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.ops.recent_neighbors import (
    build_adjacency,
    cpu,
    find_past_end,
    find_weight_quantile,
    last_k_before,
    reference,
    time_aware_weights,
)
from strategies import event_streams


def build(store):
    return build_adjacency(store.src, store.dst, torch.arange(len(store)), store.time, store.num_nodes)


def queries(store):
    """Every node at every event time, between events, and outside the stream."""
    times = torch.unique(store.time)
    times = torch.cat([times, times + 0.25, torch.tensor([-1e12, 1e12], dtype=torch.float64)])
    node = torch.arange(store.num_nodes).repeat_interleave(len(times))
    return node, times.repeat(store.num_nodes)


@given(store=event_streams())
def test_compiled_adjacency_equals_the_reference(store):
    """For all streams the counting sort and the stable sort list the same entries in the same order."""
    fast = build(store)
    slow = reference.build_adjacency(
        store.src, store.dst, torch.arange(len(store)), store.time, store.num_nodes
    )
    for a, b in zip((fast.start, fast.key, fast.neighbor, fast.event, fast.time), slow, strict=True):
        assert torch.equal(a, b)


@settings(max_examples=40)
@given(store=event_streams(), k=st.integers(1, 9))
def test_last_k_equals_brute_force(store, k):
    """For all streams, queries (v, t) and k: the look-up is the last k events of v with time < t, in order."""
    node, time = queries(store)
    for find in (last_k_before, reference.last_k_before):
        ids, events, times, length = find(build(store), node, time, k)
        for row, (v, t) in enumerate(zip(node.tolist(), time.tolist(), strict=True)):
            past = [
                (w, e)
                for e, (a, b, s) in enumerate(zip(store.src, store.dst, store.time, strict=True))
                for x, w in ((int(a), int(b)), (int(b), int(a)))
                if x == v and s < t
            ][-k:]
            assert length[row] == len(past)
            assert (
                list(zip(ids[row, : len(past)].tolist(), events[row, : len(past)].tolist(), strict=True))
                == past
            )
            assert torch.equal(times[row, : len(past)], store.time[[e for _, e in past]])
            assert not ids[row, len(past) :].any()
            assert not events[row, len(past) :].any()
            assert not times[row, len(past) :].any()


@given(store=event_streams())
def test_before_counts_strictly_earlier_entries(store):
    """The end of a past minus its start is the number of strictly earlier entries: ties never count."""
    node, time = queries(store)
    entries = build(store)
    count = find_past_end(entries, node, time) - entries.start[node]
    expected = [
        int((((store.src == v).int() + (store.dst == v).int()) * (store.time < t)).sum())
        for v, t in zip(node.tolist(), time.tolist(), strict=True)
    ]
    assert count.tolist() == expected


def test_a_query_of_no_node_has_no_past():
    """Node -1, used to pad further hops, finds nothing."""
    entries = build_adjacency(
        torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), torch.tensor([1.0], dtype=torch.float64), 2
    )
    for find in (last_k_before, reference.last_k_before):
        ids, _, _, length = find(entries, torch.tensor([-1]), torch.tensor([9.0], dtype=torch.float64), 3)
        assert length.tolist() == [0]
        assert not ids.any()


@given(store=event_streams(), scale=st.sampled_from([0.0, 1e-6, 0.3]))
def test_decayed_count_equals_its_sum(store, scale):
    """The recursion c_i = 1 + exp(-scale gap) c_{i-1} equals the explicit sum over earlier entries."""
    entries = build(store)
    expected = reference.decayed_counts(entries.start, entries.time, scale)
    torch.testing.assert_close(cpu.decayed_counts(entries.start, entries.time, scale), expected)


@given(store=event_streams(), scale=st.sampled_from([0.0, 1e-6, 0.3]))
def test_running_weight_equals_its_sum(store, scale):
    """Summed entry by entry or node by node in torch; it begins anew at each node and always grows."""
    entries = build(store)
    running = time_aware_weights(entries, scale).running
    torch.testing.assert_close(running, reference.cumulate_weights(entries.start, entries.time, scale))
    for low, high in pairwise(entries.start.tolist()):
        assert bool((running[low:high].diff() >= 1).all())
        assert low == high or 1 <= float(running[low]) < 3


@given(store=event_streams(min_events=1), cut=st.integers(0, 60), scale=st.sampled_from([1e-6, 0.3]))
def test_running_weight_has_no_future(store, cut, scale):
    """For all cuts, what a node's entries before the cut weigh is the same without what follows, bit for bit."""
    whole, part = build(store), build(store[:cut])
    for v in range(store.num_nodes):
        ours = time_aware_weights(part, scale).running[part.start[v] : part.start[v + 1]]
        assert torch.equal(time_aware_weights(whole, scale).running[whole.start[v] :][: len(ours)], ours)


SHARES = st.lists(
    st.sampled_from([0.0, 1e-300, 0.25, 0.5, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True), max_size=6
)


@given(store=event_streams(), shares=SHARES, scale=st.sampled_from([0.0, 0.3]))
def test_the_place_of_a_share_is_the_first_that_exceeds_it(store, shares, scale):
    """For all pasts and shares below 1, in Numba and in torch: the first entry beyond the share, always inside."""
    entries, (node, time) = build(store), queries(store)
    weights, begin = time_aware_weights(entries, scale), entries.start[node]
    count = find_past_end(entries, node, time) - begin
    share = torch.tensor(shares, dtype=torch.float64).expand(len(node), -1)
    fast = find_weight_quantile(weights, begin, count, share)
    if len(weights.running):
        assert torch.equal(
            fast, reference.find_weight_quantile(weights.running, weights.halvings, begin, count, share)
        )
    for row, (first, length) in enumerate(zip(begin.tolist(), count.tolist(), strict=True)):
        past = weights.running[first : first + length]
        expected = [first + int((past <= s * past[-1]).sum()) if length else 0 for s in shares]
        assert fast[row].tolist() == expected
        assert all(first <= place < first + length for place in expected if length)
