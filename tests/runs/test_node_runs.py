"""What a node classifier keeps, on every trainable model."""

from dataclasses import replace
from itertools import count

import pytest
import torch

from dygmamba.data.events import EventStore
from dygmamba.engine.checkpoint import load_checkpoint
from dygmamba.engine.classification import NodeTrainConfig, NodeTraining
from dygmamba.engine.embedding import LabelledStream, embed
from dygmamba.engine.runs import RunFolder
from dygmamba.engine.training import Interrupted, Reporter
from dygmamba.errors import ConfigError
from node_cases import TRAINABLE, labelled_stream, small_classifier

CPU = torch.device("cpu")
QUICK = NodeTrainConfig(epochs=1, batch=40, lr=1e-2)


@pytest.fixture(params=TRAINABLE)
def name(request):
    """Each registered model with weights."""
    return request.param


def training(name, folder, config=QUICK, store=None):
    store = store or labelled_stream()
    return NodeTraining(
        small_classifier(name, store), LabelledStream.of(store, CPU), config, RunFolder(folder), 0
    )


def embeddings(name, store, events=None, batch=20):
    """All events' embeddings (or some events') under the same initial weights."""
    model = small_classifier(name, labelled_stream())
    events = torch.arange(len(store)) if events is None else events
    return embed(model.encoder, LabelledStream.of(store, CPU), events, batch)


