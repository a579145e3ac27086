"""Boosted trees for labels of nodes: objectives, what they see, learning, resuming, and runs of every kind."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.splits import PUBLISHED_SPLIT
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.block_lists import EventRows
from dygmamba.history.counts import scale_label
from dygmamba.history.node_values import Meetings, NodeValueFeatures, NodeValueTable
from dygmamba.models.base import TargetFacts
from dygmamba.models.objectives import create_objective
from dygmamba.runs.node_training import start_direct_node_run
from dygmamba.runs.opening import open_run
from dygmamba.runs.recipes import hide_labels
from dygmamba.tasks.node import split_for_nodes
from dygmamba.tasks.node_targets import create_target
from node_cases import labelled_stream
from raising import raises

CPU = torch.device("cpu")
FAST = {"epochs": 3, "rounds": 4, "least": 5, "rate": 0.2, "scales": 3, "neighbors": 4}
LABELS = {  # of a source, given away by its earlier events' features or only by its earlier labels
    "binary": lambda store: store.label,
    "classes": lambda store: (store.src % 3).float() + 4,
    "regression": lambda store: 100 + 7.5 * (store.src % 4).float() + 0.25 * store.label,
}
WATCHED = {"binary": "auc", "classes": "macro_f1", "regression": "mae"}


def labelled_data(kind, store=None):
    store = labelled_stream(400) if store is None else store
    store = replace(store, label=LABELS[kind](store))
    return Dataset.from_events("small", store, NodeIds(pa.array(range(store.num_nodes))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The runs of a training of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        kind: dm.train(labelled_data(kind), "trees", task="node", out=folder, device="cpu", **FAST)
        for kind in LABELS
    }


def start(data, folder, **settings):
    return start_direct_node_run(data, "trees", FAST | settings, 0, CPU, folder, PUBLISHED_SPLIT)


@pytest.mark.parametrize(("kind", "outputs"), [("binary", 1), ("classes", 3), ("regression", 1)])
@pytest.mark.parametrize("balanced", [False, True])
def test_derivatives_are_those_of_the_loss(kind, outputs, balanced):
    """First derivatives by autograd; the base has none in total; second ones are at least 0."""
    weights = {"binary": (1.0, 3.0), "classes": (0.5, 1.0, 2.0), "regression": ()}[kind] if balanced else ()
    rng = torch.Generator().manual_seed(0)
    target = torch.randint(2 if kind == "binary" else 3, (50,), generator=rng).double()
    objective = create_objective(target, TargetFacts(kind, outputs, weights))
    base = objective.fit_base().repeat(50, 1)
    assert float(objective.derivatives(base)[..., 0].sum(0).abs().max()) < 1e-6
    score = torch.randn(50, outputs, generator=rng, dtype=torch.float64).requires_grad_()
    (50 * objective.loss(score)).backward()
    slopes = objective.derivatives(score.detach())
    torch.testing.assert_close(slopes[..., 0], score.grad)
    assert bool((slopes[..., 1] >= 0).all())
    plain = {
        "binary": lambda: binary_cross_entropy_with_logits(score[:, 0], target),
        "classes": lambda: cross_entropy(score, target.long()),
        "regression": lambda: (score[:, 0] - target).square().mean(),
    }
    if not balanced:
        torch.testing.assert_close(objective.loss(score), plain[kind]())


@pytest.mark.parametrize("kind", list(LABELS))
def test_a_learnable_stream_is_learned_and_reopened(kind, trained):
    """Better than without a tree; the same metrics and predictions after opening; a page that names the metric."""
    (run,) = runs = trained[kind]
    rows = {row["split"]: row for row in run.results.to_pylist()}
    better = rows["test"][WATCHED[kind]] - {"auc": 0.9, "macro_f1": 0.8, "mae": 4.0}[WATCHED[kind]]
    assert better < 0 if kind == "regression" else better > 0
    assert rows["test"].get("target", "binary") == kind
    again = dm.open(run.path, device="cpu")
    assert again.evaluate(split="test").to_pylist()[0][WATCHED[kind]] == rows["test"][WATCHED[kind]]
    assert again.classify().to_pylist() == run.classify().to_pylist()
    title = {"auc": "AUC", "macro_f1": "macro-F1", "mae": "MAE"}[WATCHED[kind]]
    page = (run.path / "report.html").read_text()
    assert f"Test {title}" in page
    assert f"Validation {title}" in page
    assert title in repr(runs)
    (table,) = dm.compare([run.path]).sections[0].tables
    assert table.columns[1] == title


def test_numbers_are_predicted_in_their_unit_and_ranked(trained):
    """Values between those of training, in descending order."""
    ranked = trained["regression"][0].classify(k=4).to_pandas()
    assert list(ranked.columns) == ["node", "time", "value", "rank"]
    assert ranked["value"].is_monotonic_decreasing
    assert ranked["value"].between(95, 130).all()


def changed_after(store, cut):
    """The stream with other events from `cut` on, and other labels from `cut - 1` on."""
    other, number = labelled_stream(len(store), seed=9), torch.arange(len(store))
    later, edge = number >= cut, store.features.edge
    return EventStore.from_columns(
        torch.where(later, other.src, store.src),
        torch.where(later, other.dst, store.dst),
        store.time,
        num_nodes=store.num_nodes,
        features=replace(store.features, edge=torch.where(later[:, None], -edge, edge)),
        label=torch.where(number >= cut - 1, 1 - store.label, store.label),
    )


@pytest.mark.parametrize("labels", [False, True])
def test_features_see_strictly_earlier_events_and_labels_only(labels, tmp_path):
    """Causal: other events from c on and other labels from c - 1 on change no feature before c.

    With `labels`, another label of an earlier event does change one; without it, no label does.
    """
    data, cut = labelled_data("binary"), 350
    fit = start(data, tmp_path, labels=labels)
    target = create_target(data.store, split_for_nodes(data.store))

    def features(store):
        own = replace(fit.stream, store=hide_labels(store, target if labels else None))
        pairs = fit.task.build_queries(own.store.select(torch.arange(cut)), own.store.dst[:cut])
        return fit.scorer.features(own.view(pairs, fit.scorer.requests))

    ours = features(data.store)
    assert ours.shape[1] == len(fit.scorer.names)
    assert torch.equal(features(changed_after(data.store, cut)), ours)
    flipped = features(replace(data.store, label=1 - data.store.label))
    assert torch.equal(flipped, ours) is not labels


def test_a_missing_label_is_zero_in_every_column():
    """An event without a label (nan) is shown as no class and no number; the others are as they were."""
    for kind in LABELS:
        store = labelled_data(kind).store
        target = create_target(store, split_for_nodes(store))
        known = hide_labels(store, target).features.edge[:, 2:]
        label = store.label.index_fill(0, torch.tensor([7]), torch.nan)
        found = hide_labels(replace(store, label=label), target).features.edge[:, 2:]
        assert found.shape[1] == target.outputs
        assert not found[7].any()
        assert torch.equal(found[8:], known[8:])


def test_first_meetings_are_the_first_of_their_key():
    """In time order, whatever the keys; one that was dropped is the first again."""
    meetings, key = Meetings(), np.array([3, 1, 3, 2, 1, 1])
    assert meetings.append(key).tolist() == [True, True, False, True, False, False]
    meetings.drop(np.array([3, 2]))
    assert meetings.append(np.array([2, 2, 3, 4])).tolist() == [True, False, False, True]


def test_the_order_of_simultaneous_events_is_irrelevant():
    """Means, last values and partners of a node by hand; the last value is the mean over its last instant."""
    src, dst = np.array([0, 0, 0, 1]), np.array([2, 3, 2, 3])
    time, value = np.array([0.0, 4.0, 4.0, 6.0]), np.array([[1.0], [2.0], [6.0], [9.0]], np.float32)
    request, found = NodeValueFeatures((2.0,), (0,)), []
    for order in ([0, 1, 2, 3], [0, 2, 1, 3]):
        table = NodeValueTable(request)
        table.append_rows(EventRows(src[order], dst[order], time, 4, edge=value[order]))
        ask = (np.array([0, 0]), np.array([3, 3]), np.array([6.0, 4.0]))
        found.append(dict(zip(request.names, table.compute_features(*ask).T, strict=True)))
    decay, label = math.exp(-4 / 2), scale_label(2.0)
    for name, expected in {
        "value 0 of the last event the source sent": [4.0, 1.0],
        f"mean of value 0 of the events the source sent, {label}": [(decay + 8) / (decay + 2), 1.0],
        "number of partners in the events the source sent": [math.log1p(2), math.log1p(1)],
        "value 0 of the last event the source received": [0.0, 0.0],
        "value 0 of the last event the destination received": [2.0, 0.0],
    }.items():
        assert found[0][name].tolist() == pytest.approx(expected)
    for name, column in found[0].items():
        np.testing.assert_allclose(found[1][name], column, rtol=1e-6)


@pytest.mark.parametrize(
    ("buffer", "value"), [("feature", 10_000), ("left", 0), ("value", torch.nan), ("grown", 10_000)]
)
def test_trees_that_no_training_gives_are_refused(buffer, value, trained):
    """A feature or a branch that is not there, a value that is no number, more trees than there are."""
    scorer = open_run(trained["classes"][0].path, CPU, task="node").scorer
    bank = scorer.output_banks[1]
    scorer.check_buffers()
    getattr(bank, buffer).view(-1)[0] = value
    with pytest.raises(ValueError, match=r"it has|its trees|different numbers"):
        scorer.check_buffers()
    bank.grown -= 1
    with pytest.raises(ValueError, match="different numbers"):
        scorer.check_buffers()


def test_a_damaged_or_unfitting_request_is_an_error(tmp_path):
    """No backbone to finetune, no embeddings, other feature names than stored, a config with no or another target."""
    data = labelled_data("binary")
    with raises("model-without-encoder", ConfigError):  # and nothing is trained
        dm.train(data, "walk-trees", task="node", out=tmp_path, device="cpu", trees=1)
    (run,) = (tmp_path / "small" / "walk-trees").iterdir()
    assert not RunDirectory(run).metrics()
    with raises("model-without-encoder", ConfigError):
        dm.train(data, "trees", task="node", finetune=True, out=tmp_path, device="cpu", **FAST)
    fit = start(data, tmp_path, epochs=1)
    fit()
    fit.scorer.layout += 1  # as trained with other features
    with raises("tree-features-changed", FileError):
        fit.score(fit.task.test)
    config = fit.run.path / "config.toml"
    text = config.read_text()
    dm.save(data, data_dir=tmp_path / "data")
    for changed in (
        text.replace("target = ", "other = "),
        text.replace('target = "binary"', 'target = "sets"'),
    ):
        assert changed != text
        config.write_text(changed)
        with raises("damaged-config", FileError):
            open_run(fit.run.path, CPU, tmp_path / "data", task="node")


def test_the_command_trains_and_predicts_classes(monkeypatch, capsys, tmp_path):
    """`train --task node --model trees` on a column of text, then `predict`: exit code 0, classes by name."""
    store = labelled_stream(300)
    rows = zip(store.src.tolist(), store.dst.tolist(), range(300), strict=True)
    lines = [f"{u},{v},{t},{('calm', 'loud', 'sad')[u % 3]}" for u, v, t in rows]
    (tmp_path / "moods.csv").write_text("src,dst,time,mood\n" + "\n".join(lines) + "\n")
    where = ("--data-dir", str(tmp_path))
    code, _, error = invoke(
        monkeypatch, capsys, "data", "import", str(tmp_path / "moods.csv"), "--label", "mood", *where
    )
    assert code == 0, error
    settings = FAST | {"labels": "true"}
    fast = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    words = (
        "train",
        "moods",
        "--task",
        "node",
        "--model",
        "trees",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "runs"),
    )
    code, out, error = invoke(monkeypatch, capsys, *words, *fast, *where)
    assert code == 0, error
    assert "macro-F1" in out
    (run,) = (tmp_path / "runs" / "moods" / "trees-node").iterdir()
    code, out, error = invoke(monkeypatch, capsys, "predict", str(run), "--nodes", "1,2", *where, "--json")
    assert code == 0, error
    assert "calibrat" not in error  # classes have no calibration that a user could add
    for row, expected in zip(json.loads(out)["predictions"], ("loud", "sad"), strict=True):
        scores = {name: row[f"uncalibrated_score {name}"] for name in ("calm", "loud", "sad")}
        assert sum(scores.values()) == pytest.approx(1.0, abs=1e-8)
        assert row["class"] == max(scores, key=scores.get) == expected
        assert row["uncalibrated_score"] == pytest.approx(max(scores.values()), abs=1e-8)


def test_two_states_are_explained_and_other_labels_refused(trained):
    """The contributions of earlier events add up to the logit; classes and numbers are one sentence."""
    found = trained["binary"][0].explain(3, orders=1)
    total = found.base + sum(reason.contribution for reason in found.reasons)
    assert total == pytest.approx(found.logit, abs=1e-6)
    with raises("target-without-explanation", ConfigError):
        trained["classes"][0].explain(3)
