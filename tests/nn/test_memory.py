"""The memory's bookkeeping: which event of a node counts, and which neighbours are kept."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.nn.memory import RecentNeighbors, last_ends
from strategies import event_streams


@given(store=event_streams(min_events=1))
def test_the_last_event_of_a_node_wins(store):
    """For all batches: each node once, with its last event, and of a self-loop itself at the other end."""
    found = last_ends(store.select(torch.arange(len(store))))
    expected = {}
    for e, (s, d) in enumerate(zip(store.src.tolist(), store.dst.tolist(), strict=True)):
        expected |= {s: (d, e), d: (s, e)}
    rows = zip(found.node.tolist(), found.other.tolist(), found.event.tolist(), strict=True)
    assert {n: (o, e) for n, o, e in rows} == expected
    assert len(found.node) == len(expected)
    assert torch.equal(found.time, store.time[found.event])


@settings(max_examples=40)
@given(store=event_streams(), size=st.sampled_from([1, 3, 60]), k=st.sampled_from([1, 2, 5]))
def test_recent_neighbors_are_the_last_k_whatever_the_batches(store, size, k):
    """For all streams and batch sizes: what is kept are the last k ends of each node, the newest at the right."""
    recent = RecentNeighbors(store.num_nodes, k)
    for events in store.batches(torch.arange(len(store)), size):
        recent.add(events)
    for n in range(store.num_nodes):
        ends = []
        for e, (s, d) in enumerate(zip(store.src.tolist(), store.dst.tolist(), strict=True)):
            ends += [(d, e)] * (s == n) + [(s, e)] * (d == n)
        kept = recent.mask(torch.tensor([n]))[0]
        found = list(zip(recent.node[n][kept].tolist(), recent.event[n][kept].tolist(), strict=True))
        assert found == ends[-k:]
        assert torch.equal(recent.time[n][kept], store.time[recent.event[n][kept]])
