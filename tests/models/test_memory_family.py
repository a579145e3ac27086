"""JODIE, DyRep and TGN against a reference that replays event by event; what a batch may and may not know."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file

from dygmamba.core.errors import Interrupted
from dygmamba.data.events.event_store import FeatureTable
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.history.view import PairBatch
from dygmamba.models.base import DatasetFacts
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import resume_training
from memory_cases import NAMES, SETTINGS, Reference, all_pairs, build, replay, ten_events, view_of
from observers import StepCounter
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
def test_asking_in_between_changes_nothing(name):
    """reset, observe ..., score equals reset, score, observe ..., score."""
    store = ten_events()
    model, pairs = build(name, store), all_pairs(ten_events())
    with torch.no_grad():
        replay(model, store)
        late = model(view_of(model, store, pairs))
        model.reset()
        model(view_of(model, store, pairs))
        for events in store.batches(torch.arange(10), 3):
            model.observe(events)
        assert torch.equal(model(view_of(model, store, pairs)), late)


@pytest.mark.parametrize("name", NAMES)
def test_a_score_knows_earlier_batches_and_nothing_of_its_own(name):
    """Between two observes, other rows, another order or a repeated call change no score; observing does."""
    store = ten_events()
    model, pairs = build(name, store), all_pairs(ten_events())
    replay(model, store, count=6)
    with torch.no_grad():
        whole = model(view_of(model, store, pairs))
        order = torch.randperm(36, generator=torch.Generator().manual_seed(1))[:20]
        some = PairBatch.from_pairs(pairs.src[order], pairs.dst[order], pairs.time[order])
        torch.testing.assert_close(model(view_of(model, store, some)), whole[order], rtol=0, atol=1e-6)
        assert torch.equal(model(view_of(model, store, pairs)), whole)
        model.observe(store.select(torch.arange(6, 9)))
        assert not torch.allclose(model(view_of(model, store, pairs)), whole, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_events_of_the_future_are_unknown_until_observed(name):
    """Other edge features, ends or times after the observed events and the query change no score."""
    store = ten_events()
    model = build(name, store)
    edge = store.features.edge.clone()
    edge[6:] = torch.nan
    other = replace(store, dst=store.dst.clone(), features=FeatureTable(store.features.node, edge))
    other.dst[6:] = 5
    pairs = all_pairs(store, 1e9 + 3.0)  # events 4 to 6 happen at this instant and are not seen by it
    with torch.no_grad():
        replay(model, store, count=4)
        known = model(view_of(model, store, pairs))
        replay(model, other, count=4)
        assert torch.equal(model(view_of(model, other, pairs)), known)


@pytest.mark.parametrize("name", NAMES)
def test_reset_forgets_everything(name):
    """After reset and the same replay the scores are the same bits; after reset alone those of a new model."""
    store = ten_events()
    model, pairs = build(name, store), all_pairs(ten_events())
    with torch.no_grad():
        new = model(view_of(model, store, pairs))
        replay(model, store)
        first = model(view_of(model, store, pairs))
        replay(model, store)
        assert torch.equal(model(view_of(model, store, pairs)), first)
        model.reset()
        assert torch.equal(model(view_of(model, store, pairs)), new)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_dict_holds_the_memory(name):
    """A model with other weights and an empty memory, given the state dict, goes on as the first one does."""
    store = ten_events()
    first, second, pairs = build(name, store), build(name, store, seed=1), all_pairs(ten_events())
    replay(first, store, count=6)
    with torch.no_grad():
        first(view_of(first, store, pairs))
        second.load_state_dict(first.state_dict())
        for model in (first, second):
            model(view_of(model, store, pairs))
            model.observe(store.select(torch.arange(6, 10)))
        assert torch.equal(*(model(view_of(model, store, pairs)) for model in (first, second)))
    assert second.encoder.memory.updated.dtype == torch.float64


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with one small dataset with edge features, `small`."""
    path = tmp_path_factory.mktemp("data")
    store = generate_stream(GeneratorConfig(seed=3, nodes=40, events=500))
    edge = torch.randn(len(store), 3, generator=torch.Generator().manual_seed(0))
    store = replace(store, features=FeatureTable(store.features.node, edge))
    save_dataset(Dataset.from_events("small", store, NodeIds.identity(40), Origin(format="generated")), path)
    return path


def run(folder, root, name, stop_after=None):
    """A run of two epochs, perhaps stopped after some steps and resumed."""
    dataset = open_dataset("small", folder)
    chosen = SETTINGS[name] | {"dropout": 0.2, "epochs": 2, "batch": 100, "lr": 1e-2}
    fit = start_link_run(dataset, name, 0, chosen, torch.device("cpu"), root)
    if stop_after is not None:
        counter = StepCounter()
        with pytest.raises(Interrupted):
            fit(counter, stop=lambda: counter.steps >= stop_after)
        torch.manual_seed(12345)  # the state of the process must not matter
        fit = resume_training(fit.run.path, torch.device("cpu"), folder)
    fit()
    return fit.run


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_resumes_with_its_memory(name, folder, tmp_path):
    """Stopped within either epoch and resumed: weights, memory, optimizer and metrics are bit-identical."""
    whole = run(folder, tmp_path, name)
    for stop_after in (2, 5):
        again = run(folder, tmp_path, name, stop_after)
        for part in ("last", "best"):
            ours, theirs = load_file(getattr(again, part)), load_file(getattr(whole, part))
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert [entry["val_ap"] for entry in again.metrics()] == [
            entry["val_ap"] for entry in whole.metrics()
        ]
    assert bool(load_file(whole.last)["model.encoder.memory.waiting"].any())
