"""Edge features of networks: the unit of a column changes no score, and columns near 1 are read as they are."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dygmamba as dm
from contract_cases import build, sample_store
from dygmamba.core.errors import ConfigError, DygError
from dygmamba.data.events.columns import MAX_UNSCALED_RMS
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import NetworkConfig
from raising import raises

NETWORKS = [name for name, spec in MODELS.items() if issubclass(spec.config, NetworkConfig)]
# the other pair features of this model read logarithms of columns
SETTINGS = {"dyg-mamba-counts": {"pair_features": ("walks",)}}
SMALL = {"epochs": 1, "neighbors": 3, "blocks": 1, "time_dim": 8}


def with_unit(store, unit):
    """The store with edge features near 1, multiplied by `unit`."""
    edge = torch.randn(store.features.edge.shape, generator=torch.Generator().manual_seed(3))
    return replace(store, features=replace(store.features, edge=edge * unit))


def score(name, store, **settings):
    """Scores of a few pairs by untrained weights, of a memory after three batches."""
    torch.manual_seed(1)
    model = build((name, SETTINGS.get(name, {}) | settings), store)
    for events in store.batches(torch.arange(18), 6):
        model.observe(events)
    pairs = PairBatch.from_pairs(store.src[20:32], store.dst[20:32], store.time[20:32])
    with torch.no_grad():
        view = gather_view(Index(store), store.features, pairs, model.requests, Draws.from_seed(5))
        return model(view)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_unit_of_a_column_changes_no_score(name):
    near, large, tiny = (with_unit(sample_store(), unit) for unit in (1.0, 2.0**20, 2.0**-20))
    assert DatasetFacts.of(near).edge_scale == ()
    expected = score(name, near)
    assert torch.equal(score(name, large), expected)
    assert torch.equal(score(name, tiny), expected)
    assert not torch.equal(score(name, large, edge_units="raw"), expected)


@given(st.floats(1e-36, 1e36), st.integers(1, 40))
def test_scaled_columns_are_near_one(unit, events):
    """For all units: the root mean square is between 1/4 and 4, and factors are powers of two."""
    store = sample_store()
    store = with_unit(store, unit)
    found = DatasetFacts.of(store, torch.arange(events)).edge_scale
    factors = torch.tensor(found or (1.0,) * store.features.edge.shape[1], dtype=torch.float64)
    size = (store.features.edge[:events].double() * factors).square().mean(0).sqrt()
    assert bool(((size >= 1 / MAX_UNSCALED_RMS) & (size <= MAX_UNSCALED_RMS) | (size == 0)).all())
    assert bool((torch.frexp(factors).mantissa == 0.5).all())


@pytest.mark.parametrize("value", [1e-45, 3e38])
def test_factors_are_numbers_of_32_bits(value):
    """The least and nearly the largest number of 32 bits, which a factor cannot bring near 1."""
    store = sample_store()
    edge = torch.full_like(store.features.edge, value)
    store = replace(store, features=replace(store.features, edge=edge))
    factors = torch.tensor(DatasetFacts.of(store).edge_scale)
    assert bool(torch.isfinite(factors).all())
    assert bool((factors > 0).all())


def test_later_events_and_empty_columns_set_no_unit():
    store = with_unit(sample_store(), 1.0)
    edge = store.features.edge.clone()
    edge[30:] = 1e9
    edge[:, 0] = 0.0
    later = replace(store, features=replace(store.features, edge=edge))
    assert DatasetFacts.of(later, torch.arange(30)).edge_scale == ()
    assert DatasetFacts.of(later, torch.arange(0)).edge_scale == ()


@pytest.fixture(scope="module")
def frame():
    table = dm.generate(nodes=40, events=500, communities=4).to_pandas()
    table["amount"] = [1.0 if row % 3 else -1.0 for row in range(len(table))]
    return table


def test_a_run_with_large_amounts_equals_one_in_another_unit(frame, tmp_path):
    """Training, evaluation, an opened run and a warm start; the unit of 4,096 is exact."""
    found = []
    for unit in (1.0, 4096.0):
        table = frame.assign(amount=frame["amount"] * unit)
        first = dm.read(table[:400], name=f"mail-{unit:g}", features="amount")
        (run,) = dm.train(first, "graphmixer", out=tmp_path / f"{unit:g}", device="cpu", **SMALL)
        opened = dm.Run(run.path)
        later = dm.read(table, name=f"mail-{unit:g}", features="amount")
        (more,) = dm.train(
            later, "graphmixer", start_from=run.path, out=tmp_path / f"more{unit:g}", device="cpu", epochs=1
        )
        pairs = [(1, 2), (3, 5), (8, 13)]
        found.append([one.score(pairs).to_pylist() for one in (run, opened, dm.Run(more.path))])
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


def test_a_warm_start_keeps_the_units_of_the_earlier_run(frame, tmp_path):
    """Later amounts of another size change no factor; settings that would read other units are refused."""
    amounts = frame["amount"] * 4096
    amounts[400:] *= 1024
    table = frame.assign(amount=amounts)
    first, later = (dm.read(part, name="mail", features="amount") for part in (table[:400], table))
    (run,) = dm.train(first, "graphmixer", out=tmp_path, device="cpu", **SMALL)
    (more,) = dm.train(later, "graphmixer", start_from=run.path, out=tmp_path, device="cpu", epochs=1)
    assert "edge_scale = [0.000244140625]" in (more.path / "config.toml").read_text()
    with raises("start-other-settings", ConfigError):
        dm.train(later, "graphmixer", start_from=run.path, out=tmp_path, device="cpu", edge_units="raw")
    config = more.path / "config.toml"
    config.write_text(config.read_text().replace("edge_scale = [0.000244140625]", "edge_scale = [0.0]"))
    with pytest.raises(DygError):
        dm.Run(more.path).score([(1, 2)])
