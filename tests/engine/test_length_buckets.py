"""Length buckets: every pair is in one bucket; executor/test_gradients.py compares a step in buckets with the step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.length_buckets import (
    DEVICE_COSTS,
    SHARE_CHOICES,
    SINGLE_BUCKET,
    choose_shares,
    plan_buckets,
    round_length,
)
from dygmamba.engine.stream import Stream


@given(length=st.integers(0, 5000), most=st.integers(1, 5000))
def test_rounding_covers_and_wastes_at_most_a_quarter(length, most):
    """For all lengths: rounded up to few values, above 64 by less than a quarter."""
    length = min(length, most)
    cut = round_length(length, most)
    assert length <= cut <= max(most, 16)
    assert cut <= max(16, 1.25 * length + 4)
    assert len({round_length(n, 4096) for n in range(4097)}) < 40


@given(
    lengths=st.lists(st.lists(st.integers(0, 300), min_size=12, max_size=12), min_size=1, max_size=4),
    cut=st.sampled_from([*SHARE_CHOICES, (1, 2, 4), (100, 1)]),
)
def test_every_pair_is_in_one_bucket_that_is_long_enough(lengths, cut):
    """For all batches: buckets are a permutation of the pairs, and none is looked up too short."""
    given_lengths = torch.tensor(lengths)
    epoch = plan_buckets(given_lengths, cut, 300)
    for row, order, cuts in zip(given_lengths, epoch.order, epoch.lengths, strict=True):
        assert sorted(order.tolist()) == list(range(12))
        chosen = order.split(epoch.sizes)
        assert len(chosen) == len(cuts)
        assert all(int(row[pairs].max()) <= cut for pairs, cut in zip(chosen, cuts, strict=True))


def test_only_mixed_lengths_are_bucketed():
    """Buckets are used if they save more than they cost."""
    equal, mixed = torch.full((3, 400), 1000), torch.full((3, 400), 20)
    mixed[:, :40] = 1000
    gpu = DEVICE_COSTS["cuda"]
    assert choose_shares(equal, 1023, gpu) == SINGLE_BUCKET
    assert choose_shares(mixed, 1023, gpu) == (2, 4, 6, 8)
    assert choose_shares(mixed.clamp(max=31), 31, gpu) == SINGLE_BUCKET
    assert choose_shares(equal[:0], 1023, gpu) == SINGLE_BUCKET
    assert choose_shares(mixed[:, 20:60], 1023, gpu) == SINGLE_BUCKET, "40 pairs do not fill the device"


@pytest.fixture(scope="module")
def stream():
    """A small stream with busy and idle nodes."""
    store = generate_stream(GeneratorConfig(nodes=40, events=900, seed=3))
    return Stream(store, chronological_split(store), torch.device("cpu"))
