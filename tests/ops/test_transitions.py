"""Transitions between destinations: by kernel and by reference, against the definition itself."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.transitions import MAX_LAGS, Transitions, last_ages, last_destinations
from raising import raises
from strategies import event_streams

LAGS = 3
SCALES = torch.tensor([0.5, 30.0], dtype=torch.float64)
ways = pytest.mark.parametrize("by_definition", [False, True], ids=["kernel", "reference"])


def built(store, cut=None):
    columns = (store.src[:cut], store.dst[:cut], store.time[:cut])
    return Transitions(*columns, store.num_nodes, LAGS, SCALES)


def questions(store, shifts=(0.0, 0.25, 100.0)):
    """Every pair of nodes at the stream's times and between them."""
    times = torch.unique(torch.cat([store.time + shift for shift in shifts] + [torch.zeros(1).double()]))
    nodes = torch.arange(store.num_nodes).double()
    src, dst, time = torch.cartesian_prod(nodes, nodes, times).T
    return src.long(), dst.long(), time.contiguous()


def answers(table, src, dst, time):
    """Everything that a table tells about these queries."""
    origin = last_destinations(table.histories, src, time)
    return [
        origin,
        table.counts(origin, dst, time),
        table.totals(origin, time),
        table.covisits(origin, dst, time),
        last_ages(table.histories, src, time, 4),
        table.events_since_met(src, dst, time),
    ]


def last_nodes(events, node, time):
    """The last destinations of a node strictly before a time, by sorting (time, destination)."""
    own = sorted(((t, b) for a, b, t in events if a == node and t < time), reverse=True)
    return [b for _, b in own[:LAGS]]


def brute(events, src, dst, time):
    """The same by the definition, one event after another."""
    moves = [
        (lag, w, v, t) for u, v, t in events for lag, w in enumerate(last_nodes(events, u, t)) if t < time
    ]

    def total(test):
        return [
            sum(math.exp(-(time - move[3]) / s) for move in moves if test(*move)) for s in SCALES.tolist()
        ]

    origin = last_nodes(events, src, time)
    origin += [-1] * (LAGS - len(origin))
    own = [t for a, _, t in events if a == src and t < time]
    met = [t for a, b, t in events if (a, b) == (src, dst) and t < time]
    ages = sorted(time - t for t in own)[:4]
    near = [total(lambda lag, a, b, t, w=w: (a, b) == (w, dst)) for w in origin if w >= 0] + [
        total(lambda lag, a, b, t, w=w: (a, b) == (dst, w)) for w in origin if w >= 0
    ]
    return [
        origin,
        [total(lambda lag, a, b, t, i=i, w=w: (lag, a, b) == (i, w, dst)) for i, w in enumerate(origin)],
        [total(lambda lag, a, b, t, i=i, w=w: (lag, a) == (i, w)) for i, w in enumerate(origin)],
        [sum(column) for column in zip(*near, strict=True)] if near else [0.0] * len(SCALES),
        ages + [-1.0] * (4 - len(ages)),
        sum(t > max(met) for t in own) if met else -1,
    ]


def listed(store):
    return list(zip(store.src.tolist(), store.dst.tolist(), store.time.tolist(), strict=True))


@ways
@settings(max_examples=25, deadline=None)
@given(store=event_streams(max_events=18, max_nodes=3))
def test_every_number_is_that_of_the_definition(by_definition, store):
    """For all streams, pairs and times, with ties and self-loops: the sum over strictly earlier transitions."""
    src, dst, time = questions(store, (0.0, 0.25))
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        found = answers(built(store), src, dst, time)
    asked = zip(src.tolist(), dst.tolist(), time.tolist(), strict=True)
    expected = zip(*(brute(listed(store), *query) for query in asked), strict=True)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, torch.tensor(other, dtype=own.dtype), rtol=1e-12, atol=1e-14)


@settings(deadline=None)
@given(store=event_streams(), seed=st.integers(0, 9))
def test_the_order_of_simultaneous_events_is_irrelevant(store, seed):
    """For all orders of the events of each instant: the same bits."""
    shuffled = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))
    order = shuffled[torch.argsort(store.time[shuffled], stable=True)]
    other = Transitions(store.src[order], store.dst[order], store.time, store.num_nodes, LAGS, SCALES)
    asked = questions(store)
    assert all(map(torch.equal, answers(built(store), *asked), answers(other, *asked)))


@settings(deadline=None)
@given(store=event_streams(min_events=1), cut=st.integers(0, 59))
def test_events_at_and_after_the_query_change_no_bit(store, cut):
    """For all cuts: queries up to the time of the first dropped event have the same bits without the rest."""
    cut = min(cut, len(store) - 1)
    src, dst, time = questions(store)
    asked = time <= store.time[cut]
    queries = (src[asked], dst[asked], time[asked])
    past = int(torch.searchsorted(store.time, store.time[cut]))
    assert all(map(torch.equal, answers(built(store), *queries), answers(built(store, past), *queries)))


@ways
@settings(max_examples=30, deadline=None)
@given(store=event_streams(), steps=st.lists(st.integers(0, 60), max_size=6))
def test_appending_is_building_anew(by_definition, store, steps):
    """For all ways of cutting a stream into calls, within instants too: the bits of the whole; nodes may be new."""
    cuts = sorted({0, *(min(step, len(store)) for step in steps), len(store)})
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        table = Transitions(store.src[:0], store.dst[:0], store.time[:0], 1, LAGS, SCALES)
        for low, high in pairwise(cuts):
            table.append(store.src[low:high], store.dst[low:high], store.time[low:high])
        if len(store):
            seen = 1 + int(torch.maximum(store.src, store.dst).max())
            src, dst, time = questions(store)
            known = (src < seen) & (dst < seen)
            queries = (src[known], dst[known], time[known])
            whole = answers(built(store), *queries)
            for own, other in zip(answers(table, *queries), whole, strict=True):
                torch.testing.assert_close(own, other, rtol=1e-12 * by_definition, atol=0)


def test_a_query_without_a_past_has_no_transitions():
    """Node -1 and a source without events."""
    none = torch.zeros(0, dtype=torch.int64)
    for store in (none, torch.tensor([1])):
        table = Transitions(store, store, store.double(), 3, LAGS, SCALES)
        found = answers(table, torch.tensor([-1, 0]), torch.tensor([1, 1]), torch.tensor([9.0, 9.0]).double())
        assert [part.unique().tolist() for part in found] == [[-1], [0], [0], [0], [-1], [-1]]


def test_lags_and_appended_events_are_checked():
    """A number of lags that does not fit into a key, an event that is earlier than another one."""
    node, time = torch.tensor([0, 1]), torch.tensor([1.0, 2.0]).double()
    for lags in (0, MAX_LAGS + 1):
        with raises("transitions-out-of-range", ConfigError):
            Transitions(node, node, time, 2, lags, SCALES)
    table = Transitions(node, node, time, 2, LAGS, SCALES)
    for early in (time - 1, time.flip(0) + 5):
        with raises("unsorted-events", EventError):
            table.append(node, node, early)
