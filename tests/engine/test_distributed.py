"""Distributed training: several processes share every step and have the same state as one."""

from dataclasses import replace

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError, Interrupted
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.distributed import SINGLE_PROCESS, ProcessGroup
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts, Scorer
from dygmamba.tasks.link import LinkTask
from raising import raises
from ranks_cases import act
from streams import split_stream

QUICK = GeneratorConfig(nodes=30, events=330, communities=3)
VARIANTS = {  # in parts by length; in one pass; with a memory; with two hops that are drawn
    "dyg-mamba": {"length": 40, "width": 4, "blocks": 1, "time_dim": 4, "out": 4},
    "graphmixer": {"neighbors": 4},
    "tgn": {"out": 8, "time_dim": 4, "neighbors": 3},
    "dyrep": {"out": 8, "time_dim": 4, "neighbors": 3},
    "tgat": {"neighbors": 3, "time_dim": 4},
}


@pytest.fixture(scope="module")
def stream():
    """Small times, because a time encoding multiplies rounding errors of its weights by the time."""
    store = generate_stream(QUICK)
    return split_stream(replace(store, time=(store.time - store.time[0]) / 1000))


def fit_of(stream, model, ranks, folder, **loop):
    spec, against = MODELS[model], loop.pop("against", "random")
    torch.manual_seed(0)
    config = build_config(
        spec.config, VARIANTS[model.removesuffix("-counts")] | {"dropout": 0.0} | loop.pop("settings", {})
    )
    scorer = spec.build(config, DatasetFacts.of(stream.store, stream.split.train))
    own = replace(stream, processes=ranks)
    how = FitConfig(**{"batch": 50, "epochs": 1, "lr": 1e-3} | loop)
    task = LinkTask.create(own.store, own.split, own.device, against)
    return Trainer(task, scorer, own, how, RunDirectory(folder, ranks.is_first), 0)


@pytest.mark.parametrize(
    ("model", "against"), [*((model, "random") for model in VARIANTS), ("dyg-mamba", "mixed")]
)
def test_several_processes_train_as_one(model, against, stream, tmp_path, monkeypatch):
    """For batches that the number of processes does not divide: losses, weights and scores agree to rounding.

    The scores of given weights are one rank's to the last bit, and what the ranks have is the same to the last bit.
    """
    monkeypatch.setattr("dygmamba.engine.executor.choose_shares", lambda *_: (5, 15))

    def trained(ranks):
        fit = fit_of(stream, model, ranks, tmp_path / f"{ranks.size}", against=against)
        fit.train_epoch()
        return fit.state.losses, fit.scorer.state_dict(), fit.score(fit.task.validation)

    losses, weights, scores = trained(SINGLE_PROCESS)
    found = act(3, trained)
    for other in found:
        assert other[0] == found[0][0]
        assert all(torch.equal(value, found[0][1][name]) for name, value in other[1].items())
        assert torch.equal(other[2], found[0][2])
    torch.testing.assert_close(torch.tensor(found[0][0]), torch.tensor(losses), rtol=0, atol=2e-6)
    for name, value in weights.items():
        torch.testing.assert_close(found[0][1][name], value, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[0][2], scores, rtol=0, atol=1e-4)

    def examined(ranks):
        fit = fit_of(stream, model, ranks, tmp_path / "asked")
        fit.scorer.load_state_dict(weights)
        return fit.score(fit.task.validation)

    assert all(torch.equal(other, examined(SINGLE_PROCESS)) for other in act(2, examined))


def test_random_order_and_fitted_inputs_are_the_same_in_every_process(stream, tmp_path):
    """Each process has the order of the batches and the statistics of a single one to the last bit."""

    def trained(ranks):
        settings = {"length": 6, "pair_features": ("history",), "table_dropout": 0.0, "relation_dropout": 0.0}
        fit = fit_of(stream, "dyg-mamba-counts", ranks, tmp_path, order="random", settings=settings)
        fit.train_epoch()
        state = fit.scorer.state_dict()
        statistics = {name: value for name, value in state.items() if ".standardise." in name}
        return [fit.epoch(number).events for number in range(2)], statistics, fit.state.losses, state

    orders, statistics, losses, _ = trained(SINGLE_PROCESS)
    assert len(statistics) == 3
    found = act(2, trained)
    for own in found:
        assert all(torch.equal(*pair) for pair in zip(own[0], orders, strict=True))
        assert all(torch.equal(own[1][name], value) for name, value in statistics.items())
        assert all(torch.equal(own[3][name], value) for name, value in found[0][3].items())
        torch.testing.assert_close(torch.tensor(own[2]), torch.tensor(losses), rtol=0, atol=1e-5)


def test_a_memory_with_dropout_is_the_same_in_every_process(stream, tmp_path):
    """Dropout masks differ between processes in scoring and are equal in memory updates (DyRep)."""

    def trained(ranks):
        fit = fit_of(stream, "dyrep", ranks, tmp_path, settings={"dropout": 0.5})
        fit.train_epoch()
        return fit.scorer.state_dict()

    first, second = act(2, trained)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_stop_in_one_process_stops_all_and_the_first_saves(stream, tmp_path):
    """All end after the same step, the checkpoint is of that step, and a single process resumes it."""

    def stopped(ranks):
        fit = fit_of(stream, "dyg-mamba", ranks, tmp_path)
        with pytest.raises(Interrupted):
            fit(stop=lambda: ranks.rank == 1)
        return fit.state.step

    assert act(2, stopped) == [1, 1]
    (tmp_path / "whole").mkdir()
    rest, whole = (fit_of(stream, "dyg-mamba", SINGLE_PROCESS, tmp_path / part) for part in ("", "whole"))
    rest.resume()
    assert rest.state.step == 1
    for fit in (rest, whole):
        fit()
    (there,), (here,) = rest.run.metrics(), whole.run.metrics()
    assert there["val_ap"] == pytest.approx(here["val_ap"], abs=1e-6)
    assert there["loss"] == pytest.approx(here["loss"], abs=1e-6)


def test_shares_cover_everything_without_overlap():
    """For all counts and sizes: shares are consecutive and differ by at most one."""
    for size in range(1, 6):
        for count in range(13):
            shares = [ProcessGroup(rank, size).share(count) for rank in range(size)]
            assert [0, *(after for _, after in shares)] == [*(first for first, _ in shares), count]
            assert len({after - first for first, after in shares} | {count // size}) <= 2


def test_training_that_cannot_be_shared_is_an_error():
    """Models that learn in rounds, and batches with fewer events than processes; a single process shares nothing."""
    spec = MODELS["trees"]
    trees = spec.build(spec.config(), DatasetFacts(3, 0, 0))
    with raises("not-distributable", ConfigError):
        act(2, lambda ranks: check_distributable(trees, ranks, 200))
    with raises("batch-too-small", ConfigError):
        act(2, lambda ranks: check_distributable(Scorer(), ranks, 1))
    check_distributable(trees, SINGLE_PROCESS, 1)
    act(1, lambda ranks: check_distributable(trees, ranks, 200))  # a launcher may start a single process
