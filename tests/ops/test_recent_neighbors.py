from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.data.events.event_store import EventStore
from dygmamba.history.index import Index
from dygmamba.ops.recent_neighbors import (
    find_past,
    find_weight_quantile,
    last_k_before,
)
from dygmamba.ops.recent_neighbors.cpu import cumulate_weights
from strategies import event_streams

BUILDERS = st.sampled_from([Index, partial(Index, is_growing=True)])  # without spare room, and with it


def build(store):
    return Index(store).entries


def queries(store):
    """Every node at every event time, between events, and outside the stream."""
    times = torch.unique(store.time)
    times = torch.cat([times, times + 0.25, torch.tensor([-1e12, 1e12], dtype=torch.float64)])
    node = torch.arange(store.num_nodes).repeat_interleave(len(times))
    return node, times.repeat(store.num_nodes)


@settings(max_examples=40)
@given(store=event_streams(), k=st.integers(1, 9), make=BUILDERS)
def test_last_k_equals_brute_force(store, k, make):
    """For all streams, queries (v, t) and k: the look-up is the last k events of v with time < t, in order."""
    node, time = queries(store)
    for find in (last_k_before, last_k_before.reference):
        ids, events, times, length = find(make(store).entries, node, time, k)
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


@given(store=event_streams(), make=BUILDERS)
def test_a_past_has_the_strictly_earlier_entries(store, make):
    """It begins where its node does, and has as many entries as are strictly earlier: ties never count."""
    node, time = queries(store)
    entries = make(store).entries
    expected = [
        int((((store.src == v).int() + (store.dst == v).int()) * (store.time < t)).sum())
        for v, t in zip(node.tolist(), time.tolist(), strict=True)
    ]
    for find in (find_past, find_past.reference):
        begin, count = find(entries, node, time)
        assert torch.equal(begin, entries.start[node])
        assert count.tolist() == expected


def test_a_query_of_no_node_has_no_past():
    """Node -1, used to pad further hops, finds nothing."""
    entries = build(EventStore.from_columns(torch.tensor([0]), torch.tensor([1]), torch.tensor([1.0])))
    query = (entries, torch.tensor([-1]), torch.tensor([9.0], dtype=torch.float64))
    for find, past in ((last_k_before, find_past), (last_k_before.reference, find_past.reference)):
        ids, _, _, length = find(*query, 3)
        assert length.tolist() == past(*query)[1].tolist() == [0]
        assert not ids.any()


def decayed_counts(time, scale):
    """Decayed count of a node's entries up to and including each of them, as a sum."""
    return torch.exp(-scale * (time[:, None] - time)).tril().sum(dim=1)


def lists_of(entries):
    """First place and end of each node."""
    return zip(entries.start.tolist(), (entries.start + entries.size).tolist(), strict=True)


@given(store=event_streams(), scale=st.sampled_from([0.0, 1e-6, 0.3]))
def test_running_weight_equals_its_sum(store, scale):
    """The recursion over entries equals the sums by definition; it begins anew at each node and always grows."""
    entries = build(store)
    running = cumulate_weights(entries, scale)
    for low, high in lists_of(entries):
        weight = torch.exp(1 / decayed_counts(entries.time[low:high], scale))
        torch.testing.assert_close(running[low:high], weight.cumsum(0))
        assert bool((running[low:high].diff() >= 1).all())
        assert low == high or 1 <= float(running[low]) < 3


SHARES = st.lists(
    st.sampled_from([0.0, 1e-300, 0.25, 0.5, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True), max_size=6
)


@given(store=event_streams(), shares=SHARES, scale=st.sampled_from([0.0, 0.3]), make=BUILDERS)
def test_the_place_of_a_share_is_the_first_that_exceeds_it(store, shares, scale, make):
    """For all pasts and shares below 1, in Numba and in torch: the first entry beyond the share, always inside."""
    index, (node, time) = make(store), queries(store)
    running, (begin, count) = index.weights(scale), index.past(node, time)
    share = torch.tensor(shares, dtype=torch.float64).expand(len(node), -1)
    fast = find_weight_quantile(running, begin, count, share)
    if len(running):
        assert torch.equal(fast, find_weight_quantile.reference(running, begin, count, share))
    for row, (first, length) in enumerate(zip(begin.tolist(), count.tolist(), strict=True)):
        past = running[first : first + length]
        expected = [first + int((past <= s * past[-1]).sum()) if length else 0 for s in shares]
        assert fast[row].tolist() == expected
        assert all(first <= place < first + length for place in expected if length)
