"""JODIE, DyRep and TGN against a reference that replays event by event; what a batch may and may not know."""

import pytest
import torch
from hypothesis import given

from dygmamba.models.base import DatasetFacts
from memory_cases import NAMES, Reference, all_pairs, build, replay, ten_events, view_of
from strategies import event_streams


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_are_those_of_a_replay_event_by_event(name):
    """On ten events in batches of three, every node's embedding before and after each batch is the reference's."""
    store = ten_events()
    model, facts = build(name, store), DatasetFacts.of(store)
    plain = Reference(model, store, name)
    for events in store.batches(torch.arange(10), 3):
        pairs = all_pairs(store, float(events.time[-1]))
        with torch.no_grad():
            src, dst = model.encoder(view_of(model, store, pairs))
        for row, (s, d, t) in enumerate(
            zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.time.tolist(), strict=True)
        ):
            torch.testing.assert_close(
                src[row].double(), plain.embed(s, t, facts.src_gap), rtol=1e-5, atol=1e-5
            )
            torch.testing.assert_close(
                dst[row].double(), plain.embed(d, t, facts.dst_gap), rtol=1e-5, atol=1e-5
            )
        model.observe(events)
        plain.observe(events)
    memory = model.encoder.memory
    for n in range(store.num_nodes):
        torch.testing.assert_close(memory.state[n].double(), plain.memory[n], rtol=1e-5, atol=1e-5)
        assert float(memory.updated[n]) == plain.updated[n]
        assert bool(memory.waiting[n]) == (n in plain.message)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dims", [(0, 0), (0, 3), (2, 0)])
def test_missing_features_are_no_columns(name, dims):
    """Without edge or node features scores are finite, and a memory is told of the events all the same."""
    store = ten_events(*dims)
    model, pairs = build(name, store), all_pairs(ten_events())
    with torch.no_grad():
        new = model(view_of(model, store, pairs))
        replay(model, store)
        told = model(view_of(model, store, pairs))
    assert bool(torch.isfinite(told).all())
    assert not torch.allclose(new, told)


def test_stored_memory_has_no_gradient_and_the_cell_has():
    """Buffers are detached; the loss of the next batch reaches the cell through the waiting messages."""
    store = ten_events()
    model, pairs = build("tgn", store).train(), all_pairs(ten_events())
    model(view_of(model, store, pairs)).sum().backward()
    model.observe(store.select(torch.arange(5)))
    model.zero_grad()
    model(view_of(model, store, pairs)).sum().backward()
    assert bool(model.encoder.memory.cell.weight_ih.grad.any())
    assert all(not buffer.requires_grad for buffer in model.buffers())


@pytest.mark.parametrize("name", NAMES)
def test_the_encoding_of_spans_learns_nothing_from_messages(name):
    """Training moves φ by TGN's attention alone: its gradient is that of a model whose messages hold φ's values fixed.

    JODIE and DyRep read φ in messages only, so there it has no gradient at all.
    """
    store = ten_events()
    model, pairs = build(name, store).train(), all_pairs(ten_events())
    replay(model, store)
    time = model.encoder.memory.time
    model(view_of(model, store, pairs)).sum().backward()
    if name != "tgn":
        assert not any(parameter.requires_grad for parameter in time.parameters())
        return
    found = time.omega.grad.clone()
    model.zero_grad()
    nodes = torch.arange(store.num_nodes)
    told, when = model.encoder.memory.read(nodes, store.features)  # messages taken in before φ is asked
    model.encoder.memory.state[:-1], model.encoder.memory.updated[:-1] = told.detach(), when
    model.encoder.memory.waiting.zero_()
    model(view_of(model, store, pairs)).sum().backward()
    assert bool(found.any())
    torch.testing.assert_close(time.omega.grad, found)


@given(store=event_streams())
def test_gap_statistics_are_those_of_a_loop(store):
    """For all streams: mean and deviation of the spans since a node's last event in its role, or since the start."""
    facts = DatasetFacts.of(store)
    for column, (mean, deviation) in ((store.src, facts.src_gap), (store.dst, facts.dst_gap)):
        last, gaps = {}, []
        for n, t in zip(column.tolist(), store.time.tolist(), strict=True):
            gaps.append(t - last.get(n, facts.start))
            last[n] = t
        expected = torch.tensor(gaps or [0.0], dtype=torch.float64)
        assert mean == pytest.approx(float(expected.mean()))
        assert deviation == pytest.approx(float(expected.std(correction=0)) or 1.0)
