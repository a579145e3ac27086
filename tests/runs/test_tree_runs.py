"""Boosted trees as a run: trained, resumed, opened and evaluated like any other model."""

import json
from dataclasses import replace

import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, FileError, Interrupted
from dygmamba.engine.checkpoint import load_best, read_checkpoint, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.history.view import PairBatch
from dygmamba.models.base import DatasetFacts
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run, resume_training, store_run_dataset
from dygmamba.runs.recipes import build_scorer
from dygmamba.runs.run_config import RunConfig
from forged_runs import forge_run
from observers import StepCounter
from raising import raises

CPU = torch.device("cpu")
SETTINGS = {"epochs": 3, "trees": 12, "rounds": 4, "least": 5, "scales": 3, "neighbors": 4}


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=900, communities=4)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    (run,) = dm.train(data, "trees", out=tmp_path_factory.mktemp("runs"), **SETTINGS)
    return run


def tensors(path):
    run = RunDirectory(path)
    return read_checkpoint(run, run.best)[0]


def test_a_run_has_what_every_run_has(trained):
    """Configuration, a line per epoch, results of both periods stamped with what was trained against, a page."""
    assert trained.config["train"]["train_negatives"] == "random"
    assert trained.metrics.num_rows == 3
    rows = trained.results.to_pylist()
    assert {row["train_negatives"] for row in rows} == {"random"}
    assert all(row["ap"] > 0.6 for row in rows if row["setting"] == "transductive")
    assert (trained.path / "report.html").exists()


def test_a_run_of_former_training_negatives_opens_and_is_not_continued(trained):
    """A stored run that names them scores and is evaluated to the same bits; training with them is refused."""
    run = forge_run(trained.path, trained.path.parent / "former", train={"train_negatives": "mixed-odds"})
    again = dm.open(run.path)
    assert again.score([(3, 17)]).equals(trained.score([(3, 17)]))
    rows, other = (one.evaluate("random").to_pylist() for one in (again, trained))
    assert [row["ap"] for row in rows] == [row["ap"] for row in other]
    assert {row["train_negatives"] for row in rows} == {"mixed-odds"}
    with raises("former-negatives", ConfigError):
        dm.resume(run.path, epochs=4)


@pytest.mark.parametrize("step", [5, 8])
def test_a_stopped_run_ends_with_the_same_bits(data, trained, tmp_path, step):
    """For all rounds after which it is stopped, borders of epochs included."""
    fit = start_link_run(data, "trees", 0, SETTINGS, CPU, tmp_path)
    counter = StepCounter()
    with pytest.raises(Interrupted):
        fit(counter, stop=lambda: counter.steps >= step)
    fit.run.unlock()
    store_run_dataset(data, tmp_path)
    again = resume_training(fit.run.path, CPU)
    again()
    whole, parts = tensors(trained.path), tensors(again.run.path)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_an_opened_run_predicts_and_ranks(data, trained):
    """Known and new nodes, before and after new events; nothing needs to be trained again."""
    run = dm.open(trained.path)
    later = float(data.store.time[-1]) + 10
    before = run.score([(3, 5, later), (3, "nobody", later)] if data.ids.kind != "int" else [(3, 5, later)])
    after = run.observe([(3, 5, later - 1)] * 3).score([(3, 5, later)])
    assert after["score"][0].as_py() > before["score"][0].as_py()
    ranked = run.rank([3, 4], k=3)
    assert ranked["rank"].to_pylist() == [1, 2, 3, 1, 2, 3]
    results = run.evaluate(negatives="random")
    kept = [row for row in trained.results.to_pylist() if row["split"] == "test"]
    assert [row["ap"] for row in results.to_pylist()] == [row["ap"] for row in kept]


def test_trees_with_other_features_are_refused(data, trained):
    """A run of a version with other features is an error, never a wrong score."""
    scorer, stream = opened_scorer(trained.path)
    pairs = PairBatch.from_pairs(data.store.src[:3], data.store.dst[:3], data.store.time[:3])
    view = stream.view(pairs, scorer.requests)
    scorer(view)
    scorer.asked += 1
    with raises("tree-features-changed", FileError):
        scorer(view)


def opened_scorer(path):
    run = open_run(path, CPU)
    return run.scorer, run.stream


