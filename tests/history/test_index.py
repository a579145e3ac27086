import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.draws import Draws
from dygmamba.history.index import STRATEGIES, Index, gather_view
from dygmamba.history.view import NeighborRequest, PairBatch
from raising import raises
from strategies import event_streams

REQUESTS = st.builds(
    NeighborRequest,
    fanout=st.sampled_from([(3,), (2, 3), (2, 1, 2)]),
    strategy=st.sampled_from(list(STRATEGIES)),
    scale=st.just(0.1),
)


class SameForAll(Draws):
    """Draws that depend on the slot alone, for laws that hold for given draws."""

    def uniform(self, node, time, hop, k):
        return super().uniform(torch.zeros_like(node), torch.zeros_like(time), hop, k)


def ask(store, request, node, time, draws=None):
    return Index(store).gather(request, node, time, draws or Draws.from_seed(0))


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
    """For all permutations p of the nodes and given draws: N(p(v), t; p(S)) = p(N(v, t; S))."""
    given_ = SameForAll(Draws.from_seed(seed).key)
    rename = torch.randperm(store.num_nodes, generator=torch.Generator().manual_seed(seed))
    renamed = EventStore.from_columns(
        rename[store.src], rename[store.dst], store.time, num_nodes=store.num_nodes
    )
    ours = ask(renamed, request, rename[store.src], store.time, given_)
    for a, b in zip(ours, ask(store, request, store.src, store.time, given_), strict=True):
        assert torch.equal(a.length, b.length)
        assert torch.equal(a.node[a.mask], rename[b.node.long()].int()[b.mask])
        assert torch.equal(a.event, b.event)


@given(store=event_streams(min_events=1), request=REQUESTS, seed=st.integers(0, 99))
def test_a_neighborhood_does_not_depend_on_the_batch(store, request, seed):
    """For all queries, in another order, twice or alone: the same sequences in every hop, bit for bit."""
    node, time = torch.cat([store.src, store.dst]), store.time.repeat(2)
    together = ask(store, request, node, time)
    order = torch.randperm(len(node), generator=torch.Generator().manual_seed(seed))
    order = torch.cat([order, order[:3]])
    for rows in (order, order[:1], order[1:1]):
        width = 1
        for part, whole in zip(ask(store, request, node[rows], time[rows]), together, strict=True):
            among = (rows[:, None] * width + torch.arange(width)).flatten()
            assert equal([part], [whole[among]])
            width *= whole.node.shape[1]


@given(store=event_streams(min_events=1), strategy=st.sampled_from(list(STRATEGIES)))
def test_events_of_other_nodes_change_no_neighborhood(store, strategy):
    """For all nodes v: one hop finds in the events of v alone what it finds in the whole stream, bit for bit."""
    request = NeighborRequest((5,), strategy, 0.1)
    for v in range(store.num_nodes):
        own = ((store.src == v) | (store.dst == v)).nonzero()[:, 0]
        node = torch.full_like(store.src, v)
        alone = Index(store, own).gather(request, node, store.time, Draws.from_seed(3))
        assert equal(alone, ask(store, request, node, store.time, Draws.from_seed(3)))


@pytest.mark.parametrize("strategy", ["uniform", "time_aware"])
def test_equal_entries_of_a_hop_draw_independently(strategy):
    """Entries repeat when drawn with replacement; their own neighbors are drawn independently, also between epochs."""
    request = NeighborRequest((8, 16), strategy, 0.1)
    query = torch.tensor([0]), torch.tensor([40.0], dtype=torch.float64)
    first, second = (
        ask(long_history(3), request, *query),
        ask(long_history(3), request, *query, Draws.from_seed(0, 1)),
    )
    rows = [
        tuple(row) for row, length in zip(first[1].event.tolist(), first[1].length, strict=True) if length
    ]
    assert len(set(first[0].event[0].tolist())) <= 3
    assert len(set(rows)) > 3
    assert not equal(first, second)


@pytest.mark.parametrize("strategy", ["uniform", "time_aware"])
def test_random_strategies_need_draws(strategy):
    """Without them it is an error; the process's generator is never used."""
    node, time = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    with raises("missing-draws", ConfigError):
        Index(long_history(3)).gather(NeighborRequest((2,), strategy), node, time)
    assert Index(long_history(3)).gather(NeighborRequest((2,)), node, time)[0].length.tolist() == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_gpu_finds_the_same_bits(strategy):
    """Every column of both hops is equal on both devices."""
    rng = torch.Generator().manual_seed(0)
    src, dst = torch.randint(50, (2, 5000), generator=rng)
    store = EventStore.from_columns(src, dst, torch.rand(5000, generator=rng, dtype=torch.float64).cumsum(0))
    request = NeighborRequest((20, 5), strategy, 1e-2)
    here = ask(store, request, store.src, store.time)
    query = store.src.cuda(), store.time.cuda()
    there = Index(store).to("cuda").gather(request, *query, Draws.from_seed(0, device="cuda"))
    assert all(
        torch.equal(a, b.cpu())
        for x, y in zip(here, there, strict=True)
        for a, b in zip(x.columns, y.columns, strict=True)
    )


