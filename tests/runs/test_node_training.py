"""What a node classifier keeps, on every trainable model."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import one_hot

from dygmamba.core.errors import Interrupted
from dygmamba.data.events.event_store import EventStore
from dygmamba.engine.checkpoint import load_best
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import NodeFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.history.view import PairBatch
from dygmamba.models.classifiers import FrozenClassifier, NodeClassifier, SourceEmbedding
from dygmamba.runs.recipes import embed_sources
from dygmamba.tasks.node import NodeTask, split_for_nodes
from dygmamba.tasks.node_targets import create_target
from node_cases import TRAINABLE, labelled_stream, small_encoder
from observers import StepCounter

CPU = torch.device("cpu")
QUICK = NodeFitConfig(epochs=1, batch=40, lr=1e-2)


@pytest.fixture(params=TRAINABLE)
def name(request):
    """Each registered model with weights."""
    return request.param


def stream_of(store):
    """The stream as a backbone is shown it."""
    return Stream(store, split_for_nodes(store), CPU).without_labels()


def fit_of(name, folder, config=QUICK, store=None):
    """A classifier on an untrained backbone, ready to train."""
    store = labelled_stream() if store is None else store
    stream, split = stream_of(store), split_for_nodes(store)
    task = NodeTask.create(store, split, CPU, create_target(store, split, balance=config.balance))
    encoder = small_encoder(name, store)
    torch.manual_seed(0)
    model = (NodeClassifier if config.finetune else FrozenClassifier)(encoder, task.target.outputs)
    if not config.finetune:
        task = task.with_embeddings(embed_sources(encoder, stream, config, 0))
        model.read_columns()
    return Trainer(task, model, stream, config, RunDirectory(folder), 0)


def embeddings(name, store, visible="strict", **more):
    """All events' embeddings under the same initial weights."""
    encoder = small_encoder(name, labelled_stream(), **more)
    return embed_sources(encoder, stream_of(store), replace(QUICK, visible=visible), 0)


def auc(fit):
    """On the test period."""
    return fit.task.metrics(fit.score(fit.task.test), fit.task.test)["auc"]


def test_later_events_and_labels_change_no_embedding(name):
    """Causal: with other events from event c on, and other labels from c - 1 on, all before c is embedded alike."""
    store, other, cut = labelled_stream(), labelled_stream(seed=9), 150
    number = torch.arange(len(store))
    later, edge = number >= cut, store.features.edge
    changed = EventStore.from_columns(
        torch.where(later, other.src, store.src),
        torch.where(later, other.dst, store.dst),
        store.time,
        num_nodes=store.num_nodes,
        features=replace(store.features, edge=torch.where(later[:, None], -edge, edge)),
        label=torch.where(number >= cut - 1, 1 - store.label, store.label),
    )
    ours, theirs = embeddings(name, store), embeddings(name, changed)
    torch.testing.assert_close(theirs[:cut], ours[:cut], rtol=0, atol=1e-6)
    assert not torch.allclose(theirs[cut:], ours[cut:])


def test_cached_embeddings_are_the_recomputed_ones(name, tmp_path):
    """The table of a frozen backbone = embedding all events again, after training too; and so are scores."""
    own = fit_of(name, tmp_path)
    own()
    table = own.task.embedding
    assert torch.equal(table, embed_sources(own.scorer.encoder, own.stream, QUICK, 0))
    read = own.score(own.task.test)
    plain = NodeClassifier(own.scorer.encoder)
    plain.head = own.scorer.head
    own.scorer = plain
    torch.testing.assert_close(own.score(own.task.test), read, rtol=0, atol=1e-5)


@pytest.mark.parametrize("visible", ["strict", "batch"])
def test_memory_holds_what_its_rule_says(visible):
    """When an event is embedded, a strict memory holds nothing of its time or later."""
    store, latest, asked = labelled_stream(events=900), [float("-inf")], []
    encoder = small_encoder("tgn", store)
    observe, reset, forward = encoder.observe, encoder.reset, encoder.forward

    def observed(events):
        latest.append(float(events.time.max()))
        observe(events)

    def forgotten():
        latest[:] = [float("-inf")]
        reset()

    def embedded(view):
        asked.append((max(latest), float(view.pairs.time.min())))
        return forward(view)

    encoder.observe, encoder.reset, encoder.forward = observed, forgotten, embedded
    embed_sources(encoder, stream_of(store), replace(QUICK, visible=visible), 0)
    assert len(latest) > 4
    assert all(seen < time for seen, time in asked) is (visible == "strict")


def test_a_frozen_backbone_keeps_its_weights_and_the_head_learns(name, tmp_path):
    """Frozen: no weight of the encoder moves or gets a gradient; every weight of the head moves."""
    own = fit_of(name, tmp_path)
    encoder = {key: value.clone() for key, value in own.scorer.encoder.named_parameters()}
    head = {key: value.clone() for key, value in own.scorer.head.named_parameters()}
    own()
    assert all(torch.equal(value, encoder[key]) for key, value in own.scorer.encoder.named_parameters())
    assert all(value.grad is None for value in own.scorer.encoder.parameters())
    assert not any(torch.equal(value, head[key]) for key, value in own.scorer.head.named_parameters())


