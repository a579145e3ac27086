"""Exact decayed counts by key, against the sum itself."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError
from dygmamba.history.block_lists import CountLists
from dygmamba.ops.key_slots import KeySlots
from raising import raises
from strategies import event_streams

SCALES = np.array([0.25, 1.0, 30.0, 1e6])
STEP = 2**40  # between keys, so that they are no numbers of groups
by_key = pytest.mark.parametrize("step", [1, STEP], ids=["number", "key"])


def built(store, cut=None, step=1, shift=0.0, unit=1.0):
    """Lists of the sources' events."""
    lists = CountLists(SCALES * unit, KeySlots() if step > 1 else None)
    lists.append(store.src[:cut].numpy() * step, (store.time[:cut].numpy() + shift) * unit)
    return lists


def questions(store, shifts=(0.0, 0.25, -0.25, 100.0)):
    """Every node at the stream's times and between them."""
    times = torch.unique(torch.cat([store.time + shift for shift in shifts] + [torch.zeros(1).double()]))
    node, time = torch.cartesian_prod(torch.arange(store.num_nodes).double(), times).T
    return node.long().numpy(), time.contiguous().numpy()


def brute(store, node, time):
    """The sum over a node's events strictly before a time, one event after another."""
    return np.array(
        [
            [
                sum(
                    math.exp(-(at - t) / scale)
                    for v, t in zip(store.src.tolist(), store.time.tolist(), strict=True)
                    if v == of and t < at
                )
                for scale in SCALES.tolist()
            ]
            for of, at in zip(node.tolist(), time.tolist(), strict=True)
        ]
    ).reshape(len(node), len(SCALES))


@by_key
@given(store=event_streams(max_events=25, max_nodes=4))
def test_a_count_is_the_sum_over_strictly_earlier_events(step, store):
    """For all streams, nodes, times (of events too) and scales: the sum, and so nothing of the same instant."""
    node, time = questions(store)
    lists = built(store, step=step)
    expected = brute(store, node, time)
    np.testing.assert_allclose(lists.count_before(node * step, time), expected, rtol=1e-12, atol=1e-14)
    own, now = store.src.numpy(), store.time.numpy()
    past = [now[(own == of) & (now < at)] for of, at in zip(node, time, strict=True)]
    number, age = lists.find_number_and_age(node * step, time)
    assert number.tolist() == [len(part) for part in past]
    assert age.tolist() == [at - part[-1] if len(part) else -1 for at, part in zip(time, past, strict=True)]


@by_key
@given(store=event_streams(max_events=25, max_nodes=4))
def test_sums_over_several_keys_are_those_of_their_counts(step, store):
    """For all streams: weighted sums, largest counts and mean logarithms; unknown keys and padding count nothing."""
    lists, nodes = built(store, step=step), store.num_nodes
    time = np.repeat(float(store.time[-1]) + 0.5 if len(store) else 1.0, nodes)
    time -= np.arange(nodes) // 2  # two queries of each instant
    node = np.column_stack([np.full(nodes, -1), np.arange(nodes), np.roll(np.arange(nodes), 1)])
    row, age = np.arange(nodes) % 2, np.array([[0.0, 1.5, 3.0], [0.5, 0.0, 9.0]])
    count = np.where(
        node[..., None] >= 0, brute(store, node.ravel(), time.repeat(3)).reshape(nodes, 3, -1), 0
    )
    key = np.where(node >= 0, node * step, -1)
    found = lists.sum_meetings(key, row, age, time)
    expected = (count * np.exp(-age[row][..., None] / SCALES)).sum(1), count.max(1)
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-12, atol=1e-14)
    is_known = lists.find(key) >= 0
    expected = np.log1p(count).sum(1) / np.maximum(is_known.sum(1), 1)[:, None]
    np.testing.assert_allclose(lists.mean_activity(key, time), expected, rtol=1e-12, atol=1e-14)


@by_key
@given(store=event_streams(), steps=st.lists(st.integers(0, 60), max_size=6), is_growing=st.booleans())
def test_appending_is_building_anew(step, store, steps, is_growing):
    """For all ways of cutting a stream into calls, and dropped again: the bits of the whole, whatever has moved."""
    cuts = sorted({0, *(min(step, len(store)) for step in steps), len(store)})
    lists = CountLists(SCALES, KeySlots() if step > 1 else None, is_growing)
    key, when = store.src.numpy() * step, store.time.numpy()
    for low, high in pairwise(cuts):
        lists.append(key[low:high], when[low:high])
        lists.drop(key[low:high])
        lists.append(key[low:high], when[low:high])
    node, time = questions(store)
    both = (own.count_before(node * step, time) for own in (lists, built(store, step=step)))
    assert np.array_equal(*both)


def test_lists_that_are_built_whole_have_no_spare_room():
    """Growing ones do, so that the first appended event copies nothing."""
    key, time = np.arange(200) % 3, np.arange(200.0)
    for is_growing in (False, True):
        lists = CountLists(SCALES, None, is_growing)
        lists.append(key, time)
        before = lists.running
        assert (len(lists.time) == len(time)) == (not is_growing)
        lists.append(key[:1], time[-1:])
        assert (lists.running is before) == is_growing


@given(store=event_streams(), power=st.integers(-40, 40))
def test_the_unit_of_time_is_free(store, power):
    """For all powers of two by which times and scales are stretched, microseconds to centuries: the same bits."""
    unit, (node, time) = 2.0**power, questions(store)
    moved = built(store, unit=unit).count_before(node, time * unit)
    assert np.array_equal(moved, built(store).count_before(node, time))


def test_no_span_overflows():
    """Scales from a microsecond to a thousand years, spans from 0 to the age of the universe: finite."""
    time = np.array([-4e17, 0.0, 1e-6, 1.0, 3e9, 4e17])
    lists = CountLists(np.array([1e-6, 1.0, 3e10]))
    lists.append(np.zeros(6, np.int64), time)
    found = lists.count_before(np.zeros(6, np.int64), time)
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= np.arange(6)[:, None])).all()


@by_key
@given(store=event_streams())
def test_an_unknown_key_has_no_past(step, store):
    """For all streams and times: nothing has happened to nobody."""
    unknown = np.array([-1, -(2**40), (store.num_nodes + 7) * step])
    assert not built(store, step=step).count_before(unknown, np.array([0.0, 1e9, 2e9])).any()


def test_a_time_scale_must_be_positive_and_finite():
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with raises("bad-time-scale", ConfigError):
            CountLists(np.array([wrong]))
