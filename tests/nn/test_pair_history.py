"""The pair history of the link head: what boosted trees read, strictly earlier, standardised once."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contract_cases import TINY, sample_store
from dygmamba.config import build_config
from dygmamba.history.counts import CountFeatures
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.nn.pair_history import ROLES, PairHistory
from strategies import event_streams

SPEC = MODELS["dyg-mamba-counts"]


def build(store):
    torch.manual_seed(0)
    settings = TINY["dyg-mamba-counts"] | {"pair_features": ("history",), "channels": ("time",), "length": 9}
    scorer = SPEC.build(build_config(SPEC.config, settings), DatasetFacts.of(store))
    (history,) = (module for module in scorer.modules() if isinstance(module, PairHistory))
    return scorer.eval(), history


def look_up(store, scorer, pairs, *more):
    return gather_view(Index(store), store.features, pairs, (*scorer.requests, *more))


@given(event_streams(), st.data())
def test_counts_by_role_are_those_of_trees(store, data):
    """Counts by role, numbers of events and ages are those of the count features of boosted trees."""
    scorer, history = build(store)
    now = data.draw(st.sampled_from([0.0, *store.time.tolist()])) + data.draw(st.sampled_from([0.0, 0.5]))
    nodes = torch.arange(store.num_nodes)
    src, dst = torch.cartesian_prod(nodes, nodes).T
    pairs = PairBatch.from_pairs(src, dst, torch.full(src.shape, now, dtype=torch.float64))
    scales = history.config.counts.scales
    asked = CountFeatures(scales, 4)
    view = look_up(store, scorer, pairs, asked)
    trees = dict(zip(asked.names, view[asked].T, strict=True))
    numbers, place = history.read(view), 0
    names = (
        "events of the source", "events of the destination", "events between them", "events the source sent",
        "events the destination received", "events from source to destination",
    )  # fmt: skip
    whose = (
        "of the source",
        "of the destination",
        "between them",
        "the source sent",
        "the destination received",
    )
    for number, (_, _, with_age) in enumerate(ROLES):
        expected = [trees[f"{names[number]}, fading over {scale:.4g}"] for scale in scales]
        if with_age:
            end = whose[number]
            expected += [trees[f"number of events {end}"], trees[f"time since the last event {end}"]]
        found = numbers[:, place : place + len(expected)]
        torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-5, atol=1e-6)
        place += len(expected)


def fit_to_columns(store, edge):
    """Scorer, history and queries of a store with these columns, with the statistics of the queries."""
    store = replace(store, features=replace(store.features, edge=edge))
    scorer, history = build(store)
    pairs = PairBatch.from_pairs(store.src[20:], store.dst[20:], store.time[20:])
    view = look_up(store, scorer, pairs)
    assert history.config.columns in scorer.requests
    scorer.fit_inputs([view])
    return scorer, history, view


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-30])
def test_statistics_are_those_of_the_queries(unit):
    """Standardised numbers have mean 0 and deviation 1 unless they are constant, whatever the unit of a column."""
    store = sample_store(80)
    edge = store.features.edge * unit
    _, history, view = fit_to_columns(store, edge)
    raw = history.read(view).double()
    scaled = (raw - history.standardise.mean) / history.standardise.deviation
    deviation = scaled.std(dim=0, correction=0)
    is_constant = raw.std(dim=0, correction=0) <= torch.tensor(history.standardise.least, dtype=torch.float64)
    assert scaled[:, ~is_constant].mean(dim=0).abs().max() < 1e-3
    assert ((deviation - 1).abs() < 1e-3)[~is_constant].all()
    assert is_constant.float().mean() < 0.3


def test_extreme_columns_stay_finite():
    """Amounts whose differences are infinite in 32 bits, in training and later: statistics and scores are finite."""
    torch.manual_seed(0)
    store = sample_store(80)
    edge = torch.where(torch.rand(store.features.edge.shape) < 0.5, -3e38, 3e38)
    scorer, history, view = fit_to_columns(store, edge)
    assert history.standardise.mean.isfinite().all()
    assert history.standardise.deviation.isfinite().all()
    with torch.no_grad():
        assert scorer(view).isfinite().all()