def test_fine_tuning_trains_what_the_source_embedding_depends_on(name, tmp_path):
    """Fine-tuned: a weight moves if and only if the source embeddings of the training events have its gradient."""
    own = fit_of(name, tmp_path, replace(QUICK, finetune=True))
    reached, epoch, context = set(), own.epoch(0), own.executor.context
    context.draws.key.copy_(epoch.draws.key)
    for number in range(own.steps_per_epoch):
        for cell in own.batch(epoch, number).memory_batches:
            context.update_memory(own.stream.train[context.rows(cell)])
        rows = context.rows(number)
        embedding = own.scorer.encoder(context.look_up(own.stream.train[rows], epoch.others[rows]).view)[0]
        own.scorer.zero_grad()
        (embedding * torch.randn_like(embedding)).sum().backward()
        reached |= {
            key
            for key, value in own.scorer.encoder.named_parameters()
            if value.grad is not None and bool(value.grad.any())
        }
    before = {key: value.detach().clone() for key, value in own.scorer.encoder.named_parameters()}
    own.scorer.zero_grad()
    own.train_epoch()
    moved = {
        key for key, value in own.scorer.encoder.named_parameters() if not torch.equal(value, before[key])
    }
    assert reached
    assert moved == reached


def test_a_learnable_stream_is_learned(name, tmp_path):
    """Sources whose earlier events give their kind away are told apart: test AUC above 0.9.

    The backbone keeps its initial weights, so edge features are as wide as those are scaled for (decision 021).
    """
    store = labelled_stream()
    wide = replace(store.features, edge=store.features.edge.repeat(1, 4))
    config = replace(QUICK, epochs=12, patience=12, lr=0.1)
    own = fit_of(name, tmp_path, config, replace(store, features=wide))
    own()
    assert auc(own) > 0.9


@pytest.mark.parametrize(
    ("kind", "label"),
    [("classes", lambda src: (src % 3).float()), ("regression", lambda src: 40 + 2.5 * (src % 3).float())],
)
def test_a_head_learns_classes_and_numbers(kind, label, tmp_path):
    """Sources whose earlier events give their label away: macro-F1 above 0.8, or an error below the spread of 1.7."""
    store = labelled_stream()
    edge = one_hot(store.src % 3, 3).float().repeat(1, 4)
    store = replace(store, label=label(store.src), features=replace(store.features, edge=edge))
    own = fit_of("graphmixer", tmp_path, replace(QUICK, epochs=15, lr=0.03), store)
    assert own.task.target.kind == kind
    own()
    found = own.task.metrics(own.score(own.task.test), own.task.test)
    assert found["macro_f1"] > 0.8 if kind == "classes" else found["mae"] < 1.3
    name, choose = ("macro_f1", max) if kind == "classes" else ("mae", min)
    assert own.state.best[name] == choose(entry[f"val_{name}"] for entry in own.run.metrics())


def test_dyg_mamba_of_the_task_looks_at_the_source_alone():
    """Without co-occurrence and mixer, another destination leaves the source's embedding as it is."""
    store = labelled_stream()
    moved = replace(store, dst=torch.cat([store.dst[:100], store.dst[100:].roll(1)]))
    walk_of = {
        name: StreamScorer(SourceEmbedding(small_encoder(name, store)), stream_of(store), 0)
        for name in ("dyg-mamba", "dygformer")
    }
    for name, alone in (("dyg-mamba", True), ("dygformer", False)):
        ours, other = (
            walk_of[name](PairBatch.from_pairs(part.src[100:], part.dst[100:], part.time[100:]))
            for part in (store, moved)
        )
        assert torch.allclose(ours, other, rtol=0, atol=1e-6) is alone


def test_the_best_epoch_is_kept_by_validation_auc_and_patience_ends_it(tmp_path):
    """Best = the last epoch to reach the highest validation AUC; `patience` epochs without it end the run."""
    own = fit_of("tgat", tmp_path, NodeFitConfig(epochs=50, batch=40, patience=3))
    aucs, calls = [0.6, 0.7, 0.7, 0.5, 0.6, 0.69], count()
    own.validate = lambda advance: {"auc": aucs[next(calls)], "ap": 0.5}
    own()
    assert (own.state.epoch, own.state.best_epoch, own.state.best_auc) == (6, 2, 0.7)
    assert load_best(own.run, own.scorer).best_epoch == 2
    assert [entry["val_auc"] for entry in own.run.metrics()] == aucs


def test_balance_weighs_both_classes_the_same(tmp_path):
    """Off, a positive weighs 1; on, negatives / positives of the training period."""
    label = labelled_stream().label[:168]
    assert float(fit_of("tgat", tmp_path).task.weight) == 1.0
    weight = float(fit_of("tgat", tmp_path, replace(QUICK, balance=True)).task.weight)
    assert weight == pytest.approx(float((1 - label).sum() / label.sum()))


def finished(folder, name, finetune, stop_after=None):
    """A run of two epochs with dropout in the head, perhaps stopped after some steps and gone on with."""
    config = NodeFitConfig(epochs=2, batch=40, lr=1e-2, finetune=finetune)
    folder.mkdir()
    own = fit_of(name, folder, config)
    if stop_after is not None:
        counter = StepCounter()
        with pytest.raises(Interrupted, match=r"dygmamba\.resume") as stopped:
            own(counter, stop=lambda: counter.steps >= stop_after)
        assert stopped.value.exit_code == 130
        own = fit_of(name, folder, config)
        torch.manual_seed(12345)  # the state of the process must not matter
        own.resume()
    own()
    return own


@pytest.mark.parametrize(("name", "finetune"), [("tgat", False), ("tgn", True)])
def test_a_stopped_classifier_ends_as_if_it_was_not(name, finetune, tmp_path):
    """For all steps k: stop after k, resume, finish: weights, optimizer and metrics are bit-identical."""
    whole = finished(tmp_path / "whole", name, finetune)
    for stop_after in (2, 7):
        again = finished(tmp_path / str(stop_after), name, finetune, stop_after)
        for part in ("last", "best"):
            ours, theirs = load_file(getattr(again.run, part)), load_file(getattr(whole.run, part))
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert [entry["val_auc"] for entry in again.run.metrics()] == [
            entry["val_auc"] for entry in whole.run.metrics()
        ]
