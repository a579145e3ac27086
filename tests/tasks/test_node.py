from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from dygmamba.config import build_config, find_node_preset, find_preset, load_presets
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.models import MODELS
from dygmamba.models.classifiers import NodeHead
from dygmamba.runs.link_training import separate_settings
from dygmamba.tasks.node import NodeTask, split_for_nodes
from dygmamba.tasks.node_targets import (
    ClassTarget,
    RegressionTarget,
    compute_positive_weight,
    create_target,
    infer_kind,
    node_metrics,
)
from node_cases import labelled_stream
from raising import raises


def test_the_split_is_chronological_and_keeps_every_node():
    """Training has all events up to the 70 % quantile of the times, whatever their nodes."""
    store = labelled_stream()
    split = split_for_nodes(store)
    assert torch.equal(torch.cat([split.train, split.val, split.test]), torch.arange(len(store)))
    assert float(store.time[split.train].max()) < float(store.time[split.val].min())
    assert float(store.time[split.val].max()) < float(store.time[split.test].min())
    assert not split.touching_new_nodes(store, split.test).numel()


def test_queries_are_events_with_their_labels():
    """Source, destination, time and label of each training event; the evaluation sets are the later periods."""
    store, cpu = labelled_stream(), torch.device("cpu")
    split = split_for_nodes(store)
    task, events = (
        NodeTask.create(store, split, cpu, create_target(store, split)),
        store.select(split.train[5:25]),
    )
    pairs = task.build_queries(events, task.draw_negatives(0, 0)[5:25])
    for asked, true in ((pairs.src, events.src), (pairs.dst, events.dst), (pairs.time, events.time)):
        assert torch.equal(asked, true)
    assert torch.equal(pairs.label, store.label[split.train[5:25]])
    assert torch.equal(pairs.group, split.train[5:25])
    for name, period in (("val", split.val), ("test", split.test)):
        assert torch.equal(task.evaluation_set(name).pairs.label, store.label[period])
        assert float(torch.cat(task.evaluation_set(name).earlier).max()) < float(period.min())


def test_metrics_are_pooled_over_all_events():
    """By hand: one positive above three negatives, one above one of them: AUC 4/6, AP (1 + 2/4) / 2."""
    found = node_metrics(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]))
    assert found == pytest.approx({"auc": 4 / 6, "ap": 0.75, "n": 5, "positives": 2})


def test_the_positive_weight_balances_the_classes():
    """Weight times positives = negatives."""
    assert compute_positive_weight(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])) == 4.0


def test_the_head_is_the_published_one():
    """Width d -> 80 -> 10 -> 1, dropout 0.1 after both hidden layers."""
    head = NodeHead(172)
    assert [tuple(p.shape) for p in head.parameters() if p.ndim == 2] == [(80, 172), (10, 80), (1, 10)]
    assert [layer.p for layer in head.layers if isinstance(layer, torch.nn.Dropout)] == [0.1, 0.1]
    assert head(torch.randn(7, 172)).shape == (7,)


@pytest.mark.parametrize(
    ("change", "kind", "code", "value"),
    [
        (lambda label, split: None, "auto", "no-labels", ""),
        (lambda label, split: label + torch.arange(len(label)) % 2, "binary", "invalid-labels", "has 3"),
        (
            lambda label, split: torch.zeros_like(label),
            "auto",
            "one-class",
            "training period has 0 positives",
        ),
        (
            lambda label, split: label.index_fill(0, split.train, 1.0),
            "auto",
            "one-class",
            "training period has 168 positives",
        ),
        (
            lambda label, split: label.index_fill(0, split.val, 0.0),
            "auto",
            "one-class",
            "validation period has 0 positives",
        ),
        (lambda label, split: torch.zeros_like(label), "classes", "one-class", "has 1 classes"),
        (lambda label, split: torch.zeros_like(label), "regression", "constant-labels", "equal"),
    ],
)
def test_labels_that_cannot_be_learned_are_an_error(change, kind, code, value):
    """No labels, not two values of a binary target, or one class or value only."""
    store = labelled_stream()
    split = split_for_nodes(store)
    with raises(code, EventError) as error:
        create_target(replace(store, label=change(store.label, split)), split, kind)
    assert value in str(error.value)


