"""examples/dyg_mamba_in_one_file.py is the package's `dyg-mamba`: the same weights, scores, split and protocol."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dygmamba.config import build_config
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.events.splits import chronological_split
from dygmamba.history.index import Index, gather_view
from dygmamba.history.negatives import NegativeRequest, sample_negatives
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

SCRIPT = Path(__file__).parents[1] / "examples" / "dyg_mamba_in_one_file.py"
SIZES = {"width": 4, "time_dim": 6, "blocks": 2, "states": 3, "out": 5}
LENGTH = 7


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def make_arrays(edge_dim, count=600):
    """Events with ties, repeated pairs and a self-loop, at times that 32 bits cannot tell apart."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 30, count), rng.integers(10, 40, count)
    dst[5] = src[5]
    time = 1.0e9 + np.sort(rng.integers(0, 9000, count)).astype(float)
    return {"src": src, "dst": dst, "t": time, "edge_feat": rng.random((count, edge_dim), np.float32)}


def write_csv(path, arrays):
    names = ["src", "dst", "t", *(f"x{i}" for i in range(arrays["edge_feat"].shape[1]))]
    rows = np.column_stack([arrays["src"], arrays["dst"], arrays["t"], arrays["edge_feat"]])
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")


@pytest.fixture(params=[0, 3], ids=["no-features", "features"])
def both(request, script, tmp_path):
    """The model of the script and that of the package on one stream, each with random weights of its own."""
    arrays = make_arrays(request.param)
    np.savez(tmp_path / "events.npz", **arrays)
    torch.manual_seed(1)
    own = script.Experiment(str(tmp_path / "events.npz"), LENGTH, "cpu", **SIZES)
    columns = (torch.from_numpy(arrays[name]) for name in ("src", "dst", "t"))
    count, edge = (
        1 + int(max(arrays["src"].max(), arrays["dst"].max())),
        torch.from_numpy(arrays["edge_feat"]),
    )
    store = EventStore.from_columns(*columns, features=FeatureTable(torch.zeros(count, 0), edge))
    spec = MODELS["dyg-mamba"]
    config = build_config(spec.config, SIZES | {"length": LENGTH, "edge_units": "raw"})
    scorer = spec.build(config, DatasetFacts.of(store)).eval()
    own.model.eval()
    with torch.no_grad():  # W_B and W_C beyond their bound, and no weight at its initial value
        for model in (own.model, scorer):
            for value in model.parameters():
                value += 0.2 * torch.randn_like(value)
            for name, value in model.named_parameters():
                if name.endswith(("select", "select.weight")):
                    value *= 3
    return own, scorer, store


def compare_logits(own, scorer, store):
    rng = np.random.default_rng(3)
    at = rng.integers(0, len(store), 60)
    src, dst = rng.integers(0, 40, 60), rng.integers(0, 40, 60)
    when = store.time.numpy()[at]
    pairs = PairBatch.from_pairs(*(torch.from_numpy(x) for x in (src, dst, when)))
    with torch.no_grad():
        found = own.logits(own.past[""], src, dst, when)
        view = gather_view(Index(store), store.features, pairs, scorer.requests)
        expected = scorer(view)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_script_loads_the_weights_of_the_package(both, script, tmp_path):
    from safetensors.torch import save_file

    own, scorer, store = both
    # as a run stores them
    save_file({f"model.{name}": value for name, value in scorer.state_dict().items()}, tmp_path / "best")
    script.load_weights(own.model, str(tmp_path / "best"))
    compare_logits(own, scorer, store)


def test_the_package_loads_the_weights_of_the_script(both, script, tmp_path):
    own, scorer, store = both
    script.save_weights(own.model, str(tmp_path / "own.safetensors"))
    scorer.load_state_dict(load_file(tmp_path / "own.safetensors"))
    compare_logits(own, scorer, store)


def test_initial_weights_have_the_scale_of_the_package(script):
    """By name: the same shapes, and the same spread of large weights."""
    torch.manual_seed(0)
    facts = DatasetFacts(num_nodes=9, node_dim=0, edge_dim=5)
    scorer = MODELS["dyg-mamba"].build(build_config(MODELS["dyg-mamba"].config, {}), facts)
    theirs = scorer.state_dict()
    own = script.DyGMamba(5).state_dict()
    assert {script.package_name(name) for name in own} == set(theirs)
    for name, value in own.items():
        other = theirs[script.package_name(name)]
        assert value.shape == other.shape
        if value.numel() >= 200:
            assert float(value.std()) == pytest.approx(float(other.std()), rel=0.25, abs=1e-6), name
            assert float(value.mean()) == pytest.approx(
                float(other.mean()), abs=0.2 * float(other.std()) + 1e-6
            )


def test_split_and_negatives_are_the_published_ones(both):
    own, _, store = both
    split = chronological_split(store)
    for found, expected in ((own.train, split.train), (own.val, split.val), (own.test, split.test)):
        assert found.tolist() == expected.tolist()
    assert own.new.tolist() == split.touching_new_nodes(store, split.test).tolist()
    drawn = []
    own.batch_logits = lambda history, batch, negative: (
        drawn.append(negative) or torch.arange(2.0 * len(batch))
    )
    own.evaluate(own.test, np.arange(len(store)), seed=2)
    request = NegativeRequest("random", split.test, torch.arange(len(store)), 0.0, seed=2)
    assert np.concatenate(drawn).tolist() == sample_negatives(store, request).dst.tolist()


def test_metrics_are_those_of_the_package(script):
    from dygmamba.tasks.metrics import average_precision, roc_auc

    rng = np.random.default_rng(0)
    score, label = rng.integers(0, 20, 400).astype(float), rng.integers(0, 2, 400)
    ap, auc = script.average_precision_and_auc(score, label)
    given = torch.from_numpy(score), torch.from_numpy(label).double()
    assert ap == pytest.approx(float(average_precision(*given)), abs=1e-9)
    assert auc == pytest.approx(float(roc_auc(*given)), abs=1e-9)


def test_a_csv_gives_the_same_events(script, tmp_path):
    arrays = make_arrays(2)
    np.savez(tmp_path / "events.npz", **arrays)
    write_csv(tmp_path / "events.csv", arrays)
    for one, two in zip(
        *(script.read_events(str(tmp_path / f"events.{kind}")) for kind in ("npz", "csv")), strict=True
    ):
        np.testing.assert_array_equal(one, two)


def test_it_trains_and_prints_both_averages(script, tmp_path, monkeypatch, capsys):
    """Two epochs on a stream where every source keeps its destination: better than chance, and weights are written."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 20, 500)
    np.savez(tmp_path / "events.npz", src=src, dst=20 + src, t=np.arange(500.0))
    given = ["events.npz", "--length", "4", "--epochs", "2", "--lr", "1e-3", "--save", "own.safetensors"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["one_file", *given, "--device", "cpu"])
    script.main()
    *epochs, test, new = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in (*epochs, test, new)] == [
        "epoch 1",
        "epoch 2",
        "test",
        "new nodes",
    ]
    assert float(test.split("pooled AP ")[1].split(",")[0]) > 60
    assert len(load_file(tmp_path / "own.safetensors")) > 40
