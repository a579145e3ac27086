"""Requests that are looked up on the host: no step with one of them is captured as a CUDA graph."""

import pytest
import torch

from contract_cases import TINY, sample_store
from dygmamba.config import build_config
from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.engine.executor.eager import can_capture
from dygmamba.history.column_sums import ColumnLookup
from dygmamba.history.columns import ColumnFeatures
from dygmamba.history.counts import CountFeatures
from dygmamba.history.decayed_counts import DecayedCountLookup
from dygmamba.history.event_history import HistoryRequest
from dygmamba.history.index import Index, gather_view
from dygmamba.history.node_features import NodeFeatures
from dygmamba.history.node_values import NodeValueFeatures
from dygmamba.history.table_request import TableRequest
from dygmamba.history.transition_counts import TransitionLookup
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import NeighborRequest, PairBatch
from dygmamba.history.walks import WalkRequest
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts

STORE = sample_store()
FACTS = DatasetFacts.of(STORE)
PER_BATCH = [  # features of each pair
    CountFeatures((1.0,), 4),
    TransitionFeatures((1.0,), window=4),
    ColumnFeatures(FACTS.columns.first(8, MAX_CODE_COLUMNS, 8), (1.0,)),
    NodeValueFeatures((1.0,), (0,)),
    NodeFeatures(FACTS.node_columns),
]
NUMERIC = ColumnFeatures(FACTS.columns.first(8, 0, 0), (1.0,))
LOOKED_UP = [
    WalkRequest(1, 4),
    DecayedCountLookup((1.0,)),
    TransitionLookup((1.0,), window=4),
    ColumnLookup(NUMERIC),
]
ON_DEVICE = [NeighborRequest((4,)), *LOOKED_UP]


def pairs_at(row):
    return PairBatch.from_pairs(STORE.src, STORE.dst, STORE.time[row].expand(len(STORE)).contiguous())


def count_moves(monkeypatch, call):
    """How often a call moves a tensor to the host, or would on a device."""
    moves, move = [], torch.Tensor.cpu
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", lambda self: moves.append(1) or move(self))
        call()
    return len(moves)


@pytest.mark.parametrize("request_", [*PER_BATCH, *ON_DEVICE], ids=lambda one: type(one).__name__)
def test_a_request_says_whether_it_is_looked_up_on_the_host(request_, monkeypatch):
    """For all but histories: with a table at hand, new queries move to the host if and only if the request says so."""
    index = Index(STORE)
    gather_view(index, STORE.features, pairs_at(30), (request_,))
    moves = count_moves(monkeypatch, lambda: gather_view(index, STORE.features, pairs_at(40), (request_,)))
    assert (moves > 0) is request_.on_host


def list_requests(base):
    """Yield the names of all requests of the package that derive from a class; tests define more."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("dygmamba."):
            yield kind.__name__
        yield from list_requests(kind)


def test_every_request_was_tried():
    """Histories of heuristics, which are not trained, are looked up on the host by the heuristic itself."""
    tried = {type(one).__name__ for one in (*PER_BATCH, *LOOKED_UP)}
    base = {"FeatureRequest", "TransitionScales"}  # of others
    assert {*list_requests(TableRequest)} - tried - base == {"HistoryRequest"}
    assert HistoryRequest().on_host


def test_a_network_without_named_columns_looks_nothing_up_on_the_host(monkeypatch):
    """Its own look-ups in tables stay on the device too, so its steps can be captured."""
    spec = MODELS["dyg-mamba-counts"]
    settings = TINY["dyg-mamba-counts"] | {
        "pair_features": ["decayed-pair", "walks", "transitions", "history"]
    }
    model, index = spec.build(build_config(spec.config, settings), FACTS).eval(), Index(STORE)

    def score(row):
        with torch.no_grad():
            model(gather_view(index, STORE.features, pairs_at(row), model.requests))

    score(30)
    assert count_moves(monkeypatch, lambda: score(40)) == 0
    assert can_capture("cuda", model.requests)
    assert not can_capture("cpu", model.requests)


@pytest.mark.parametrize("more", [{}, {"query_columns": True, "pair_features": []}])
def test_a_network_with_named_columns_is_not_captured(more):
    """Node features, and columns of events, are computed on the host for each batch."""
    spec = MODELS["dyg-mamba-counts"]
    model = spec.build(build_config(spec.config, TINY["dyg-mamba-counts"] | more), FACTS)
    assert not can_capture("cuda", model.requests)