def test_later_events_and_labels_change_no_embedding(name):
    """Causal: with other events from event c on, and other labels from c - 1 on, all before c is embedded alike."""
    store, other, cut = labelled_stream(), labelled_stream(seed=9), 150
    number = torch.arange(len(store))
    later, edge = number >= cut, store.features.edge
    changed = EventStore.of(
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


def test_labels_change_no_embedding(name):
    """Another labelling of the same events: the same embeddings, so no model can read a label."""
    store = labelled_stream()
    flipped = replace(store, label=1 - store.label)
    assert torch.equal(embeddings(name, store), embeddings(name, flipped))


def test_cached_embeddings_are_the_recomputed_ones(name, tmp_path):
    """The table of a frozen backbone = embedding all events again; also after the head was trained."""
    own = training(name, tmp_path)
    own.fit()
    everything = torch.arange(len(own.data.store))
    table = own.embeddings().of(everything)
    assert torch.equal(table, embed(own.model.encoder, own.data, everything, QUICK.batch))


@pytest.mark.parametrize(
    ("name", "sampling"), [("tgat", "uniform"), ("tgn", "uniform"), ("cawn", "time_aware")]
)
def test_drawn_neighbours_are_the_same_whenever_evaluated(name, sampling):
    """Backbones that draw their neighbours give one embedding per event, whatever was drawn in between."""
    store = labelled_stream()
    data, encoder = LabelledStream.of(store, CPU), small_classifier(name, store, sampling=sampling).encoder
    everything = torch.arange(len(store))
    first = embed(encoder, data, everything, 40)
    torch.rand(7)
    assert torch.equal(embed(encoder, data, everything, 40), first)
    flipped = LabelledStream.of(replace(store, label=1 - store.label), CPU)
    assert torch.equal(embed(encoder, flipped, everything, 40), first)


def test_stateless_embeddings_do_not_depend_on_the_batch():
    """One event at a time or all at once: the same to 1e-6, for models without memory."""
    store = labelled_stream(events=120)
    data = LabelledStream.of(store, CPU)
    for name in TRAINABLE:
        encoder = small_classifier(name, store).encoder.eval()
        if encoder.stateful:
            continue
        whole = embed(encoder, data, torch.arange(120), 200)
        with torch.no_grad():
            for start, size in ((100, 1), (57, 4)):
                rows = store.select(torch.arange(start, start + size))
                part = data.encode(encoder, rows)
                torch.testing.assert_close(part, whole[start : start + size], rtol=0, atol=1e-6)


def test_memory_is_told_of_everything_before_the_first_event(name):
    """Embeddings of a later period = those of the whole stream where the batches end alike."""
    store = labelled_stream()
    whole = embeddings(name, store)
    torch.testing.assert_close(
        embeddings(name, store, torch.arange(160, 240)), whole[160:], rtol=0, atol=1e-6
    )


def test_memory_holds_only_what_is_strictly_earlier():
    """When a batch is asked, nothing of its first event's time or later has been observed."""
    store = labelled_stream()
    encoder = small_classifier("tgn", store).encoder
    data, latest, observe = LabelledStream.of(store, CPU), [float("-inf")], encoder.observe

    def watched(events):
        latest.extend(events.time.tolist())
        observe(events)

    encoder.observe = watched
    for rows in data.walk(encoder, torch.arange(len(store)), 7):
        data.encode(encoder, rows)
        assert max(latest) < float(rows.time[0])
    assert len(latest) > len(store) - 20


def test_a_frozen_backbone_keeps_its_weights_and_the_head_learns(name, tmp_path):
    """Frozen: no weight of the encoder moves or gets a gradient; every weight of the head moves."""
    own = training(name, tmp_path)
    encoder = {key: value.clone() for key, value in own.model.encoder.named_parameters()}
    head = {key: value.clone() for key, value in own.model.head.named_parameters()}
    own.fit()
    assert all(torch.equal(value, encoder[key]) for key, value in own.model.encoder.named_parameters())
    assert all(value.grad is None for value in own.model.encoder.parameters())
    assert not any(torch.equal(value, head[key]) for key, value in own.model.head.named_parameters())


def test_fine_tuning_trains_what_the_source_embedding_depends_on(name, tmp_path):
    """Fine-tuned: a weight moves if and only if the source embeddings of the training events have its gradient."""
    own = training(name, tmp_path, replace(QUICK, finetune=True))
    reached = set()
    for _, embedding in own.embeddings().train(QUICK.batch):
        own.model.zero_grad()
        (embedding * torch.randn_like(embedding)).sum().backward()
        reached |= {
            key
            for key, value in own.model.encoder.named_parameters()
            if value.grad is not None and bool(value.grad.any())
        }
    before = {key: value.detach().clone() for key, value in own.model.encoder.named_parameters()}
    own.model.zero_grad()
    own.train_epoch(Reporter())
    moved = {
        key for key, value in own.model.encoder.named_parameters() if not torch.equal(value, before[key])
    }
    assert reached
    assert moved == reached


def test_a_learnable_stream_is_learned(name, tmp_path):
    """Sources whose earlier events give their kind away are told apart: test AUC above 0.9.

    The backbone keeps its initial weights, so edge features are as wide as those are scaled for (decision 021).
    """
    store = labelled_stream()
    wide = replace(store.features, edge=store.features.edge.repeat(1, 4))
    config = replace(QUICK, epochs=60, patience=60)
    own = training(name, tmp_path, config, replace(store, features=wide))
    own.fit()
    assert own.evaluate(own.data.split.test).auc > 0.9


@pytest.mark.parametrize("name", ["dyg-mamba", "tgn"])
def test_fine_tuning_learns_too(name, tmp_path):
    """The same stream with the backbone trained along."""
    own = training(name, tmp_path, replace(QUICK, epochs=15, finetune=True))
    own.fit()
    assert own.evaluate(own.data.split.test).auc > 0.9


def test_dyg_mamba_of_the_task_looks_at_the_source_alone():
    """Without co-occurrence and mixer, another destination leaves the source's embedding as it is."""
    store = labelled_stream()
    data = LabelledStream.of(store, CPU)
    rows = store.select(torch.arange(100, 200))
    for name, alone in (("dyg-mamba", True), ("dygformer", False)):
        encoder = small_classifier(name, store).encoder.eval()
        with torch.no_grad():
            ours, other = (
                data.encode(encoder, batch) for batch in (rows, replace(rows, dst=rows.dst.roll(1)))
            )
        assert torch.allclose(ours, other, rtol=0, atol=1e-6) is alone


def test_the_best_epoch_is_kept_by_validation_auc_and_patience_ends_it(tmp_path):
    """Best = the last epoch to reach the highest validation AUC; `patience` epochs without it end the run."""
    own = training("tgat", tmp_path, NodeTrainConfig(epochs=50, batch=40, patience=3))
    aucs, calls = [0.6, 0.7, 0.7, 0.5, 0.6, 0.69], count()
    found = own.evaluate(own.data.split.val)
    own.evaluate = lambda events: replace(found, auc=aucs[next(calls)])
    own.fit()
    assert (own.progress.epoch, own.progress.best_epoch, own.progress.best_auc) == (6, 2, 0.7)
    assert load_checkpoint(own.run.best, own.model).best_epoch == 2
    assert [entry["val_auc"] for entry in own.run.metrics()] == aucs


def test_balance_weighs_both_classes_the_same(tmp_path):
    """Off, a positive weighs 1; on, negatives / positives of the training period."""
    label = LabelledStream.of(labelled_stream(), CPU).label[:168]
    assert float(training("tgat", tmp_path).weight) == 1.0
    weight = float(training("tgat", tmp_path, replace(QUICK, balance=True)).weight)
    assert weight == pytest.approx(float((1 - label).sum() / label.sum()))


def test_one_seed_gives_one_run(tmp_path):
    """Twice the same seed: the same weights, bit for bit."""
    runs = [training("tgn", tmp_path / str(number)) for number in range(2)]
    for own in runs:
        own.run.path.mkdir()
        own.fit()
    weights = [own.model.state_dict() for own in runs]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize(("finetune", "steps"), [(False, 2), (True, 7)])
def test_an_interrupt_ends_with_130_and_keeps_the_best_so_far(tmp_path, finetune, steps):
    """Asked to stop, the loop raises; what the finished epochs found is on disk."""
    own = training("tgat", tmp_path, NodeTrainConfig(epochs=50, batch=40, finetune=finetune))
    taken = []
    report = Reporter(step=lambda epoch, step: taken.append(step), stop=lambda: len(taken) >= steps)
    with pytest.raises(Interrupted, match="stopped") as stopped:
        own.fit(report)
    assert stopped.value.exit_code == 130
    assert own.run.best.exists() is (steps > own.steps_per_epoch)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch": 0}, {"patience": 0}, {"lr": 0.0}])
def test_settings_out_of_range_are_refused(wrong):
    """Counts below 1 and learning rates that are not positive."""
    with pytest.raises(ConfigError):
        NodeTrainConfig(**wrong)
