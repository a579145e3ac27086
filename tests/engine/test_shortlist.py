"""Shortlists: candidates from strictly earlier events, which hold the best ones of streams with many destinations."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.data.events.event_store import EventStore
from dygmamba.engine import shortlist as module
from dygmamba.engine.shortlist import Shortlist
from dygmamba.runs import predictor
from strategies import event_streams
from streams import unsplit
from trained import generate_stream


def build_shortlist(store):
    return Shortlist(unsplit(store), "dst", torch.arange(store.num_nodes))


@given(store=event_streams(min_events=2), cut=st.floats(0, 1))
def test_events_at_and_after_the_query_time_change_no_shortlist(store, cut):
    """For all streams, nodes and times: the list is that of a stream that ends before the query."""
    asked_at = float(torch.quantile(store.time, cut))
    earlier = int((store.time < asked_at).sum())
    past = EventStore.from_columns(
        store.src[:earlier], store.dst[:earlier], store.time[:earlier], num_nodes=store.num_nodes
    )
    for node in range(store.num_nodes):
        found = build_shortlist(store).propose(node, asked_at)
        assert torch.equal(found, build_shortlist(past).propose(node, asked_at))
        assert torch.equal(found, found.unique())


def test_a_shortlist_has_neighbors_followers_and_popular_nodes(monkeypatch):
    """Node 0 met 10; 1, which met 10 too, went on to 11; 12 is popular; 13 and 14 are none of it."""
    monkeypatch.setattr(module, "POPULAR", 1)
    monkeypatch.setattr(module, "LAST_EVENTS", 1)
    src, dst = [5, 6, 1, 0, 1, 2, 3, 4, 4], [13, 14, 10, 10, 11, 12, 12, 12, 12]
    store = EventStore.from_columns(
        torch.tensor(src), torch.tensor(dst), torch.arange(9, dtype=torch.float64), num_nodes=15
    )
    found = build_shortlist(store).propose(0, 9.0)
    assert {10, 11, 12} <= set(found.tolist())
    assert not {13, 14} & set(found.tolist())


@pytest.mark.parametrize("only_new", [False, True])
def test_few_nodes_are_ranked_alike_by_a_shortlist(trees_run, monkeypatch, caplog, only_new):
    """Where the list holds every node, ranks, scores and probabilities are those of all; the log says which it was."""
    ids = generate_stream().ids.to_user(torch.arange(6).numpy())
    exact = trees_run.rank(ids.to_pylist(), k=4, only_new=only_new)
    assert not caplog.records
    monkeypatch.setattr(predictor, "MAX_EXACT", 3)
    with caplog.at_level(logging.INFO, "dygmamba"):
        short = trees_run.rank(ids.to_pylist(), k=4, only_new=only_new)
    assert "a shortlist was scored" in caplog.text
    caplog.clear()
    assert short.drop_columns(["score", "probability"]) == exact.drop_columns(["score", "probability"])
    assert short["probability"].to_pylist() == pytest.approx(exact["probability"].to_pylist())
    assert trees_run.rank(ids.to_pylist(), k=4, only_new=only_new, candidates="all") == exact
    assert not caplog.records
