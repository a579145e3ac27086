"""The memory's bookkeeping: which event of a node counts, and which neighbours are kept."""

from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.nn.memory import EventEnds, MemoryConfig, NodeMemory, RecentNeighbors
from strategies import event_streams


@given(store=event_streams(min_events=1))
def test_the_last_event_as_a_destination_wins(store):
    """For all batches: each node once, with its last event as a destination, or as a source where there is none."""
    ends = EventEnds.by_role(store.select(torch.arange(len(store)))).last(null_node=store.num_nodes)
    kept = ends.node < store.num_nodes
    found = EventEnds(ends.node[kept], ends.other[kept], ends.event[kept], ends.time[kept])
    events = list(enumerate(zip(store.src.tolist(), store.dst.tolist(), strict=True)))
    expected = {s: (d, e) for e, (s, d) in events} | {d: (s, e) for e, (s, d) in events}
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
        recent.add(EventEnds.by_time(events))
    assert not any(buffer[-1].any() for buffer in recent.buffers()), "nobody has neighbours"
    for n in range(store.num_nodes):
        ends = []
        for e, (s, d) in enumerate(zip(store.src.tolist(), store.dst.tolist(), strict=True)):
            ends += [(d, e)] * (s == n) + [(s, e)] * (d == n)
        kept = recent.mask(torch.tensor([n]))[0]
        found = list(zip(recent.node[n][kept].tolist(), recent.event[n][kept].tolist(), strict=True))
        assert found == ends[-k:]
        assert torch.equal(recent.time[n][kept], store.time[recent.event[n][kept]])


@given(store=event_streams(min_events=1))
def test_rows_without_waiting_are_those_with(store):
    """For all queries: updating every row, every query or each asked node once gives the same memories."""
    torch.manual_seed(0)
    memory = NodeMemory(MemoryConfig(store.num_nodes, 0, 3, 2, "gru", 0.0))
    ends = EventEnds.by_time(store.select(torch.arange(len(store)))).last(memory.null_node)
    memory.store_messages(ends, torch.randn(len(ends.node), 3))
    node = torch.stack([store.src, store.dst])
    once, _ = memory.read(node, store.features)
    ways = (
        (torch.arange(store.num_nodes + 1), node),
        (node.flatten(), torch.arange(node.numel()).view(node.shape)),
    )
    for way in ways:
        with patch.object(memory, "_rows", lambda _, way=way: way):
            again, _ = memory.read(node, store.features)
        assert torch.allclose(once, again, atol=1e-6)
