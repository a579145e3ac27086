"""Replayed graphs compute what issued steps compute; these tests need a GPU."""

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.data.generate import GeneratorConfig, generate_stream
from dygmamba.data.splits import chronological_split
from dygmamba.engine import work as engine
from dygmamba.engine.buckets import CUTS
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.stepping import EagerSteps, GraphSteps
from dygmamba.engine.training import Reporter, Training
from dygmamba.engine.work import TrainConfig, TrainingData
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = {"out": 8, "time_dim": 6, "dropout": 0.0}
SETTINGS = {
    "dyg-mamba": SIZES | {"length": 40, "width": 4, "states": 4},
    "dygformer": SIZES | {"length": 40, "width": 4},
    "tgn": SIZES | {"neighbors": 4},
    "jodie": SIZES,
    "dyrep": SIZES | {"neighbors": 4},
    "cawn": SIZES | {"walks": 6, "heads": 2, "sampling": "recent"},
    "freedyg": SIZES | {"length": 8, "filter_dropout": 0.0},
}


@pytest.fixture(scope="module")
def data():
    """A small stream with busy and idle nodes, on the GPU."""
    store = generate_stream(GeneratorConfig(nodes=40, events=900, seed=3))
    return TrainingData.of(store, chronological_split(store), torch.device("cuda"))


def training_of(model, data, folder, **loop):
    torch.manual_seed(0)
    spec = MODELS[model]
    facts = DatasetFacts.of(data.store.to("cpu"), data.split.train.cpu())
    scorer = spec.build(build_config(spec.config, SETTINGS[model]), facts).cuda()
    return Training(
        scorer, data, TrainConfig(batch=20, precision="float32", **loop), RunFolder(folder), seed=0
    )


@pytest.mark.parametrize("model", list(SETTINGS))
@pytest.mark.parametrize("cut", [CUTS[0], CUTS[3]])
def test_an_epoch_of_replays_is_the_epoch(model, cut, data, tmp_path, monkeypatch):
    """Losses, weights and memory after an epoch of replayed graphs are those of issued steps, whole or in parts."""
    monkeypatch.setattr(engine, "best_cut", lambda lengths, most: cut)
    results = []
    for graphs in (False, True):
        training = training_of(model, data, tmp_path, graphs=graphs, save_every=1e9)
        assert type(training.steps) is (GraphSteps if graphs else EagerSteps)
        training.train_epoch(Reporter())
        results.append((torch.tensor(training.progress.losses), training.scorer.state_dict()))
    (loss, weights), (replayed, others) = results
    torch.testing.assert_close(replayed, loss, rtol=1e-3, atol=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype
def test_no_step_waits_for_the_device(data, tmp_path):
    """After the first epoch, an epoch of replays asks the device for nothing until its losses are read."""
    training = training_of("tgn", data, tmp_path, save_every=1e9)
    training.train_epoch(Reporter())
    negatives = data.negatives(0, 1)
    training.steps.begin(negatives)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(len(data.split.train) // 20):
            training.steps(number, negatives)
    finally:
        torch.cuda.set_sync_debug_mode("default")
