"""Decayed sums of values by key, against the definition itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from dygmamba.core.errors import ConfigError
from dygmamba.history.block_lists import SumLists
from dygmamba.ops.key_slots import KeySlots
from raising import raises
from strategies import event_streams

SCALES = np.array([0.5, 30.0])
STEP = 2**40  # between keys, so that they are no numbers of groups


@pytest.mark.parametrize("step", [1, STEP], ids=["number", "key"])
@settings(max_examples=12, deadline=None)
@given(store=event_streams(max_events=25, max_nodes=4))
def test_sums_equal_the_definition(step, store):
    """For all streams and queries (v, t): the sum of x exp(-age / scale) over events of v strictly before t.

    The latest value is the mean at the last instant, so it does not depend on the order of simultaneous events.
    """
    x = np.sin(np.arange(2.0 * len(store))).reshape(-1, 2)
    x = np.column_stack([x, np.full(len(x), 0.1)])
    lists = SumLists(3, SCALES, KeySlots() if step > 1 else None)
    lists.append(store.src.numpy() * step, store.time.numpy(), x)
    group = np.arange(store.num_nodes).repeat(len(store) + 1)
    time = np.tile([*store.time.tolist(), float(store.time[-1]) + 1 if len(store) else 0.0], store.num_nodes)
    running, decay, latest, same = lists.look_up(group * step, time)
    found = running * decay[..., None]
    events = list(zip(store.src.tolist(), store.time.tolist(), x.tolist(), strict=True))
    for row, (node, now) in enumerate(zip(group.tolist(), time.tolist(), strict=True)):
        past = [(t, value) for own, t, value in events if own == node and t < now]
        expected = [
            [sum(value[c] * math.exp(-(now - t) / scale) for t, value in past) for c in range(3)]
            for scale in SCALES.tolist()
        ]
        assert found[row].tolist() == [pytest.approx(part, abs=1e-12) for part in expected]
        last = [value for t, value in past if t == past[-1][0]]
        mean = [sum(value[c] for value in last) / max(len(last), 1) for c in range(3)]
        assert same[row].tolist() == [len({value[c] for _, value in past}) == 1 for c in range(3)]
        assert latest[row].tolist() == pytest.approx(mean, abs=1e-12)


def test_a_scale_must_be_positive():
    with raises("bad-time-scale", ConfigError):
        SumLists(1, -SCALES)
