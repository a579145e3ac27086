"""TGAT, GraphMixer, TCL and DyGFormer: what each may see, and the published sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.config import build_config, find_preset, load_presets
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.history.draws import Draws
from dygmamba.history.index import Index, gather_view
from dygmamba.history.view import NeighborSequence, PairBatch
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.models.dygformer import patch_mask, patches
from dygmamba.nn.tokens import make_tokens, newest_last

SMALL = {"out": 8, "time_dim": 6, "dropout": 0.0}
TINY = {
    "tgat": SMALL | {"neighbors": 3},
    "graphmixer": SMALL | {"neighbors": 3, "window": 4},
    "tcl": SMALL | {"neighbors": 3},
    "dygformer": SMALL | {"length": 4, "patch": 3, "width": 4},
}


def build(name, facts, **more):
    torch.manual_seed(0)
    return MODELS[name].build(build_config(MODELS[name].config, TINY[name] | more), facts).eval()


def stream(src, dst, seed=0):
    """Events one apart, with edge features that tell them apart."""
    rng = torch.Generator().manual_seed(seed)
    src, dst = torch.tensor(src), torch.tensor(dst)
    nodes = 1 + int(torch.maximum(src, dst).max())
    features = FeatureTable(torch.zeros(nodes, 0), torch.randn(len(src), 2, generator=rng))
    return EventStore.from_columns(
        src, dst, torch.arange(1.0, len(src) + 1), num_nodes=nodes, features=features
    )


DRAWS = Draws.from_seed(3)


def changed(store, event):
    """The same stream with another edge feature of one event."""
    edge = store.features.edge.clone()
    edge[event] += 1
    return replace(store, features=FeatureTable(store.features.node, edge))


def embed(model, store, src, dst, time=99.0, draws=DRAWS):
    pairs = PairBatch.from_pairs(torch.tensor([src]), torch.tensor([dst]), torch.tensor([time]).double())
    view = gather_view(Index(store), store.features, pairs, model.requests, draws)
    with torch.no_grad():
        return model.encoder(view)


def test_dygformer_has_the_published_number_of_parameters():
    """With 172 node and edge features: 1,087,035 at patch 1 and 1,457,535 at patch 16 (5,830,140 bytes)."""
    spec, facts = MODELS["dygformer"], DatasetFacts(num_nodes=9, node_dim=172, edge_dim=172)
    for dataset, size in (("wikipedia", 1_087_035), ("lastfm", 1_457_535)):
        model = spec.build(build_config(spec.config, find_preset("dygformer", dataset)), facts)
        assert sum(parameter.numel() for parameter in model.parameters()) == size


@pytest.mark.parametrize("name", list(TINY))
def test_published_settings_build_a_model_of_width_172(name):
    """Every dataset's row of the presets is a valid setting, and embeddings are 172 wide."""
    datasets = [key for key, value in load_presets()[name].items() if isinstance(value, dict)]
    assert len(datasets) == 12
    facts = DatasetFacts(num_nodes=9, node_dim=0, edge_dim=4)
    for dataset in datasets:
        config = build_config(MODELS[name].config, find_preset(name, dataset))
        assert MODELS[name].build(config, facts).encoder.out_dim == 172


@pytest.mark.parametrize("name", ["tcl", "dygformer"])
def test_swapping_a_pair_swaps_its_embeddings(name):
    """encode(v, u) = encode(u, v) turned around: both sides have the same weights and look at once."""
    store = stream([0, 1, 0, 2, 0, 3], [1, 2, 2, 3, 3, 1])
    model = build(name, DatasetFacts.of(store))
    (u, v), (v_, u_) = embed(model, store, 0, 2), embed(model, store, 2, 0)
    torch.testing.assert_close(u, u_)
    torch.testing.assert_close(v, v_)
    assert not torch.allclose(u, v)


