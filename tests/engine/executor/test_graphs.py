"""Replayed graphs compute what eager steps compute; these tests need a GPU."""

from dataclasses import replace

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.core.process_settings import join_process_group, leave_process_group
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine import executor as engine
from dygmamba.engine.distributed import DistributedGroup
from dygmamba.engine.executor.graphs import (
    GraphedBatchExecutor,
    GraphedBucketedExecutor,
    GraphedSplitExecutor,
)
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.length_buckets import SHARE_CHOICES, SINGLE_BUCKET
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.link import LinkTask
from purchases import generate_purchases
from ranks_cases import act

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = {"out": 8, "time_dim": 6, "dropout": 0.0}
SMALL = SIZES | {"length": 40, "width": 4, "states": 4}
SETTINGS = {
    "dyg-mamba": SMALL,
    "dygformer": SIZES | {"length": 40, "width": 4},
    "tgn": SIZES | {"neighbors": 4},
    "jodie": SIZES,
    "dyrep": SIZES | {"neighbors": 4},
    "cawn": SIZES | {"walks": 6, "heads": 2},
    "tgat": SIZES | {"neighbors": 3, "sampling": "uniform"},
    "freedyg": SIZES | {"length": 8, "filter_dropout": 0.0},
}


@pytest.fixture(scope="module")
def stream():
    """A small stream with busy and idle nodes and ties across batches, on the GPU."""
    store = generate_stream(GeneratorConfig(nodes=40, events=900, seed=3))
    store = replace(store, time=(store.time / 3e3).floor())
    return Stream(store, chronological_split(store), torch.device("cuda"))


def fit_of(model, stream, folder, against="random", more=None, **loop):
    torch.manual_seed(0)
    spec = MODELS[model]
    facts = DatasetFacts.of(stream.store, stream.split.train)
    scorer = spec.build(build_config(spec.config, SETTINGS.get(model, SMALL) | (more or {})), facts).cuda()
    task = LinkTask.create(stream.store, stream.split, stream.device, against)
    config = FitConfig(batch=20, precision="float32", save_every=1e9, **loop)
    return Trainer(task, scorer, stream, config, RunDirectory(folder), seed=0)


@pytest.mark.parametrize(
    ("model", "against"),
    [*((model, "random") for model in SETTINGS), ("dyg-mamba", "mixed"), ("tgn", "mixed")],
)
@pytest.mark.parametrize("shares", [SINGLE_BUCKET, SHARE_CHOICES[3]])
@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_an_epoch_of_replays_equals_the_eager_epoch(
    model, against, shares, visible, stream, tmp_path, monkeypatch
):
    """Losses, weights and memory after an epoch of replayed graphs equal those of eager steps."""
    monkeypatch.setattr(engine, "choose_shares", lambda lengths, most, costs: shares)
    results = []
    for graphs in (False, True):
        fit = fit_of(model, stream, tmp_path, against, graphs=graphs, visible=visible)
        assert isinstance(fit.executor, GraphedBatchExecutor | GraphedBucketedExecutor) is graphs
        fit.train_epoch()
        results.append((torch.tensor(fit.state.losses), fit.scorer.state_dict()))
    (loss, weights), (replayed, others) = results
    torch.testing.assert_close(replayed, loss, rtol=1e-3, atol=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.parametrize("shares", [SINGLE_BUCKET, SHARE_CHOICES[3]])
def test_a_step_with_look_ups_on_the_host_is_not_captured(shares, tmp_path, monkeypatch):
    """A network that reads columns of queries trains step by step on a GPU, whatever `graphs` says."""
    monkeypatch.setattr(engine, "choose_shares", lambda lengths, most, costs: shares)
    store = generate_purchases(customers=20, shops=40, events=600, categories=4).store
    stream, losses = Stream(store, chronological_split(store), torch.device("cuda")), []
    for graphs in (False, True):
        fit = fit_of("dyg-mamba-counts", stream, tmp_path, more={"query_columns": True}, graphs=graphs)
        assert not isinstance(fit.executor, GraphedBatchExecutor | GraphedBucketedExecutor)
        fit.train_epoch()
        losses.append(torch.tensor(fit.state.losses))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype
@pytest.mark.parametrize("against", ["random", "mixed"])
def test_no_step_waits_for_the_device(against, stream, tmp_path):
    """After the first epoch, an epoch of replays does not synchronize until its losses are read."""
    fit = fit_of("tgn", stream, tmp_path, against)
    fit.train_epoch()
    epoch = fit.epoch(1)
    fit.executor.step(fit.batch(epoch, 0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, len(stream.train) // 20):
            fit.executor.step(fit.batch(epoch, number))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("model", ["dyg-mamba", "tgn", "tgat"])
@pytest.mark.parametrize("shares", [SINGLE_BUCKET, SHARE_CHOICES[3]])
def test_processes_that_replay_their_shares_train_as_one(model, shares, stream, tmp_path, monkeypatch):
    """Two processes that replay their shares with an all-reduce in between equal one process."""
    monkeypatch.setattr(engine, "choose_shares", lambda lengths, most, costs: shares)

    def trained(ranks):
        fit = fit_of(model, replace(stream, processes=ranks), tmp_path)
        assert (
            isinstance(fit.executor, GraphedSplitExecutor | GraphedBucketedExecutor)
            or not ranks.is_distributed
        )
        fit.train_epoch()
        return torch.tensor(fit.state.losses), fit.scorer.state_dict()

    (loss, weights), (first, second) = trained(stream.processes), act(2, trained)
    torch.testing.assert_close(first[0], loss, rtol=1e-3, atol=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(first[1][name], weight, rtol=1e-2, atol=1e-3, msg=name)
        assert torch.equal(first[1][name], second[1][name]), name


def test_a_group_of_one_reduces_over_nccl_between_its_graphs(stream, tmp_path, monkeypatch):
    """A group of one GPU makes every collective call, and nothing changes."""
    fit = fit_of("dyg-mamba", stream, tmp_path)
    fit.train_epoch()
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29431}.items():
        monkeypatch.setenv(name, str(value))
    assert join_process_group("cuda")
    try:
        grouped = fit_of("dyg-mamba", replace(stream, processes=DistributedGroup(0, 1)), tmp_path)
        grouped.train_epoch()
        scores = grouped.score(grouped.task.validation)
    finally:
        leave_process_group()
    torch.testing.assert_close(
        torch.tensor(grouped.state.losses), torch.tensor(fit.state.losses), rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(scores, fit.score(fit.task.validation), rtol=1e-2, atol=1e-3)