@given(store=event_streams(min_events=1))
def test_an_index_of_some_events_has_only_those(store):
    """The training index, built on a subset, equals the index of a stream holding that subset alone."""
    events = torch.arange(len(store))[::2]
    part = EventStore.from_columns(
        store.src[events], store.dst[events], store.time[events], num_nodes=store.num_nodes
    )
    ours = Index(store, events).recent(store.src, store.time, 4)
    alone = Index(part).recent(store.src, store.time, 4)
    assert torch.equal(ours.length, alone.length)
    assert torch.equal(ours.node, alone.node)
    assert torch.equal(ours.event[ours.mask].long(), events[alone.event[alone.mask].long()])


def long_history(count=400):
    """One pair of nodes meeting at times 0, 1, 2, ..."""
    zeros = torch.zeros(count, dtype=torch.int64)
    return EventStore.from_columns(zeros, zeros + 1, torch.arange(count, dtype=torch.float64))


def crossed():
    """Nodes 0 to 2 meet 3 at times 0, 1, 2, ... in turn, so that their histories interleave."""
    row = torch.arange(60)
    return EventStore.from_columns(row % 3, torch.full_like(row, 3), row.double())


def many_times(count):
    """Queries that differ in their time alone, all between two events."""
    return torch.ones(count, dtype=torch.int64), 30 + torch.arange(1, count + 1).double() / (count + 1)


@pytest.mark.parametrize(("count", "k"), [(1, 60_000), (60_000, 1), (3_000, 20)])
def test_uniform_draws_are_uniform(count, k):
    """Over slots and over times each of the ten past events is drawn equally often, within four standard errors."""
    (hop,) = ask(crossed(), NeighborRequest((k,), "uniform"), *many_times(count))
    share = torch.bincount(hop.event.flatten(), minlength=60)[1:31:3] / hop.event.numel()
    assert abs(float(share.sum()) - 1) < 1e-6
    assert bool(((share - 0.1).abs() < 4 * (0.09 / hop.event.numel()) ** 0.5).all())


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.2, 30.0])
@pytest.mark.parametrize(("count", "k"), [(1, 60_000), (60_000, 1), (3_000, 20)])
def test_time_aware_draws_follow_their_softmax(count, k, scale):
    """The frequencies equal softmax_i(e_i / (e_1 + ... + e_i)), e = exp(scale * time), within four errors."""
    (hop,) = ask(crossed(), NeighborRequest((k,), "time_aware", scale), *many_times(count))
    logit = scale * torch.arange(1, 31, 3, dtype=torch.float64)
    expected = torch.softmax(torch.exp(logit - logit.logcumsumexp(0)), dim=0)
    share = torch.bincount(hop.event.flatten(), minlength=60)[1:31:3] / hop.event.numel()
    assert abs(float(share.sum()) - 1) < 1e-6
    assert bool(((share - expected).abs() < 4 * (expected * (1 - expected) / hop.event.numel()).sqrt()).all())


@given(store=event_streams(min_events=1), seed=st.integers(0, 20))
def test_a_part_of_a_view_equals_the_view_of_the_part(store, seed):
    """For all pairs and sufficient lengths: a part of a view equals its own look-up."""
    index, most = Index(store), 2 * len(store)
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time)
    request = NeighborRequest((most,))
    view = gather_view(index, store.features, pairs, (request,))
    chosen = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))[: 1 + len(store) // 2]
    rows = torch.cat([pairs.src_row[chosen], pairs.dst_row[chosen]])
    longest = int(view[request][0].length[rows].max())
    part = view.select_part(chosen, longest)
    few = pairs.select_shared(chosen, store.num_nodes)
    alone = gather_view(index, store.features, few, (request,), length=longest)
    for seen, found in ((part.pairs.src_row, alone.pairs.src_row), (part.pairs.dst_row, alone.pairs.dst_row)):
        ours, true = part[request][0][seen], alone[request][0][found]
        assert all(torch.equal(x, y) for x, y in zip(ours.columns, true.columns, strict=True))
