"""The paper's model has its own settings only; runs that stored those of the extended model open as they were."""

import pytest

import dygmamba as dm
from dygmamba.config import build_config, find_preset, load_ablations
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import MODELS, configs
from dygmamba.models.stored_settings import STORED_DEFAULTS, update_stored_settings
from dygmamba.studies.studies import StudyRequest, plan_jobs
from forged_runs import forge_run
from raising import raises

TINY = {"epochs": 1, "length": 4, "width": 4, "time_dim": 4, "states": 2, "blocks": 1, "out": 8}
FIRST = STORED_DEFAULTS["dyg-mamba-counts"] | {
    "channels": list(configs.STACK_CHANNELS),
    "pair_features": [],
    "table_dropout": 0.3,
}  # what a run of dyg-mamba stored
EXTENDED = FIRST | {"channels": ["time", "decayed-counts"], "pair_features": ["walks"], "walk_dim": 8}
PAIRS = [(0, 21), (3, 25)]


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=300, communities=4)


def train(data, model, out, **more):
    (run,) = dm.train(data, model, device="cpu", out=out, overrides=TINY | more)
    return run


def test_the_settings_of_the_two_models_are_nested():
    paper, extended = (set(MODELS[name].settings) for name in ("dyg-mamba", "dyg-mamba-counts"))
    assert paper < extended
    assert set(MODELS["mamba"].settings) == paper
    with raises("unknown-setting", ConfigError):
        build_config(configs.DyGMambaConfig, {"walk_dim": 8})


@pytest.mark.parametrize("model", ["dyg-mamba", "mamba"])
def test_a_stored_run_with_settings_that_had_no_effect_is_the_same_run(data, tmp_path, model):
    run = train(data, model, tmp_path)
    former = dm.open(forge_run(run.path, run.path.with_name("former"), model=FIRST).path, device="cpu")
    assert former.score(PAIRS).equals(run.score(PAIRS))
    assert former.config["run"]["model"] == model
    assert dm.refit(former.path, device="cpu").config["model"] == run.config["model"]


def test_a_stored_run_with_parts_of_the_extended_model_opens_as_one(data, tmp_path):
    run = train(data, "dyg-mamba-counts", tmp_path, **EXTENDED)
    former = forge_run(run.path, run.path.with_name("former"), run={"model": "dyg-mamba"})
    rows = former.results()
    former.write_results([row | {"model": "dyg-mamba"} for row in rows])
    assert 'model = "dyg-mamba"\n' in former.path.joinpath("config.toml").read_text()
    opened = dm.open(former.path, device="cpu")
    assert opened.score(PAIRS).equals(run.score(PAIRS))
    assert opened.config["run"]["model"] == "dyg-mamba-counts"
    assert {row["model"] for row in RunDirectory(former.path).results()} == {"dyg-mamba-counts"}
    assert dm.resume(former.path, device="cpu", epochs=2).metrics.num_rows == 2


def test_settings_with_effect_are_not_dropped():
    """Where there is no run directory, such as in a blend, they are refused and not ignored."""
    for more in ({"pair_features": ["walks"]}, {"query_columns": True}):
        with raises("unknown-setting", ConfigError):
            build_config(configs.DyGMambaConfig, update_stored_settings("dyg-mamba", more))
    with raises("bad-channels", ConfigError):
        stored = update_stored_settings("dyg-mamba", {"channels": ["walks"]})
        build_config(configs.DyGMambaConfig, stored)


def test_every_ablation_is_trained_as_the_papers_model(data, tmp_path):
    """A variant with parts of the extended model has the loop settings and the length of the paper's."""
    save_dataset(data, tmp_path)
    jobs = plan_jobs("ablation", StudyRequest([data.name], seeds=(0,), data_dir=tmp_path))
    assert [job.about["variant"] for job in jobs] == ["full", *load_ablations()]
    full = jobs[0].settings
    shared = [name for name in full if name not in MODELS["dyg-mamba"].settings] + ["length"]
    assert find_preset("dyg-mamba-counts", data.name)["lr"] != full["lr"]
    for job in jobs:
        assert {name: job.settings[name] for name in shared} == {name: full[name] for name in shared}
        assert (job.model == "dyg-mamba-counts") is ("pair_features" in job.settings)