def test_any_model_can_be_trained_against_seen_pairs(data, tmp_path):
    """The setting is recorded in config and results, of a network too."""
    small = {"epochs": 1, "length": 4, "width": 4, "blocks": 1, "states": 4}
    (run,) = dm.train(data, "dyg-mamba", out=tmp_path, train_negatives="mixed", **small)
    assert run.config["train"]["train_negatives"] == "mixed"
    assert set(run.results["train_negatives"].to_pylist()) == {"mixed"}
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["loss"] > 0


def test_the_contract_holds():
    """`dm.check_model` checks the trees like every model."""
    table = dm.check_model("trees", trees=4, rounds=2, scales=2)
    assert all(table["holds"].to_pylist())


def test_a_cached_table_is_summed_like_a_new_one(data, trained):
    """With fewer trees, more again, or changed ones: never the sums of before."""
    scorer, stream = opened_scorer(trained.path)
    pairs = PairBatch.from_pairs(data.store.src[-9:], data.store.dst[-9:], data.store.time[-9:])

    def asked():
        kept = scorer(stream.view(pairs, scorer.requests))
        scorer._cache.clear()
        assert torch.equal(scorer(stream.view(pairs, scorer.requests)), kept)

    every = int(scorer.grown)
    for count in (2, every, 3, every):
        scorer.grown.fill_(count)
        scorer(stream.view(pairs, scorer.requests))
        asked()
    scorer.value[0] += 1
    asked()


def test_a_run_of_an_earlier_version_has_no_transitions(data, tmp_path):
    """Its config does not name them; it opens with the features and trees it was trained with."""
    fit = start_link_run(data, "trees", 0, SETTINGS | {"transitions": 0}, CPU, tmp_path)
    sections = {name: dict(section) for name, section in fit.run.config().items() if name != "folder"}
    assert sections["model"].pop("transitions") == 0
    assert sections["model"].pop("max_rows") == 0 < fit.scorer.config.max_rows == 200_000
    fit.run.write_config(sections)
    old = build_scorer(RunConfig.read(RunDirectory(fit.run.path)), fit.stream)
    assert old.names == fit.scorer.names
    assert not any("followed" in name for name in old.names)
    assert old.config.max_rows == 1_000_000_000
    default = start_link_run(data, "trees", 0, SETTINGS, CPU, tmp_path).scorer
    assert any("followed" in name for name in default.names)


def test_a_checkpoint_is_as_large_as_its_trees(data, trained, tmp_path):
    """Whatever the largest number of trees; one with room for more, of an earlier version, loads the same trees."""
    (run,) = dm.train(data, "trees", out=tmp_path, **(SETTINGS | {"trees": 100_000}))
    own, other = tensors(trained.path), tensors(run.path)
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert len(other["model.feature"]) <= 12
    directory = RunDirectory(trained.path)
    stored, state = read_checkpoint(directory, directory.best)
    whole = {}
    for name, value in stored.items():
        more = 12 - len(value) if value.ndim == 2 else 0
        empty = value.new_full((more, *value.shape[1:]), -1 if name == "model.feature" else 0)
        whole[name] = torch.cat([value, empty]) if more else value
    scorer, stream = opened_scorer(trained.path)
    view = stream.view(
        PairBatch.from_pairs(data.store.src[-9:], data.store.dst[-9:], data.store.time[-9:]), scorer.requests
    )
    before = scorer(view)
    save_checkpoint(directory.best, whole, state, directory.fingerprint)
    wide = build_scorer(RunConfig.read(directory), stream)
    load_best(directory, wide)
    save_checkpoint(directory.best, stored, state, directory.fingerprint)
    assert torch.equal(wide(view), before)


def test_trees_of_another_size_are_refused(data, trained):
    """More trees than the settings allow, or other leaves: the checkpoint is of another model."""
    directory = RunDirectory(trained.path)
    scorer, stream = opened_scorer(trained.path)
    for name, value in (("trees", 2), ("leaves", 7)):
        small = type(scorer)(replace(scorer.config, **{name: value}), DatasetFacts.of(stream.store))
        with raises("wrong-model", FileError):
            load_best(directory, small)


def test_a_tree_is_grown_from_at_most_max_rows(data, tmp_path):
    """About so many; without a limit from a share of all rows."""
    rows = {}
    for most in (100, 10**9):
        fit = start_link_run(data, "trees", 0, SETTINGS | {"max_rows": most, "epochs": 1}, CPU, tmp_path)
        fit()
        rows[most] = fit.scorer.trees().cover[:, 0]
    assert float(rows[100].mean()) == pytest.approx(100, rel=0.2)
    assert float(rows[10**9].min()) > 500
