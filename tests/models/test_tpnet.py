"""TPNet: published settings, what its walks see, and how exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from contract_cases import sample_store
from dygmamba.config import build_config, find_preset, load_presets
from dygmamba.data.catalogue.known_datasets import find_entry
from dygmamba.data.events.event_store import EventStore
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

SPEC = MODELS["tpnet"]
YEAR = 365 * 86400
PUBLISHED_DECAY = {  # per second, Table of hyperparameters of the release
    "wikipedia": 1e-6, "reddit": 1e-6, "mooc": 1e-5, "lastfm": 1e-7, "enron": 1e-6, "SocialEvo": 1e-6, "uci": 1e-7,
    "CanParl": 1e-5, "USLegis": 1e-6, "UNtrade": 1e-7, "UNvote": 1e-5, "Contacts": 1e-4,
}  # fmt: skip
SECONDS_PER_UNIT = {"USLegis": YEAR}  # where times of the file are not in seconds
TINY = {"neighbors": 2, "dim": 64, "out": 8, "time_dim": 6, "dropout": 0.0, "decay": 0.01}


def build(store, **more):
    torch.manual_seed(0)
    return SPEC.build(build_config(SPEC.config, TINY | more), DatasetFacts.of(store)).eval()


def score(model, store, src, dst, time):
    pairs = PairBatch.from_pairs(*(torch.tensor([v]) for v in (src, dst)), torch.tensor([time]).double())
    with torch.no_grad():
        return model(gather_view(Index(store), store.features, pairs, model.requests))


def stream(*events):
    src, dst, time = zip(*events, strict=True)
    return EventStore.from_columns(
        torch.tensor(src), torch.tensor(dst), torch.tensor(time, dtype=torch.float64), num_nodes=9
    )


def test_published_settings():
    """Twelve datasets; dim is 10 times the integral part of ln(2 events), at most the nodes; width 172."""
    datasets = [key for key, value in load_presets()["tpnet"].items() if isinstance(value, dict)]
    assert len(datasets) == 12
    for dataset in datasets:
        config = build_config(SPEC.config, find_preset("tpnet", dataset))
        count = find_entry(dataset).counts[0]
        assert config.dim == min(10 * int(math.log(2 * count.events)), count.nodes), dataset
        encoder = SPEC.build(config, DatasetFacts(num_nodes=9, node_dim=0, edge_dim=4)).encoder
        assert encoder.out_dim == 172
        assert (encoder.requests[1].decays, encoder.requests[1].layers) == ((config.decay,), 3)


def test_preset_decay_is_the_published_one_per_unit_of_time():
    """The release gives decay per second; a preset gives it per unit of time of the dataset's file."""
    assert set(PUBLISHED_DECAY) == {
        key for key, value in load_presets()["tpnet"].items() if isinstance(value, dict)
    }
    for dataset, per_second in PUBLISHED_DECAY.items():
        expected = per_second * SECONDS_PER_UNIT.get(dataset, 1)
        assert find_preset("tpnet", dataset)["decay"] == pytest.approx(expected), dataset


@pytest.mark.parametrize("dataset", ["CanParl", "USLegis"])
def test_snapshots_decay_as_published(real_data, dataset):
    """From one snapshot to the next, walks decay by the published rate times one year, whatever the file's unit."""
    steps = np.diff(np.unique(np.load(real_data / f"{dataset}.npz")["t"]))
    decayed = find_preset("tpnet", dataset)["decay"] * np.median(steps)
    assert decayed == pytest.approx(
        PUBLISHED_DECAY[dataset] * YEAR, rel=0.003
    )  # a leap year is 0.0027 longer


def test_walks_reach_beyond_the_neighbours():
    """Two nodes that never met and share no neighbour, but a walk of three events: the events in its middle count."""
    reached = stream((4, 5, 1.0), (3, 4, 2.0), (5, 6, 3.0), (2, 3, 4.0), (6, 7, 5.0))
    apart = stream((4, 0, 1.0), (3, 4, 2.0), (5, 6, 3.0), (2, 3, 4.0), (6, 7, 5.0))
    model = build(reached)
    assert not torch.allclose(score(model, reached, 2, 7, 6.0), score(model, apart, 2, 7, 6.0), atol=1e-5)


def test_an_event_before_the_question_counts_at_once_and_a_tie_never():
    """However little earlier an event of the same batch is, the score sees it; at the question's time it does not."""
    past, at = [(0, 1, 1.0), (1, 2, 2.0)], 10.0
    model = build(stream(*past))
    alone = score(model, stream(*past), 0, 2, at)
    tied = score(model, stream(*past, (0, 2, at), (2, 1, at)), 0, 2, at)
    just = score(model, stream(*past, (0, 2, math.nextafter(at, 0))), 0, 2, at)
    torch.testing.assert_close(tied, alone, rtol=0, atol=0)
    assert not torch.allclose(just, alone, atol=1e-5)


def test_decay_follows_the_training_period_unless_set():
    """Where no decay is given, a step fades by e^-2 in the period, in any unit of time."""
    store = sample_store()
    period = float(store.time[-1] - store.time[0])
    assert build(store, decay=0.0).requests[1].decays == (2 / period,)
    hours = replace(store, time=store.time / 3600)
    assert build(hours, decay=0.0).requests[1].decays == pytest.approx((2 * 3600 / period,))
    assert build(store, decay=0.5).requests[1].decays == (0.5,)


def test_a_bank_of_decays_follows_the_data():
    """Log-spaced from the typical time gap of a node to four training periods, in any unit of time."""
    facts = DatasetFacts(num_nodes=9, node_dim=0, edge_dim=0, node_gap=10.0, period=2500.0)
    assert facts.walk_decays(4) == pytest.approx((0.1, 0.01, 0.001, 0.0001))
    assert facts.walk_decays(1) == (2 / 2500.0,)
    store = sample_store()
    hours = replace(store, time=store.time / 3600)
    bank = build(store, decay=0.0, decays=5).requests[1].decays
    assert len(bank) == 5
    assert build(hours, decay=0.0, decays=5).requests[1].decays == pytest.approx(
        [3600 * rate for rate in bank]
    )


@pytest.mark.parametrize("bank", [{}, {"decay": 0.0, "decays": 3}], ids=["single", "bank"])
def test_no_pass_waits_for_its_own_numbers(bank):
    """Forward and backward on tensors without values: nothing is read on the way, so a GPU's graph can hold them."""
    store = sample_store()
    model, pairs = (
        build(store, **bank).train(),
        PairBatch.from_pairs(store.src[:10], store.dst[:10], store.time[:10]),
    )
    view = gather_view(Index(store), store.features, pairs, model.requests)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = model(view)
        logits.sum().backward()
    assert logits.shape == (10,)
