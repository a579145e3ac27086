"""Blends of runs: their scores, their validation AP, their contents, and runs that cannot be blended."""

import json

import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.data.events.splits import chronological_split
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.scoring import Ranker
from dygmamba.runs.blending import create_blend, enumerate_shares, find_best_weights
from dygmamba.runs.opening import open_run
from dygmamba.tasks.link import build_link_set
from raising import raises
from trained import TREES, copy_run, read_letters


@pytest.fixture(scope="module")
def data():
    return read_letters()


@pytest.fixture(scope="module")
def parts(letter_trees_run, network_run, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [copy_run(run, root) for run in (letter_trees_run, network_run)]


@pytest.fixture(scope="module")
def both(parts, tmp_path_factory):
    return dm.blend([part.path for part in parts], out=tmp_path_factory.mktemp("blends"))


def scores_of(run):
    """Logits of a run for each pair of its test set."""
    opened = open_run(run.path, torch.device("cpu"), dataset=run.data)
    evaluation_set = build_link_set(opened.stream.store, opened.stream.split, "test")
    return score_evaluation_set(
        opened.scorer, opened.stream, evaluation_set, opened.rule, opened.seed
    ).double()


def test_trees_alone_blend_too(letter_trees_runs, tmp_path):
    """A blend of models that are trained without gradients."""
    both = dm.blend([run.path for run in letter_trees_runs], out=tmp_path)
    first, second, total = (scores_of(run) for run in (*letter_trees_runs, both))
    weights = both.config["model"]["weights"]
    assert torch.allclose(weights[0] * first + weights[1] * second, total)


def validated(run):
    """Its AP on the validation period."""
    rows = run.results.to_pylist()
    return next(row["ap"] for row in rows if row["split"] == "val" and row["setting"] == "transductive")


def test_the_score_of_a_blend_is_the_weighted_sum_of_its_parts(parts, both):
    """Of every pair of the test, in logits."""
    *scores, total = (scores_of(run) for run in (*parts, both))
    weights = both.config["model"]["weights"]
    assert sum(weights) == pytest.approx(1)
    assert torch.allclose(sum(weight * score for weight, score in zip(weights, scores, strict=True)), total)


def test_on_validation_no_part_is_better(parts, both):
    """Each part alone is among the sums that are tried."""
    assert validated(both) >= max(validated(part) for part in parts)


def test_a_refitted_blend_is_the_blend_of_refitted_parts(parts, tmp_path):
    """With the same weights, on every event; without the runs it was made of it is an error."""
    both = dm.blend([part.path for part in parts], out=tmp_path)
    made = dm.refit(both.path)
    refitted = [dm.open(path) for path in made.config["run"]["blend_of"]]
    assert [run.config["run"]["refit_of"] for run in refitted] == [str(part.path) for part in parts]
    assert made.config["model"]["weights"] == both.config["model"]["weights"]
    assert made.config["run"]["refit_of"] == str(both.path)
    assert (made.finished, made.results.num_rows) == (True, 0)
    assert all(
        run.path.is_relative_to(tmp_path) for run in refitted
    )  # beside the blend, wherever the parts are
    total, *scores = (late_logits(run) for run in (made, *refitted))
    weights = both.config["model"]["weights"]
    assert torch.allclose(sum(weight * score for weight, score in zip(weights, scores, strict=True)), total)


def late_logits(run):
    """Logits of a run for some pairs after the last event."""
    opened = open_run(run.path, torch.device("cpu"), dataset=run.data)
    store = opened.stream.store
    times = store.time[-1:].repeat(8) + 60
    ranker = Ranker(opened.scorer, opened.stream, opened.seed)
    return ranker.logits(store.src[-8:], store.dst[-8:], times).double()


def test_all_weights_that_are_tried_add_up_to_one():
    """They are not negative; each part alone and the mean of two are among them."""
    for count in (2, 3, 4):
        found = enumerate_shares(count)
        assert all(min(one) >= 0 and sum(one) == pytest.approx(1) for one in found)
        assert len(set(found)) == len(found)
        assert {tuple(float(k == n) for k in range(count)) for n in range(count)} <= set(found)
    assert (0.5, 0.5) in enumerate_shares(2)


def test_among_equally_good_weights_the_mean_is_chosen(data):
    """Next to a perfect score, a constant changes nothing, and its opposite gets a small weight."""
    evaluation_set = build_link_set(data.store, chronological_split(data.store), "val")
    perfect = evaluation_set.pairs.label.double()
    weights, found = find_best_weights([perfect, torch.zeros_like(perfect)], evaluation_set)
    assert (weights, found["ap"]) == ((0.5, 0.5), 1)
    weights, found = find_best_weights([perfect, -3 * perfect], evaluation_set)
    assert weights[0] > 0.75
    assert found["ap"] == 1


def test_a_blend_is_a_run_like_any_other(data, both):
    """It contains the weights and settings of its parts, is evaluated again with the same results, and ranks."""
    again = dm.resume(both.path)
    assert again.results == both.results
    assert json.loads(both.config["model"]["settings"][0])["trees"] == TREES["trees"]
    assert both.rank(["ann"], k=2).num_rows == 2


def test_runs_that_do_not_fit_together_are_refused(data, parts, both, trees_run, tmp_path):
    """Another dataset, another split, a run on all events, a blend, the same run twice, one run."""
    (cut,) = dm.train(data, "trees", out=tmp_path, split=(0.6, 0.2, 0.2), **TREES)
    whole = dm.refit(parts[0].path)
    for runs, code in {
        (parts[0].path, trees_run.path): "blend-other-dataset",
        (parts[0].path, cut.path): "blend-other-split",
        (parts[0].path, whole.path): "no-validation-period",
        (parts[0].path, both.path): "blend-of-blend",
        (parts[0].path, parts[0].path): "blend-repeated-run",
        (parts[0].path,): "blend-run-count",
    }.items():
        with raises(code):
            dm.blend(runs, out=tmp_path)


def test_the_command_creates_the_same_run(parts, both, tmp_path, monkeypatch, capsys):
    """`dygmamba blend` ends with the same results, as a table or as JSON."""
    monkeypatch.chdir(tmp_path)
    code, out, errors = invoke(monkeypatch, capsys, "blend", *(str(part.path) for part in parts), "--json")
    assert code == 0, errors
    rows = json.loads(out)["results"]
    assert [row["ap"] for row in rows] == [row["ap"] for row in both.results.to_pylist()]
    assert "best on the validation period" in errors


def test_a_run_of_weight_zero_is_left_out_of_the_blend(data, parts, letter_trees_runs, tmp_path):
    """Its score would be computed in vain; two runs are kept, whatever their weights."""
    runs = (*parts, letter_trees_runs[1])
    opened = [open_run(run.path, torch.device("cpu"), dataset=data) for run in runs]
    evaluation_set = build_link_set(opened[0].stream.store, opened[0].stream.split, "val")
    label = evaluation_set.pairs.label.double()
    half = torch.arange(len(label)) % 2 == 0
    first, second = torch.where(half, label, 0.5), torch.where(half, 0.5, label)  # perfect together only
    noise = 1e3 * torch.arange(len(label)).double()  # the smallest weight spoils the sum
    for scores, expected in (
        ([first, -10 * label, second], ("trees", "trees")),
        ([noise, label, noise**2], ("trees", "dyg-mamba")),
    ):
        config = create_blend(
            opened, *find_best_weights(scores, evaluation_set), tmp_path / expected[-1]
        ).run.config()
        assert tuple(config["model"]["parts"]) == expected
        assert len(config["model"]["weights"]) == len(config["run"]["blend_of"]) == len(expected)
        assert sum(config["model"]["weights"]) == pytest.approx(1)