def test_the_kind_of_a_target_follows_from_the_labels():
    """Two values: binary; at most 50 whole numbers: classes; anything else: regression."""
    numbers = torch.arange(60.0)
    for label, kind in (
        (numbers % 2, "binary"),
        (numbers % 2 + 4.5, "binary"),
        (numbers % 3, "classes"),
        (numbers % 50, "classes"),
        (numbers % 51, "regression"),
        (numbers % 3 + 0.5, "regression"),
    ):
        assert infer_kind(label) == kind
    store = labelled_stream()
    split = split_for_nodes(store)
    with raises("unknown-target", ConfigError):
        create_target(store, split, "ranking")
    with raises("balance-without-classes", ConfigError):
        create_target(store, split, "regression", balance=True)


def test_the_test_period_does_not_choose_the_kind():
    """A third label that only test events have makes no classes of two states."""
    store = labelled_stream()
    split = split_for_nodes(store)
    later = replace(store, label=store.label.index_fill(0, split.test[:5], 9.0))
    assert create_target(later, split) == create_target(store, split)


def test_a_class_that_training_lacks_counts_as_an_error():
    """Classes are those of training; accuracy and macro-F1 equal scikit-learn's with the unknown class as another."""
    store = labelled_stream()
    split = split_for_nodes(store)
    label = (store.src % 3).float().index_fill(0, split.test[:5], 9.0)
    target = create_target(replace(store, label=label), split, balance=True)
    assert isinstance(target, ClassTarget)
    assert target.values == (0.0, 1.0, 2.0)
    count = torch.bincount(label[split.train].long())
    torch.testing.assert_close(torch.tensor(target.weights) * count, torch.full((3,), len(split.train) / 3))
    true = target.encode(label[split.test])
    assert true[:5].tolist() == [3.0] * 5
    output = torch.randn(len(true), 3, generator=torch.Generator().manual_seed(0))
    found, guess = target.metrics(output, true), output.argmax(dim=1)
    assert found["accuracy"] == pytest.approx(accuracy_score(true, guess))
    assert found["macro_f1"] == pytest.approx(f1_score(true, guess, average="macro"))
    constant = target.constant_metrics(target.encode(label[split.train]), true)
    most_frequent = torch.full_like(guess, int(count.argmax()))
    assert constant == pytest.approx(
        {
            "accuracy": accuracy_score(true, most_frequent),
            "macro_f1": f1_score(true, most_frequent, average="macro"),
        }
    )
    assert target.is_better({"macro_f1": 0.5}, {"macro_f1": 0.5})
    assert not target.is_better({"macro_f1": 0.4}, {"macro_f1": 0.5})


def test_errors_of_numbers_are_in_the_unit_of_the_labels():
    """Mean and scale are those of training; decoding inverts encoding; a lower error is better."""
    store = labelled_stream()
    split = split_for_nodes(store)
    label = 1000 + 50 * torch.randn(len(store), generator=torch.Generator().manual_seed(0))
    target = create_target(replace(store, label=label), split)
    assert isinstance(target, RegressionTarget)
    encoded = target.encode(label)
    assert float(encoded[split.train].std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(target.decode(encoded).float(), label)
    found = target.metrics(encoded + 0.1, encoded)
    assert found["mae"] == pytest.approx(0.1 * target.scale, rel=1e-4)
    train, test = label[split.train].double(), label[split.test].double()
    constant = target.constant_metrics(encoded[split.train], encoded[split.test])
    assert constant["mae"] == pytest.approx(float((test - train.median()).abs().mean()), rel=1e-5)
    assert constant["rmse"] == pytest.approx(float((test - train.mean()).square().mean().sqrt()), rel=1e-5)
    assert not target.is_better({"mae": 2.0}, {"mae": 1.0})


@pytest.mark.parametrize("dataset", ["wikipedia", "reddit", "mooc", "mine"])
@pytest.mark.parametrize(
    "model", sorted({*load_presets("node.toml"), *(n for n, s in MODELS.items() if s.trainable)})
)
def test_every_preset_of_the_task_builds_its_model(model, dataset):
    """Each table names a registered model and settings that model has."""
    _, own = separate_settings(find_node_preset(model, dataset))
    build_config(MODELS[model].config, own)


def test_the_tasks_presets_win_over_the_link_ones():
    """[model] of the task over [model.dataset] of links; [model.dataset] of the task over both."""
    assert find_preset("dyg-mamba", "mooc")["length"] == 256
    assert find_node_preset("dyg-mamba", "mooc") == {
        "length": 64,
        "channels": ["node", "edge", "time"],
        "mixer": "none",
    }
    assert find_node_preset("graphmixer", "reddit")["neighbors"] == 10
    assert find_node_preset("graphmixer", "wikipedia")["neighbors"] == 30
    assert find_node_preset("tgat", "reddit")["sampling"] == "uniform"
    assert find_node_preset("dygformer", "reddit") == {"length": 64, "patch": 2, "dropout": 0.2}