def test_tgat_sees_two_hops_and_no_third():
    """On the path a-b-c-d whose events run away from a: (b, c) reaches a, (c, d) does not."""
    store = stream([2, 1, 0], [3, 2, 1])  # c-d, then b-c, then a-b
    model = build("tgat", DatasetFacts.of(store))
    a = embed(model, store, 0, 0)[0]
    assert torch.equal(embed(model, changed(store, 0), 0, 0)[0], a)
    assert not torch.allclose(embed(model, changed(store, 1), 0, 0)[0], a)


def test_tgat_sees_a_neighbor_as_it_was_when_they_met():
    """What b does after meeting a, even before the query, changes nothing for a."""
    store = stream([0, 1], [1, 2])  # a-b, then b-c
    model = build("tgat", DatasetFacts.of(store))
    assert torch.equal(embed(model, changed(store, 1), 0, 0)[0], embed(model, store, 0, 0)[0])


def test_tgat_gives_copies_of_an_event_the_weight_of_one():
    """Drawn uniformly with replacement from a past of one event, TGAT equals TGAT on the recent events."""
    store = stream([1, 0], [2, 1])  # b-c, then a-b: b's past at that time is one event too
    facts = DatasetFacts.of(store)
    recent, drawn = (build("tgat", facts, sampling=name) for name in ("recent", "uniform"))
    torch.testing.assert_close(embed(drawn, store, 0, 0)[0], embed(recent, store, 0, 0)[0])


@pytest.mark.parametrize("name", ["graphmixer", "tcl", "dygformer"])
def test_only_the_most_recent_events_are_seen(name):
    """With room for three neighbours, the fourth last event does not exist and the third last does."""
    store = stream([0, 0, 0, 0, 0], [1, 2, 3, 4, 5])
    model = build(name, DatasetFacts.of(store))
    source = embed(model, store, 0, 0)[0]
    assert torch.equal(embed(model, changed(store, 1), 0, 0)[0], source)
    assert not torch.allclose(embed(model, changed(store, 2), 0, 0)[0], source)


def sequence(length, width):
    """One query at time 9 whose entries happened at 1, 2, ..."""
    time = torch.arange(1.0, width + 1).double()[None]
    ids = torch.arange(width, dtype=torch.int32)[None]
    return NeighborSequence(
        torch.tensor([0]), torch.tensor([9.0]).double(), ids, ids, time, torch.tensor([length])
    )


@given(length=st.integers(0, 4), wider=st.integers(0, 2))
def test_the_newest_event_stands_in_the_last_slot(length, wider):
    """For all lengths and paddings: slots hold zeros, then the tokens in order, the newest last."""
    x = torch.arange(1.0, 5 + wider)[None, :, None]
    moved, taken = newest_last(x, sequence(length, 4 + wider), slots=4)
    assert moved.flatten().tolist() == [0.0] * (4 - length) + list(range(1, length + 1))
    assert taken.flatten().tolist() == [False] * (4 - length) + [True] * length


@given(length=st.integers(0, 3), wider=st.integers(0, 2))
def test_tcl_counts_depth_back_from_the_newest_event(length, wider):
    """For all lengths: the query node has place 0, its neighbours end at place k."""
    places = build("tcl", DatasetFacts(9, 0, 0)).encoder.tokens.depths(
        make_tokens(sequence(length, 3 + wider), "first")
    )
    assert places[0, : length + 1].tolist() == [0, *range(4 - length, 4)]
    assert int(places.min()) >= 0


def test_patches_are_consecutive_tokens_side_by_side():
    """Five tokens of width 2 in patches of 2: three patches, the last completed by zeros."""
    x = torch.arange(1.0, 11).view(1, 5, 2)
    assert patches(x, 2).tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]]
    mask = torch.arange(5) < torch.tensor([[1], [2], [3], [5]])
    expected = [[True, False, False], [True, False, False], [True, True, False], [True, True, True]]
    assert patch_mask(mask, 2).tolist() == expected
