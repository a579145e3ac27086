"""Transitions between destinations, against the definition itself."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.column_facts import TypeColumn
from dygmamba.history.block_lists import EventRows
from dygmamba.history.transitions import MAX_LAGS, TransitionFeatures, TransitionTable
from raising import raises
from strategies import event_streams

LAGS, WINDOW = 3, 5
SCALES = (0.5, 30.0)
REQUEST = TransitionFeatures(SCALES, LAGS, WINDOW, TypeColumn(0, "kind", (2, 0), ("view", "buy")))


def codes(store):
    """Types of the events, of which two are told apart; one is unknown."""
    return np.random.default_rng(0).integers(-1, 4, (len(store), 1), np.int32)


def rows(store, low=0, high=None):
    """Some events of a stream."""
    columns = (store.src[low:high], store.dst[low:high], store.time[low:high])
    return EventRows(*(column.numpy() for column in columns), store.num_nodes, low, codes=codes(store))


def built(store, cut=None):
    table = TransitionTable(REQUEST)
    table.append_rows(rows(store, 0, cut))
    return table


def questions(store, shifts=(0.0, 0.25, 100.0)):
    """Every pair of nodes at the stream's times and between them."""
    times = torch.unique(torch.cat([store.time + shift for shift in shifts] + [torch.zeros(1).double()]))
    nodes = torch.arange(store.num_nodes).double()
    src, dst, time = torch.cartesian_prod(nodes, nodes, times).T
    return src.long().numpy(), dst.long().numpy(), time.contiguous().numpy()


def answers(table, src, dst, time):
    """Everything that a table tells about these queries."""
    items = table.sources.last_items(src, time)
    window = table.sources.last_destinations(src, time)
    origin = window[:, :LAGS]
    return [
        window,
        items,
        table.counts(origin, dst, time),
        table.totals(origin, time),
        table.covisits(origin, dst, time),
        table.sources.last_ages(src, time, 4),
        table.events_since_met(src, dst, time),
        *table.associations.count(window, dst, time),
        *table.typed.count_followers(items, dst, time),
    ]


def equal(first, second):
    return all(map(np.array_equal, first, second))


@settings(deadline=None)
@given(store=event_streams(), seed=st.integers(0, 9))
def test_the_order_of_simultaneous_events_is_irrelevant(store, seed):
    """For all orders of the events of each instant: the same bits."""
    shuffled = torch.randperm(len(store), generator=torch.Generator().manual_seed(seed))
    order = shuffled[torch.argsort(store.time[shuffled], stable=True)]
    other = TransitionTable(REQUEST)
    ends = (store.src[order].numpy(), store.dst[order].numpy())
    other.append_rows(
        EventRows(*ends, store.time.numpy(), store.num_nodes, codes=codes(store)[order.numpy()])
    )
    asked = questions(store)
    assert equal(answers(built(store), *asked), answers(other, *asked))


@settings(max_examples=30, deadline=None)
@given(store=event_streams(), steps=st.lists(st.integers(0, 60), max_size=6), is_growing=st.booleans())
def test_appending_is_building_anew(store, steps, is_growing):
    """For all ways of cutting a stream into calls, within instants too: the bits of the whole; nodes may be new."""
    cuts = sorted({0, *(min(step, len(store)) for step in steps), len(store)})
    table = TransitionTable(REQUEST, is_growing)
    for low, high in pairwise(cuts):
        table.append_rows(rows(store, low, high))
    queries = questions(store)
    assert equal(answers(table, *queries), answers(built(store), *queries))


@settings(max_examples=30, deadline=None)
@given(store=event_streams(min_events=1), at=st.integers(0, 60))
def test_dropping_undoes_appending(store, at):
    """For all streams, from the first event of any instant on: the bits of the rest, then of the whole again."""
    first = int(torch.searchsorted(store.time, store.time[min(at, len(store) - 1)]))
    table = TransitionTable(REQUEST, is_growing=True)
    table.append_rows(rows(store))
    table.drop_rows(rows(store, first))
    queries = questions(store)
    assert equal(answers(table, *queries), answers(built(store, first), *queries))
    table.append_rows(rows(store, first))
    assert equal(answers(table, *queries), answers(built(store), *queries))


def test_a_query_without_a_past_has_no_transitions():
    """Node -1 and a source without events."""
    none = np.zeros(0, np.int64)
    for ends in (none, np.array([1])):
        table = TransitionTable(REQUEST)
        table.append_rows(
            EventRows(ends, ends, ends.astype(np.float64), 3, codes=np.zeros((len(ends), 1), np.int32))
        )
        found = answers(table, np.array([-1, 0]), np.array([1, 1]), np.array([9.0, 9.0]))
        expected = [[-1], [-1], [0], [0], [0], [-1], [-1], [0], [0], [len(ends)], [len(ends)], [0], [0]]
        assert [np.unique(part).tolist() for part in found] == expected


def test_lags_must_fit_into_a_key():
    for lags in (0, MAX_LAGS + 1):
        with raises("invalid-request", ConfigError):
            TransitionFeatures(SCALES, lags)
