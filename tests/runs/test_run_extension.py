"""A run that gets more epochs is the run that would have been started with them."""

import re

import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from raising import raises

TREES = {"trees": 30, "rounds": 3, "least": 5, "scales": 2, "neighbors": 2}
NETWORK = {
    "length": 4,
    "width": 4,
    "states": 2,
    "blocks": 1,
    "time_dim": 4,
    "batch": 100,
    "lr": 0.01,
}


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=30, events=400, communities=3)


def same(first, second):
    """Weights, best and last, optimizer, generators, epochs and results."""
    folders = [RunDirectory(path) for path in (first, second)]
    for name in ("best", "last"):
        one, other = (read_checkpoint(folder, getattr(folder, name)) for folder in folders)
        assert one[0].keys() == other[0].keys()
        assert all(torch.equal(one[0][key], other[0][key]) for key in one[0])
        assert (one[1].epoch, one[1].best_epoch, one[1].stale) == (
            other[1].epoch,
            other[1].best_epoch,
            other[1].stale,
        )
    for rows in ((folder.metrics() for folder in folders), (folder.results() for folder in folders)):
        kept = [
            [{key: row[key] for key in row if key not in ("run", "seconds", "train_seconds")} for row in own]
            for own in rows
        ]
        assert kept[0] == kept[1]
    assert folders[0].config()["train"] == folders[1].config()["train"]


@pytest.mark.parametrize(("model", "settings"), [("dyg-mamba", NETWORK), ("trees", TREES)])
def test_more_epochs_give_the_run_that_had_them_from_the_start(data, tmp_path, model, settings):
    """Bit for bit, of a finished run: weights, optimizer, generators, metrics and results."""
    (whole,) = dm.train(data, model, epochs=4, patience=50, out=tmp_path / "whole", **settings)
    (part,) = dm.train(data, model, epochs=2, patience=50, out=tmp_path / "part", **settings)
    longer = dm.resume(part.path, epochs=4)
    assert longer.finished
    same(longer.path, whole.path)


def test_more_patience_is_exact_too_and_more_epochs_alone_change_nothing(data, tmp_path):
    """A run that stopped early does not train further; with more patience it continues as if it had had it."""
    hard = TREES | {"rate": 1.0, "leaves": 31, "least": 1}
    (part,) = dm.train(data, "trees", epochs=6, patience=1, out=tmp_path / "part", **hard)
    done = part.metrics.num_rows
    assert done < 6
    assert dm.resume(part.path, epochs=7).metrics.num_rows == done
    (whole,) = dm.train(data, "trees", epochs=7, patience=3, out=tmp_path / "whole", **hard)
    longer = dm.resume(part.path, patience=3)
    assert longer.metrics.num_rows > done
    same(longer.path, whole.path)


def test_a_setting_that_cannot_change_is_refused_by_name(data, tmp_path):
    """Settings of model or loop, fewer epochs than are done, less patience; the same value again is no change."""
    (run,) = dm.train(data, "trees", epochs=2, out=tmp_path, **TREES)
    for settings, code, words in (
        ({"leaves": 7}, "setting-fixed", "`leaves` .*it is 15, got 7"),
        ({"lr": 1.0}, "setting-fixed", "`lr`"),
        ({"depth": 1}, "setting-fixed", "`depth` .*no such setting"),
        ({"epochs": 1}, "extension-too-short", "`epochs` must be at least 2.*got 1"),
        ({"patience": 2}, "extension-too-short", "`patience` must be at least 8"),
    ):
        with raises(code, ConfigError) as caught:
            dm.resume(run.path, **settings)
        assert re.search(words, str(caught.value))
    with raises("setting-of-wrong-type", ConfigError):
        dm.resume(run.path, epochs="many")
    assert run.finished
    assert not (run.path / "extended.toml").exists()
    assert dm.resume(run.path, leaves=15, epochs=2).results == run.results


def test_an_extension_belongs_to_its_run(data, tmp_path):
    """The extension of another run, or a damaged one, is an error."""
    first, second = dm.train(data, "trees", seeds=(0, 1), epochs=1, out=tmp_path, **TREES)
    dm.resume(first.path, epochs=2)
    text = (first.path / "extended.toml").read_text()
    (second.path / "extended.toml").write_text(text)
    with raises("wrong-extension", FileError):
        _ = second.config
    (second.path / "extended.toml").write_text(text.replace("epochs = 2", "epochs = 3"))
    with raises("damaged-config", FileError):
        _ = second.config
