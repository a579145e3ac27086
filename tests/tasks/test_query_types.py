"""Query types: what the two nodes of an event did strictly before it, and metrics of each type alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.history.view import PairBatch
from dygmamba.runs.evaluation import Queries, Scored
from dygmamba.tasks import query_types
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.metrics import average_precision, rank_metrics
from dygmamba.tasks.query_types import QUERY_TYPES, find_query_types
from strategies import event_streams


def expected_type(store, event):
    """By a loop over all strictly earlier events."""
    src, dst = int(store.src[event]), int(store.dst[event])
    earlier = [
        {int(store.src[k]), int(store.dst[k])} for k in range(len(store)) if store.time[k] < store.time[event]
    ]
    known = set().union(*earlier)
    if not {src, dst} <= known:
        return "new_node"
    return "repeated_pair" if {src, dst} in earlier else "new_pair"


@settings(max_examples=15, deadline=None)
@given(store=event_streams(min_events=1), first=st.integers(0, 5), size=st.sampled_from([1, 7, 1000]))
def test_types_are_those_of_a_loop_over_earlier_events(store, first, size):
    """For all streams with ties and self-loops, and any number of events read at once."""
    events = torch.arange(min(first, len(store)), len(store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_types, "EVENTS_PER_PASS", size)
        types = find_query_types(store, events)
    assert [QUERY_TYPES[number] for number in types] == [expected_type(store, int(k)) for k in events]


def test_metrics_of_a_type_are_those_of_its_events_alone():
    """AP of the events of a type with their own negatives, MRR of their ranks; None for a type without events."""
    rng, count = torch.Generator().manual_seed(0), 60
    number = torch.arange(count).repeat(2)
    label = (torch.arange(2 * count) < count).float()
    score = torch.randn(2 * count, generator=rng) + label
    pairs = PairBatch.from_pairs(number, number, number.double()).with_labels(label, number)
    evaluation_set = EvaluationSet({}, torch.arange(count), (), pairs, number)
    types = (torch.arange(count) % 2).to(torch.int8)  # no event has the third type
    stream = SimpleNamespace(query_types=types)
    rank = 1 + torch.arange(count).double()
    scored = Scored(Queries(evaluation_set), score, rank=rank, stream=stream)
    found = scored.row(("ap", "mrr", "by_type"))["by_type"]
    even = number % 2 == 0
    ap = average_precision(score[even], label[even])
    assert found["repeated_pair"] == {"n": 30, "ap": ap, "ranked": 30, **rank_metrics(rank[::2], ("mrr",))}
    assert found["new_node"] == {"n": 0, "ap": None, "ranked": 0, "mrr": None}
    order = torch.randperm(2 * count, generator=rng)  # the order of the pairs does not matter
    shuffled = replace(evaluation_set, pairs=pairs.select(order), event_index=number[order])
    again = Scored(Queries(shuffled), score[order], rank=rank, stream=stream)
    assert again.row(("ap", "mrr", "by_type"))["by_type"] == found
    some = torch.tensor([3, 8, 40])  # of which the second and third have the first type
    scored = replace(scored, queries=Queries(evaluation_set, ranked=some), rank=rank[some])
    found = scored.row(("mrr", "by_type"))["by_type"]
    assert found["repeated_pair"] == {"ranked": 2, **rank_metrics(rank[some[1:]], ("mrr",))}
    assert found["new_pair"] == {"ranked": 1, "mrr": 0.25}
