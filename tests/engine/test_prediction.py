from dataclasses import replace
from functools import cache

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
from dygmamba.models.dyg_mamba import DyGMambaConfig, build
from dygmamba.sampling.index import NeighborIndex
from dygmamba.sampling.negatives import Negatives
from strategies import event_streams

SIZES = {"length": 6, "width": 4, "blocks": 1, "states": 4, "out": 8, "time_dim": 8}


@cache
def scorer() -> EncoderScorer:
    """DyG-Mamba with random weights, made to differ more between pairs than rounding does."""
    torch.manual_seed(0)
    model = build(DyGMambaConfig(**SIZES), DatasetFacts(0, 0, 2))
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


@settings(max_examples=20)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=4, edge_dim=2), cut=st.integers(1, 30))
def test_later_events_change_no_score(store, cut):
    """For all streams S, cuts c and pairs asked up to the time of S[c]: score(S) = score(S[:c])."""
    past = store[:cut]
    times = [time for time in moments(past) if cut >= len(store) or time <= float(store.time[cut])]
    asked = every_pair(store, times)
    with_future, without = (LinkPredictor(scorer(), part).logits(*asked) for part in (store, past))
    torch.testing.assert_close(with_future, without, rtol=0, atol=1e-6)


@settings(max_examples=20)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=4, edge_dim=2), chunk=st.integers(1, 70))
def test_chunks_change_no_score(store, chunk):
    """For all streams and chunk sizes, a pair's probability is the same to 1e-6, and so is a ranking's."""
    asked = every_pair(store, moments(store))
    whole, parts = LinkPredictor(scorer(), store), LinkPredictor(scorer(), store, chunk=chunk)
    expected, got = whole.logits(*asked).sigmoid(), parts.logits(*asked).sigmoid()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    query = torch.arange(store.num_nodes), torch.full((store.num_nodes,), moments(store)[2]).double()
    best, other = (links.best(*query, torch.unique(store.dst), 2)[1].sigmoid() for links in (whole, parts))
    torch.testing.assert_close(other, best, rtol=0, atol=1e-6)


@settings(max_examples=20)
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


@settings(max_examples=20)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=6, edge_dim=2), k=st.integers(1, 8))
def test_the_best_are_the_first_of_all_sorted(store, k):
    """For all streams, best(k) is the head of all candidates sorted by score.

    A node is its own candidate only in a stream with self-loops.
    """
    candidates, links = torch.unique(store.dst), LinkPredictor(scorer(), store, chunk=5)
    loops = bool((store.src == store.dst).any())
    src = torch.arange(store.num_nodes).flip(0)
    time = torch.tensor(moments(store))[src % 3].double()
    node, logit = links.best(src, time, candidates, k)
    assert node.shape == logit.shape == (len(src), min(k, len(candidates)))
    for row in range(len(src)):
        asked = candidates if loops else candidates[candidates != src[row]]
        here = links.logits(src[row].expand(len(asked)), asked, time[row].expand(len(asked)))
        real = torch.isfinite(logit[row])
        assert int(real.sum()) == min(k, len(asked))
        best = here.sort(descending=True).values[:k]
        torch.testing.assert_close(logit[row][real], best, rtol=0, atol=1e-5)
        own = [float(here[asked == chosen]) for chosen in node[row][real]]
        np.testing.assert_allclose(own, best, rtol=0, atol=1e-5)


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
    store = replace(
        store, num_nodes=store.num_nodes + 1, features=FeatureTable.empty(store.num_nodes + 1, len(store))
    )
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
    first = dataset(
        EventStore.of(
            store.src,
            store.dst,
            store.time,
            num_nodes=store.num_nodes,
            features=FeatureTable(torch.ones(store.num_nodes, 1), store.features.edge),
        )
    )
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
    two, three = torch.tensor([0, 1]), torch.tensor([2, 3])
    node = torch.arange(4.0)[:, None]
    store = EventStore.of(
        two,
        three,
        torch.tensor([1.0, 3.0]),
        bipartite=True,
        num_nodes=4,
        features=FeatureTable(node, torch.zeros(2, 0)),
        label=torch.ones(2),
    )
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


def test_events_of_another_width_are_refused():
    """Events without the features the model was trained with are an error that says both widths."""
    wide, narrow = (
        EventStore.of(
            torch.tensor([0]),
            torch.tensor([1]),
            torch.tensor([0.0]),
            num_nodes=2,
            features=FeatureTable(torch.zeros(2, 0), torch.zeros(1, width)),
        )
        for width in (3, 1)
    )
    with pytest.raises(EventError, match="have 1 features each, those of 'stream' have 3"):
        extended(dataset(wide), dataset(narrow))


@pytest.mark.parametrize(
    ("times", "dated", "expected"),
    [
        ([0.0, 7.0], False, 8.0),
        ([0.5, 7.0], False, float(np.nextafter(7.0, 8))),
        ([0.5, 7.0], True, 7.000001),
    ],
)
def test_just_after_is_the_next_tick(times, dated, expected):
    """Whole times go on with the next whole number, dates with a microsecond, others with the next float."""
    assert just_after(torch.tensor(times, dtype=torch.float64), dated) == expected
