import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.data.events import EventStore
from dygmamba.sampling.index import STRATEGIES, NeighborIndex, gather_view
from dygmamba.sampling.view import NeighborRequest, PairBatch
from strategies import event_streams

REQUESTS = st.builds(
    NeighborRequest,
    fanout=st.sampled_from([(3,), (2, 3), (2, 1, 2)]),
    strategy=st.sampled_from(list(STRATEGIES)),
    scale=st.just(0.1),
)


def ask(store, request, node, time):
    rng = torch.Generator().manual_seed(0)
    return NeighborIndex.build(store).gather(request, node, time, rng)


def equal(a, b):
    fields = ("query_node", "query_time", "node", "event", "time", "length")
    return all(torch.equal(getattr(x, f), getattr(y, f)) for x, y in zip(a, b, strict=True) for f in fields)


@given(store=event_streams(min_events=1), request=REQUESTS, cut=st.integers(0, 59))
def test_future_events_never_change_a_neighborhood(store, request, cut):
    """For all streams S, cuts c and queries (v, t) with t <= time of S[c]: N(v, t; S) = N(v, t; S[:c])."""
    cut = min(cut, len(store) - 1)
    node = torch.arange(store.num_nodes)
    time = store.time[cut].expand(store.num_nodes)
    assert equal(ask(store, request, node, time), ask(store[:cut], request, node, time))


@given(store=event_streams(min_events=1), request=REQUESTS)
def test_every_neighbor_is_strictly_earlier_than_its_query(store, request):
    """For all streams and requests, each hop's entries precede the entry they were asked for."""
    node, time = store.src, store.time
    for hop in ask(store, request, node, time):
        assert bool((hop.time < hop.query_time[:, None])[hop.mask].all())
        assert bool((hop.age[hop.mask] > 0).all())
        assert bool((hop.time.diff(dim=1) >= 0)[hop.mask[:, 1:]].all())


@given(store=event_streams(min_events=1), request=REQUESTS, seed=st.integers(0, 99))
def test_renaming_nodes_commutes_with_the_lookup(store, request, seed):
    """For all permutations p of the nodes: N(p(v), t; p(S)) = p(N(v, t; S))."""
    rename = torch.randperm(store.num_nodes, generator=torch.Generator().manual_seed(seed))
    renamed = EventStore.of(rename[store.src], rename[store.dst], store.time, num_nodes=store.num_nodes)
    ours = ask(renamed, request, rename[store.src], store.time)
    for a, b in zip(ours, ask(store, request, store.src, store.time), strict=True):
        assert torch.equal(a.length, b.length)
        assert torch.equal(a.node[a.mask], rename[b.node.long()].int()[b.mask])
        assert torch.equal(a.event, b.event)


@given(store=event_streams(min_events=1), request=REQUESTS)
def test_a_shift_of_all_times_changes_no_neighborhood(store, request):
    """Adding a constant to every time, queries included, leaves nodes, events and ages alone."""
    shifted = EventStore.of(store.src, store.dst, store.time + 4096.0, num_nodes=store.num_nodes)
    ours = ask(shifted, request, store.src, store.time + 4096.0)
    for a, b in zip(ours, ask(store, request, store.src, store.time), strict=True):
        assert torch.equal(a.node, b.node)
        assert torch.equal(a.event, b.event)
        assert torch.equal(a.age, b.age)


@given(store=event_streams(min_events=1))
def test_an_index_of_some_events_knows_only_those(store):
    """The training index, built on a subset, equals the index of a stream holding that subset alone."""
    events = torch.arange(len(store))[::2]
    part = EventStore.of(store.src[events], store.dst[events], store.time[events], num_nodes=store.num_nodes)
    ours = NeighborIndex.build(store, events).recent(store.src, store.time, 4)
    alone = NeighborIndex.build(part).recent(store.src, store.time, 4)
    assert torch.equal(ours.length, alone.length)
    assert torch.equal(ours.node, alone.node)
    assert torch.equal(ours.event[ours.mask].long(), events[alone.event[alone.mask].long()])


def long_history(count=400):
    """One pair of nodes meeting at times 0, 1, 2, ..."""
    zeros = torch.zeros(count, dtype=torch.int64)
    return EventStore.of(zeros, zeros + 1, torch.arange(count, dtype=torch.float64))


def test_uniform_draws_are_uniform():
    """Each past event is drawn equally often, within four standard errors."""
    draws = 60_000
    node, time = torch.zeros(1, dtype=torch.int64), torch.tensor([10.0], dtype=torch.float64)
    (hop,) = ask(long_history(20), NeighborRequest((draws,), "uniform"), node, time)
    share = torch.bincount(hop.event[0], minlength=20)[:10] / draws
    assert bool(((share - 0.1).abs() < 4 * (0.09 / draws) ** 0.5).all())


def test_time_aware_draws_follow_their_softmax():
    """The frequencies equal softmax_i(e_i / (e_1 + ... + e_i)), e = exp(scale * time), within four errors."""
    draws, scale = 60_000, 0.5
    node, time = torch.zeros(1, dtype=torch.int64), torch.tensor([6.0], dtype=torch.float64)
    (hop,) = ask(long_history(20), NeighborRequest((draws,), "time_aware", scale), node, time)
    e = torch.exp(scale * torch.arange(6, dtype=torch.float64))
    expected = torch.softmax(e / e.cumsum(0), dim=0)
    share = torch.bincount(hop.event[0], minlength=20)[:6] / draws
    assert bool(((share - expected).abs() < 4 * (expected * (1 - expected) / draws).sqrt()).all())


@given(store=event_streams(min_events=1), seed=st.integers(0, 20))
def test_a_part_of_a_view_is_the_view_of_the_part(store, seed):
    """For all pairs and all lengths that reach their pasts: what a part sees is what a look-up of its own finds."""
    index, most = NeighborIndex.build(store), 2 * len(store)
    pairs = PairBatch.of(store.src, store.dst, store.time)
    view = gather_view(index, store.features, pairs, (NeighborRequest((most,)),))
    chosen = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))[: 1 + len(store) // 2]
    rows = torch.cat([pairs.src_row[chosen], pairs.dst_row[chosen]])
    longest = int(view.neighbors[0][0].length[rows].max())
    part = view.part(chosen, longest)
    alone = gather_view(index, store.features, pairs.select(chosen), (NeighborRequest((longest,)),))
    for seen, found in ((part.pairs.src_row, alone.pairs.src_row), (part.pairs.dst_row, alone.pairs.dst_row)):
        ours, true = part.neighbors[0][0][seen], alone.neighbors[0][0][found]
        assert all(torch.equal(x, y) for x, y in zip(ours.columns, true.columns, strict=True))
    assert torch.equal(part.pairs.label, pairs.label[chosen])
