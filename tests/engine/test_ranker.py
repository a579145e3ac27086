from copy import deepcopy
from dataclasses import replace
from functools import cache

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ScoreError
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.scoring import Ranker
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, EncoderScorer, Heuristic
from dygmamba.models.configs import DyGMambaConfig
from dygmamba.tasks.base import EvaluationSet
from raising import raises
from strategies import event_streams
from streams import unsplit

SIZES = {"length": 6, "width": 4, "blocks": 1, "states": 4, "out": 8, "time_dim": 8}


@pytest.fixture(autouse=True, scope="module")
def _alone():
    """One thread: the tensors are tiny, and waiting threads are slow on a busy machine."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1), numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0]), numba.set_num_threads(before[1])


@cache
def scorer() -> EncoderScorer:
    """DyG-Mamba with random weights whose scores differ by more than rounding."""
    torch.manual_seed(0)
    model = MODELS["dyg-mamba"].build(DyGMambaConfig(**SIZES), DatasetFacts(0, 0, 2))
    with torch.no_grad():
        model.head.out.weight.mul_(20)
    return model


def ranker(scorer, store, tokens=None):
    return Ranker(scorer, unsplit(store), 0, tokens)


def every_pair(store, times):
    """All pairs of nodes at each of these times."""
    nodes = torch.arange(store.num_nodes)
    grid = torch.cartesian_prod(nodes, nodes, torch.arange(len(times)))
    return grid[:, 0], grid[:, 1], torch.as_tensor(times, dtype=torch.float64)[grid[:, 2]]


def moments(store):
    """Times before, within and after the stream."""
    return [float(store.time[0]) - 1, float(store.time[len(store) // 2]), float(store.time[-1]) + 1]


def dataset(store, ids=None):
    return Dataset.from_events("stream", store, ids or NodeIds.identity(store.num_nodes))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_scores():
    """The probabilities of all pairs of a stream agree between the devices to 1e-4."""
    row, features = torch.arange(30), FeatureTable(torch.zeros(5, 0), torch.rand(30, 2))
    store = EventStore.from_columns(2 * row % 5, 3 * row % 5, row // 2, features=features)
    asked = every_pair(store, moments(store))
    here = ranker(scorer(), store).logits(*asked).sigmoid()
    there = Ranker(deepcopy(scorer()).cuda(), unsplit(store, "cuda"), 0).logits(*asked).sigmoid()
    torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


@settings(max_examples=10)
@given(store=event_streams(min_events=1, max_events=40, edge_dim=2))
def test_a_prediction_equals_the_evaluation(store):
    """For all streams: each event and its reverse have the score of the evaluation."""
    events = torch.arange(len(store))
    both = torch.cat([store.src, store.dst]), torch.cat([store.dst, store.src]), store.time.repeat(2)
    pairs = PairBatch.from_pairs(*both)
    evaluation_set = EvaluationSet(
        {}, events, (), pairs.with_labels(torch.ones(len(pairs))), events.repeat(2)
    )
    expected = score_evaluation_set(scorer(), unsplit(store), evaluation_set)
    torch.testing.assert_close(ranker(scorer(), store).logits(*both), expected, rtol=0, atol=1e-5)


@settings(max_examples=10)
@given(store=event_streams(min_events=1, max_events=30, max_nodes=6, edge_dim=2), k=st.integers(1, 8))
def test_top_k_are_the_first_of_all_sorted(store, k):
    """For all streams: top_k heads the sorted candidates; self-loops only if the stream has some."""
    candidates, links = torch.unique(store.dst), ranker(scorer(), store, 90)
    src = torch.arange(store.num_nodes).flip(0)
    time = torch.tensor(moments(store)).double()[src % 3]
    c, s = len(candidates), len(src)
    asked = (src.repeat_interleave(c), candidates.repeat(s), time.repeat_interleave(c))
    every = links.logits(*asked).view(s, c)
    if not (store.src == store.dst).any():
        every[src[:, None] == candidates] = -torch.inf
    node, logit, total = links.top_k(src, time, candidates, k)
    torch.testing.assert_close(total, every.double().logsumexp(dim=1), rtol=0, atol=1e-5)
    expected = every.sort(dim=1, descending=True).values[:, :k]
    torch.testing.assert_close(logit, expected, rtol=0, atol=1e-5)
    chosen = every.gather(1, torch.searchsorted(candidates, node))
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-5)
    assert all(len(set(row)) == len(row) for row in node.tolist())


@given(store=event_streams(min_events=1))
def test_shared_rows_keep_every_pair(store):
    """For all pairs, the rows are distinct (node, time) queries and each pair still points at its own."""
    everything = torch.arange(len(store))
    pairs = PairBatch.from_pairs(store.src, store.dst, store.time).select_shared(everything, store.num_nodes)
    assert torch.equal(pairs.src, store.src)
    assert torch.equal(pairs.dst, store.dst)
    assert torch.equal(pairs.time, store.time)
    queries = set(zip(pairs.node.tolist(), pairs.when.tolist(), strict=True))
    assert len(queries) == len(pairs.node)


class Memory(Heuristic):
    """A scorer whose score is the number of events it has observed."""

    def __init__(self):
        self.resets = 0
        self.reset()

    def __call__(self, view):
        return torch.full((len(view.pairs),), float(len(self.seen)))

    def observe(self, events):
        self.seen += events.event.tolist()

    def reset(self):
        self.seen, self.resets = [], self.resets + 1


@given(store=event_streams(min_events=1, max_events=20), size=st.integers(1, 9))
def test_a_memory_has_observed_exactly_the_strictly_earlier_events(store, size):
    """For all streams and queries in any order: the memory has observed each earlier event once, and no other.

    A ranking tells it the whole story once.
    """
    memory = Memory()
    node = torch.zeros(3, dtype=torch.int64)
    candidate = torch.tensor([store.num_nodes])
    roomy = FeatureTable.empty(store.num_nodes + 1, len(store))
    store = replace(store, num_nodes=store.num_nodes + 1, features=roomy)
    links = ranker(memory, store, 1)
    everything = torch.arange(len(store))
    links.schedule = links.stream_scorer.schedule = MemorySchedule.from_periods(store, (everything,), size)
    time = torch.tensor(moments(store)[::-1]).double()
    earlier = (store.time[None] < time[:, None]).sum(1)
    assert links.logits(node, node, time).tolist() == earlier.tolist()
    before = links.stream_scorer.scorer.resets
    _, logit, _ = links.top_k(node, time, candidate, 1)
    assert logit[:, 0].tolist() == earlier.tolist()
    assert links.stream_scorer.scorer.resets <= before + 1
    assert memory.seen == []


def test_a_time_beyond_32_bit_gaps_is_an_error():
    """No score is ever NaN: a query too far from the stream is an error."""
    one = torch.tensor([0])
    features = FeatureTable(torch.zeros(1, 0), torch.zeros(1, 2))
    links = ranker(scorer(), EventStore.from_columns(one, one, one, features=features))
    with raises("not-finite", ScoreError):
        links.logits(one, one, torch.tensor([1e300], dtype=torch.float64))
