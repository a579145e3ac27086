from copy import deepcopy
from dataclasses import replace
from functools import cache

import numba
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.data.events import EventStore, FeatureTable
from dygmamba.data.ids import NodeIds
from dygmamba.data.store import Dataset
from dygmamba.engine.evaluation import EvaluationSet, score_set
from dygmamba.engine.prediction import LinkPredictor, extended, just_after, shared_rows
from dygmamba.errors import EventError
from dygmamba.models.base import DatasetFacts, EncoderScorer
from dygmamba.models.dyg_mamba import SPEC, DyGMambaConfig
from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.negatives import Negatives
from strategies import event_streams

SIZES = {"length": 6, "width": 4, "blocks": 1, "states": 4, "out": 8, "time_dim": 8}


@pytest.fixture(autouse=True, scope="module")
def _alone():
    """One thread: the tensors are tiny, and threads that wait for each other on a busy machine are slow."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1), numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0]), numba.set_num_threads(before[1])


@cache
def scorer() -> EncoderScorer:
    """DyG-Mamba with random weights, made to differ more between pairs than rounding does."""
    torch.manual_seed(0)
    model = SPEC.build(DyGMambaConfig(**SIZES), DatasetFacts(0, 0, 2))
    with torch.no_grad():
        model.head.out.weight.mul_(20)
    return model


def every_pair(store, times):
    """All pairs of nodes at each of these times."""
    nodes = torch.arange(store.num_nodes)
    grid = torch.cartesian_prod(nodes, nodes, torch.arange(len(times)))
    return grid[:, 0], grid[:, 1], torch.as_tensor(times, dtype=torch.float64)[grid[:, 2]]


def moments(store):
    """Before, amid and after the stream."""
    return [float(store.time[0]) - 1, float(store.time[len(store) // 2]), float(store.time[-1]) + 1]


def dataset(store, ids=None):
    return Dataset.of("stream", store, ids or NodeIds.identity(store.num_nodes))


@settings(max_examples=10)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=4, edge_dim=2), cut=st.integers(1, 30))
def test_later_events_change_no_score(store, cut):
    """For all streams S, cuts c and pairs asked up to the time of S[c]: score(S) = score(S[:c])."""
    past = store[:cut]
    times = [time for time in moments(past) if cut >= len(store) or time <= float(store.time[cut])]
    asked = every_pair(store, times)
    with_future, without = (LinkPredictor(scorer(), part).logits(*asked) for part in (store, past))
    torch.testing.assert_close(with_future, without, rtol=0, atol=1e-6)


@settings(max_examples=10)
@given(
    store=event_streams(min_events=1, max_events=30, max_nodes=4, edge_dim=2),
    chunk=st.sampled_from([5, 16, 47]),
)
def test_chunks_change_no_score(store, chunk):
    """For all streams and chunk sizes, a pair's probability is the same to 1e-6, and so is a ranking's."""
    asked = every_pair(store, moments(store))
    whole, parts = LinkPredictor(scorer(), store), LinkPredictor(scorer(), store, chunk=chunk)
    expected, got = whole.logits(*asked).sigmoid(), parts.logits(*asked).sigmoid()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    query = torch.arange(store.num_nodes), torch.full((store.num_nodes,), moments(store)[2]).double()
    best, other = (links.best(*query, torch.unique(store.dst), 2)[1].sigmoid() for links in (whole, parts))
    torch.testing.assert_close(other, best, rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_scores():
    """The probabilities of all pairs of a stream agree between the devices to 1e-4."""
    row, features = torch.arange(30), FeatureTable(torch.zeros(5, 0), torch.rand(30, 2))
    store = EventStore.of(2 * row % 5, 3 * row % 5, row // 2, features=features)
    asked = every_pair(store, moments(store))
    here = LinkPredictor(scorer(), store).logits(*asked).sigmoid()
    there = LinkPredictor(deepcopy(scorer()).cuda(), store, "cuda").logits(*asked).sigmoid()
    torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


@settings(max_examples=10)
@given(store=event_streams(min_events=1, max_events=40, edge_dim=2))
def test_a_prediction_is_what_evaluation_says(store):
    """For all streams, each event and its reverse have the score that score_set gives them."""
    events = torch.arange(len(store))
    chosen = EvaluationSet(
        "test", "transductive", "random", events, events[:0], Negatives(store.dst, store.src)
    )
    with torch.no_grad():
        scores = score_set(scorer().eval(), store, NeighborIndex.build(store), chosen, batch_size=7)
    links = LinkPredictor(scorer(), store)
    for label, asked in ((1, (store.src, store.dst)), (0, (store.dst, store.src))):
        rows = scores.label == label
        expected = scores.score[rows][scores.group[rows].argsort()]
        torch.testing.assert_close(links.logits(*asked, store.time), expected, rtol=0, atol=1e-5)


@settings(max_examples=10)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=6, edge_dim=2), k=st.integers(1, 8))
def test_the_best_are_the_first_of_all_sorted(store, k):
    """For all streams, best(k) heads the sorted candidates; self-loops must occur to be among them."""
    candidates, links = torch.unique(store.dst), LinkPredictor(scorer(), store, chunk=9)
    src = torch.arange(store.num_nodes).flip(0)
    time = torch.tensor(moments(store)).double()[src % 3]
    c, s = len(candidates), len(src)
    asked = (src.repeat_interleave(c), candidates.repeat(s), time.repeat_interleave(c))
    every = links.logits(*asked).view(s, c)
    if not (store.src == store.dst).any():
        every[src[:, None] == candidates] = -torch.inf
    node, logit = links.best(src, time, candidates, k)
    expected = every.sort(dim=1, descending=True).values[:, :k]
    torch.testing.assert_close(logit, expected, rtol=0, atol=1e-5)
    chosen = every.gather(1, torch.searchsorted(candidates, node))
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-5)
    assert all(len(set(row)) == len(row) for row in node.tolist())


@given(store=event_streams(min_events=1))
def test_rows_are_shared_and_no_pair_is_lost(store):
    """For all pairs, the rows are distinct (node, time) queries and each pair still points at its own."""
    pairs = shared_rows(store.src, store.dst, store.time, store.num_nodes)
    assert torch.equal(pairs.src, store.src)
    assert torch.equal(pairs.dst, store.dst)
    assert torch.equal(pairs.time, store.time)
    queries = set(zip(pairs.node.tolist(), pairs.when.tolist(), strict=True))
    assert len(queries) == len(pairs.node)


class Memory:
    """A scorer whose score is the number of events it has observed."""

    requests = ()
    stateful = True

    def __init__(self):
        self.resets = 0
        self.reset()

    def __call__(self, view):
        return torch.full((len(view.pairs),), float(len(self.seen)))

    def observe(self, events):
        self.seen += events.event.tolist()

    def reset(self):
        self.seen, self.resets = [], self.resets + 1


@given(store=event_streams(min_events=1, max_events=20), chunk=st.integers(1, 9))
def test_a_memory_holds_exactly_the_strictly_earlier_events(store, chunk):
    """For all streams and questions in any order, memory has observed each earlier event once, and no other.

    A ranking tells it the whole story once.
    """
    memory = Memory()
    node = torch.zeros(3, dtype=torch.int64)
    candidate = torch.tensor([store.num_nodes])
    roomy = FeatureTable.empty(store.num_nodes + 1, len(store))
    store = replace(store, num_nodes=store.num_nodes + 1, features=roomy)
    links = LinkPredictor(memory, store, chunk=chunk)
    time = torch.tensor(moments(store)[::-1]).double()
    earlier = (store.time[None] < time[:, None]).sum(1)
    assert links.logits(node, node, time).tolist() == earlier.tolist()
    before = memory.resets
    _, logit = links.best(node, time, candidate, 1)
    assert logit[:, 0].tolist() == earlier.tolist()
    assert memory.resets == before + 1


@given(
    store=event_streams(min_events=1, max_events=20, max_nodes=5, edge_dim=1),
    more=event_streams(min_events=1, max_events=20, max_nodes=8, edge_dim=1),
)
def test_merging_keeps_every_event_under_its_users_ids(store, more):
    """For all two streams, the merged one holds the events of both by time, stored ones first in a tie."""
    features = FeatureTable(torch.ones(store.num_nodes, 1), store.features.edge)
    first = dataset(replace(store, features=features))
    second = dataset(more, NodeIds(pa.array([str(3 * k) for k in range(more.num_nodes)], pa.large_string())))
    merged = extended(first, second)

    def told(part, rank):
        columns = (
            part.ids.to_user(column).cast(pa.large_string()).to_pylist()
            for column in (part.store.src.numpy(), part.store.dst.numpy())
        )
        edge = part.store.features.edge[:, 0].tolist()
        return list(zip(part.store.time.tolist(), [rank] * len(edge), *columns, edge, strict=True))

    expected = sorted(told(first, 0) + told(second, 1), key=lambda event: event[:2])
    assert [event[2:] for event in told(merged, 0)] == [event[2:] for event in expected]
    known = merged.ids.to_node(first.ids.values, "src")
    assert merged.store.features.node.sum() == store.num_nodes
    assert merged.store.features.node[known].all()


def test_new_sources_and_destinations_of_a_bipartite_stream_stay_apart():
    """Source 'x' and destination 'x' are two nodes, before and after they are added; sources come first."""
    features = FeatureTable(torch.arange(4.0)[:, None], torch.zeros(2, 0))
    columns = (torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1.0, 3.0]))
    store = EventStore.of(*columns, bipartite=True, num_nodes=4, features=features, label=torch.ones(2))
    first = Dataset.of("s", store, NodeIds(pa.array(["a", "b", "a", "c"], pa.large_string()), 2))
    later = EventStore.of(torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), bipartite=True)
    merged = extended(first, Dataset.of("m", later, NodeIds(pa.array(["x", "x"], pa.large_string()), 1)))
    assert merged.ids.values.to_pylist() == ["a", "b", "x", "a", "c", "x"]
    assert merged.ids.sources == 3
    assert merged.store.src.tolist() == [0, 2, 1]
    assert merged.store.dst.tolist() == [3, 5, 4]
    assert merged.store.features.node[:, 0].tolist() == [0, 1, 0, 2, 3, 0]
    assert merged.store.label is not None
    assert merged.store.label.tolist() == [1, 0, 1]


def test_a_time_beyond_32_bit_spans_is_refused():
    """No score is ever NaN: a question too far from the stream is an error."""
    one = torch.tensor([0])
    features = FeatureTable(torch.zeros(1, 0), torch.zeros(1, 2))
    links = LinkPredictor(scorer(), EventStore.of(one, one, one, features=features))
    with pytest.raises(EventError, match="nearer to the stream"):
        links.logits(one, one, torch.tensor([1e300], dtype=torch.float64))


def test_just_after_is_the_next_tick():
    """Whole times go on with the next whole number, dates with a microsecond, others with the next float."""
    whole, mixed = torch.tensor([[0.0, 7.0], [0.5, 7.0]], dtype=torch.float64)
    assert just_after(whole, dated=False) == just_after(whole, dated=True) == 8
    assert just_after(mixed, dated=False) == np.nextafter(7.0, 8)
    assert just_after(mixed, dated=True) == 7.000001
