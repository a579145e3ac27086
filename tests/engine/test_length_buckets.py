"""Length buckets: every pair is in one bucket, and a step computes the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.config import build_config
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine import executor as engine
from dygmamba.engine.executor.eager import BatchExecutor, BucketedExecutor
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import (
    DEVICE_COSTS,
    SHARE_CHOICES,
    SINGLE_BUCKET,
    choose_shares,
    plan_buckets,
    round_length,
)
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.link import LinkTask

SETTINGS = {"length": 40, "width": 4, "states": 4, "out": 8, "time_dim": 6, "dropout": 0.0}


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


def fit_of(model, stream, folder):
    torch.manual_seed(0)
    spec = MODELS[model]
    settings = SETTINGS if model == "dyg-mamba" else {k: v for k, v in SETTINGS.items() if k != "states"}
    facts = DatasetFacts.of(stream.store, stream.split.train)
    scorer = spec.build(build_config(spec.config, settings), facts)
    task = LinkTask.create(stream.store, stream.split, stream.device)
    return Trainer(task, scorer, stream, FitConfig(batch=20), RunDirectory(folder), seed=0)


@pytest.mark.parametrize("model", ["dyg-mamba", "dygformer"])
def test_a_step_in_buckets_equals_the_step(model, stream, tmp_path, monkeypatch):
    """Losses and weights after steps in one, two and five buckets agree to rounding."""
    results = []
    for shares in (SINGLE_BUCKET, SHARE_CHOICES[1], SHARE_CHOICES[3]):
        monkeypatch.setattr(engine, "choose_shares", lambda lengths, most, costs, shares=shares: shares)
        fit = fit_of(model, stream, tmp_path)
        assert type(fit.executor) is (BatchExecutor if shares == SINGLE_BUCKET else BucketedExecutor)
        epoch, last = fit.epoch(0), fit.steps_per_epoch - 1  # shorter than a batch
        losses = torch.stack([fit.executor.step(fit.batch(epoch, number)) for number in (0, 10, last)])
        results.append((losses, fit.scorer.state_dict()))
    (loss, weights), *others = results
    for other_loss, other_weights in others:
        torch.testing.assert_close(other_loss, loss, rtol=1e-5, atol=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(other_weights[name], weight, rtol=1e-3, atol=2e-5, msg=name)
