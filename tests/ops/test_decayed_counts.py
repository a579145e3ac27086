"""Exact fading counts: by kernel and by definition, against the sum itself."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.ops.decayed_counts import (
    add_groups,
    append_events,
    build_decayed_counts,
    count_before,
    last_time,
)
from dygmamba.ops.dispatch import use_reference
from raising import raises
from strategies import event_streams

SCALES = torch.tensor([0.25, 1.0, 30.0, 1e6], dtype=torch.float64)
ways = pytest.mark.parametrize("by_definition", [False, True], ids=["kernel", "reference"])


def built(store, cut=None):
    """Lists of the sources' events."""
    return build_decayed_counts(store.src[:cut], store.time[:cut], store.num_nodes, SCALES)


def questions(store, shifts=(0.0, 0.25, -0.25, 100.0)):
    """Every node at the stream's times and between them."""
    times = torch.unique(torch.cat([store.time + shift for shift in shifts] + [torch.zeros(1).double()]))
    node, time = torch.cartesian_prod(torch.arange(store.num_nodes).double(), times).T
    return node.long(), time.contiguous()


def brute(store, node, time):
    """The sum over a node's events strictly before a time, one event after another."""
    return torch.tensor(
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
        ],
        dtype=torch.float64,
    ).view(len(node), len(SCALES))


@ways
@given(store=event_streams(max_events=25, max_nodes=4))
def test_a_count_is_the_sum_over_strictly_earlier_events(by_definition, store):
    """For all streams, nodes, times (of events too) and scales: the sum, and so nothing of the same instant."""
    node, time = questions(store)
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        found = count_before(built(store), node, time)
    torch.testing.assert_close(found, brute(store, node, time), rtol=1e-12, atol=1e-14)


@given(store=event_streams(), cut=st.integers(0, 60))
def test_later_events_change_no_bit(store, cut):
    """For all streams and cuts: questions up to the first dropped event's time have the same bits without the rest."""
    node, time = questions(store)
    cut = min(cut, len(store))
    asked = time <= (store.time[cut] if cut < len(store) else torch.inf)
    node, time = node[asked], time[asked]
    assert torch.equal(count_before(built(store), node, time), count_before(built(store, cut), node, time))


@given(store=event_streams(), steps=st.lists(st.integers(0, 60), max_size=6))
def test_appending_is_building_anew(store, steps):
    """For all ways of cutting a stream into calls: the lists of the whole, bit for bit, whatever blocks have moved."""
    cuts = sorted({0, *(min(step, len(store)) for step in steps), len(store)})
    lists = build_decayed_counts(store.src[:0], store.time[:0], 1, SCALES)
    for low, high in pairwise(cuts):
        lists = append_events(add_groups(lists, store.num_nodes), store.src[low:high], store.time[low:high])
    node, time = questions(store)
    lists = add_groups(lists, store.num_nodes)
    assert torch.equal(count_before(lists, node, time), count_before(built(store), node, time))
    assert torch.equal(
        last_time(lists, torch.arange(store.num_nodes)),
        last_time(built(store), torch.arange(store.num_nodes)),
    )


@given(store=event_streams(), shift=st.sampled_from([-(2.0**33), -64.0, 64.0, 2.0**31]))
def test_the_origin_of_time_is_free(store, shift):
    """For all streams with exact times and all shifts: the same bits."""
    node, time = questions(store)
    moved = build_decayed_counts(store.src, store.time + shift, store.num_nodes, SCALES)
    assert torch.equal(count_before(moved, node, time + shift), count_before(built(store), node, time))


@given(store=event_streams(), power=st.integers(-40, 40))
def test_the_unit_of_time_is_free(store, power):
    """For all powers of two by which times and scales are stretched, microseconds to centuries: the same bits."""
    unit = 2.0**power
    node, time = questions(store)
    moved = build_decayed_counts(store.src, store.time * unit, store.num_nodes, SCALES * unit)
    assert torch.equal(count_before(moved, node, time * unit), count_before(built(store), node, time))


@ways
def test_no_span_overflows(by_definition):
    """Scales from a microsecond to a thousand years, spans from 0 to the age of the universe: finite."""
    scale = torch.tensor([1e-6, 1.0, 3e10], dtype=torch.float64)
    time = torch.tensor([-4e17, 0.0, 1e-6, 1.0, 3e9, 4e17], dtype=torch.float64)
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        found = count_before(
            build_decayed_counts(torch.zeros(6).long(), time, 1, scale), torch.zeros(6).long(), time
        )
    assert bool(torch.isfinite(found).all())
    assert bool(((found >= 0) & (found <= torch.arange(6)[:, None])).all())


@ways
@given(store=event_streams())
def test_a_group_of_minus_one_has_no_past(by_definition, store):
    """For all streams and times: nothing has happened to nobody."""
    with use_reference() if by_definition else pytest.MonkeyPatch.context():
        found = count_before(built(store), torch.full((3,), -1), torch.tensor([0.0, 1e9, 2e9]).double())
    assert not bool(found.any())


def test_invalid_scales_events_and_groups_are_errors():
    """A scale that is not positive and finite, an event out of order, a group out of range."""
    time, nobody = torch.tensor([1.0, 2.0]).double(), torch.zeros(2).long()
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with raises("bad-time-scale", ConfigError):
            build_decayed_counts(nobody, time, 1, torch.tensor([wrong]).double())
    for early in (time - 1, time.flip(0) + 5):
        with raises("unsorted-events", EventError):
            append_events(build_decayed_counts(nobody, time, 1, SCALES), nobody, early)
    with raises("group-out-of-range", EventError):
        append_events(build_decayed_counts(nobody, time, 1, SCALES), nobody + 1, time + 2)
