"""Decayed sums of values: by kernel and by reference, against the definition itself."""

import math

import pytest
import torch
from hypothesis import given, settings

from dygmamba.core.errors import ConfigError
from dygmamba.ops.decayed_sums import build_decayed_sums, find_last_entry, sum_before
from dygmamba.ops.dispatch import use_reference
from raising import raises
from strategies import event_streams

SCALES = torch.tensor([0.5, 30.0], dtype=torch.float64)


def values(store):
    return torch.sin(torch.arange(2 * len(store), dtype=torch.float64)).view(-1, 2)


@pytest.mark.parametrize("by_definition", [False, True], ids=["kernel", "reference"])
@settings(max_examples=12, deadline=None)
@given(store=event_streams(max_events=25, max_nodes=4))
def test_sums_equal_the_definition(by_definition, store):
    """For all streams and queries (v, t): the sum of x exp(-age / scale) over events of v strictly before t.

    The latest value is the mean at the last instant, so it does not depend on the order of simultaneous events.
    """
    x, group = values(store), torch.arange(store.num_nodes).repeat_interleave(len(store) + 1)
    time = torch.cat([store.time, store.time[-1:] + 1 if len(store) else torch.zeros(1).double()])
    time = time.repeat(store.num_nodes)
    if by_definition:
        with use_reference():
            sums = build_decayed_sums(store.src, store.time, x, store.num_nodes, SCALES)
            entry, found = find_last_entry(sums, group, time), sum_before(sums, group, time)
    else:
        sums = build_decayed_sums(store.src, store.time, x, store.num_nodes, SCALES)
        entry, found = find_last_entry(sums, group, time), sum_before(sums, group, time)
    events = list(zip(store.src.tolist(), store.time.tolist(), x.tolist(), strict=True))
    for row, (node, now) in enumerate(zip(group.tolist(), time.tolist(), strict=True)):
        past = [(t, value) for own, t, value in events if own == node and t < now]
        expected = [
            [sum(value[c] * math.exp(-(now - t) / scale) for t, value in past) for c in range(2)]
            for scale in SCALES.tolist()
        ]
        assert found[row].tolist() == [pytest.approx(part, abs=1e-12) for part in expected]
        assert (entry[row] < 0) == (not past)
        if past:
            last = [value for t, value in past if t == past[-1][0]]
            mean = [sum(value[c] for value in last) / len(last) for c in range(2)]
            assert sums.latest[entry[row]].tolist() == pytest.approx(mean, abs=1e-12)


def test_a_scale_must_be_positive():
    empty = torch.zeros(0, dtype=torch.int64)
    with raises("bad-time-scale", ConfigError):
        build_decayed_sums(empty, empty.double(), torch.zeros(0, 1).double(), 1, -SCALES)
