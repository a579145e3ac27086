"""The registry and the settings of every model: complete, readable without torch, and equal to what is implemented."""

import json
import subprocess
import sys
import tarfile
from dataclasses import fields, replace
from typing import get_args

import pytest

import dygmamba as dm
from commands import invoke
from dygmamba.config import build_config, find_preset
from dygmamba.core import choices
from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.core.setting_descriptions import describe_allowed, describe_settings
from dygmamba.data.generate.process import LAWS
from dygmamba.data.readers.options import FORMATS, TIME_UNITS
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig
from dygmamba.lab import STUDY_NAMES
from dygmamba.lab.studies import STUDIES
from dygmamba.models import COMPOSED, MODELS, aliases, configs, find_model, require_model
from dygmamba.nn.column_features import COLUMN_FEATURES
from dygmamba.nn.encodings import CHANNELS, PAIR_CHANNELS
from dygmamba.nn.history_features import HISTORY_CHANNELS
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.pair_history import PAIR_FEATURES
from dygmamba.nn.selection import SELECTIONS
from dygmamba.nn.ssm import DIRECTIONS, SKIPS
from dygmamba.nn.steps import STEPS
from dygmamba.nn.tokens import QUERIES, SPAN_KINDS
from dygmamba.ops.scan.reference import RULES
from dygmamba.ops.spectral_bound import MOST_ROWS
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.link import SETTINGS, SPLITS
from dygmamba.tasks.losses import LOSSES
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES
from golden_cases import OLD_RUNS, PAIRS
from raising import raises

LIGHT = """
import sys
import dygmamba.models as models
from dygmamba.api import precheck
from dygmamba.core.setting_descriptions import describe_settings
from dygmamba.data.generate.config import GeneratorConfig
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig

configs = [spec.config for spec in (*models.MODELS.values(), *models.COMPOSED.values())]
for config in (*configs, LinkFitConfig, NodeFitConfig, GeneratorConfig):
    describe_settings(config)
    config()
models.require_model("tgn")
assert len(models.MODELS) >= 19
print(*sorted({"torch", "numba", "numpy", "pyarrow", "triton"} & set(sys.modules)))
"""


@pytest.fixture
def fresh_warnings():
    """Warnings about former names appear once per process."""
    aliases._warn_renamed.cache_clear()
    yield
    aliases._warn_renamed.cache_clear()


@pytest.mark.slow
def test_registry_and_settings_are_read_without_torch():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_every_setting_has_a_meaning(name):
    descriptions = describe_settings(MODELS[name].config)
    assert set(descriptions) == set(MODELS[name].settings)
    assert all(entry.get("meaning") and describe_allowed(entry) for entry in descriptions.values())


@pytest.mark.parametrize("config", [LinkFitConfig, NodeFitConfig])
def test_every_setting_of_training_has_a_meaning(config):
    assert all(entry.get("meaning") for entry in describe_settings(config).values())


@pytest.mark.parametrize("name", [*MODELS, *COMPOSED])
def test_every_builder_can_be_imported(name):
    assert callable({**MODELS, **COMPOSED}[name].build.load())


def test_descriptions_are_plain_values():
    described = describe_settings(configs.DyGMambaConfig)
    length = described["length"]
    assert length.pop("meaning") == "tokens per sequence, including the query node"
    assert length == {"default": 32, "type": "int", "low": 1, "high": 1_000_000}
    assert described["dropout"]["below"] is True
    assert described["rule"]["choices"] == ["zoh", "euler"]
    assert described["channels"]["list"] == "str"
    assert describe_allowed(described["length"]) == "1 to 1,000,000"
    assert describe_allowed(described["dropout"]) == "0 to below 1"


def test_names_are_those_of_the_implementations():
    """Each list of names that is readable without torch equals the registry that implements it."""
    of = {field.name: get_args(field.type) for field in fields(configs.DyGMambaConfig)}
    pairs = [
        (configs.CHANNELS, [*CHANNELS, *PAIR_CHANNELS, *HISTORY_CHANNELS]),
        (configs.PAIR_FEATURES, [*PAIR_FEATURES, *COLUMN_FEATURES]),
        (of["step"], STEPS),
        (of["selection"], SELECTIONS),
        (of["rule"], RULES),
        (of["direction"], DIRECTIONS),
        (of["skip"], SKIPS),
        (of["mixer"], PAIR_MIXERS),
        (of["pool"], POOLS),
        (of["query"], QUERIES),
        (of["span"], SPAN_KINDS),
        (choices.NEGATIVES, SAMPLERS),
        (choices.SPLITS, SPLITS),
        (choices.SETTINGS, SETTINGS),
        (choices.LAWS, LAWS),
        (choices.FORMATS, FORMATS),
        (choices.TIME_UNITS, TIME_UNITS),
        (get_args(choices.LossName), LOSSES),
        (get_args(choices.TrainNegativesName), TRAINING_NEGATIVES),
        (STUDY_NAMES, STUDIES),
    ]
    for listed, implemented in pairs:
        assert sorted(listed) == sorted(implemented)
    assert configs.MAX_STATES == MOST_ROWS


def test_a_former_model_name_works_and_warns_once(fresh_warnings, recwarn):
    assert find_model("fading-mamba") is require_model("fading-mamba") is MODELS["dyg-mamba-counts"]
    assert find_preset("fading-mamba", "uci") == find_preset("dyg-mamba-counts", "uci") != {}
    (warning,) = recwarn
    assert warning.category is DygWarning
    assert all(name in str(warning.message) for name in ("'fading-mamba'", "'dyg-mamba-counts'", "0.2"))


def test_former_values_of_settings_become_current_ones(fresh_warnings, recwarn):
    old = {"channels": ["time", "fading-counts", "fading-cooccurrence"], "pair_features": ["fading-pair"]}
    new = build_config(configs.DyGMambaCountsConfig, old | aliases.STORED_DEFAULTS["dyg-mamba-counts"] | old)
    assert (new.channels, new.pair_features) == (
        ("time", "decayed-counts", "decayed-cooccurrence"),
        ("decayed-pair",),
    )
    assert len(recwarn) == 3
    stored = aliases.update_stored_settings("dyg-mamba-counts", old)
    assert build_config(configs.DyGMambaCountsConfig, stored) == replace(new, edge_units="raw")
    assert len(recwarn) == 3


def test_a_former_name_cannot_be_registered():
    from dygmamba.models import add_model

    with raises("model-name-taken", ConfigError):
        add_model("fading-mamba", MODELS["trees"])


def test_a_stored_run_with_former_names_opens_with_one_warning(fresh_warnings, recwarn, tmp_path):
    """The goldens check its scores to the last bit; the run keeps its name."""
    with tarfile.open(OLD_RUNS) as tar:
        tar.extractall(tmp_path, filter="data")
    run = dm.open(tmp_path / "fading-mamba", device="cpu", data_dir=tmp_path / "data")
    assert run.score(PAIRS).num_rows == len(PAIRS)
    assert run.config["run"]["model"] == "fading-mamba"
    assert [str(warning.message) for warning in recwarn if warning.category is DygWarning] == [
        "model 'fading-mamba' is now called 'dyg-mamba-counts'; the old name works until 0.2"
    ]


def test_a_new_run_gets_the_current_name(fresh_warnings, tmp_path):
    tiny = {"epochs": 1, "length": 4, "width": 4, "time_dim": 4, "walk_dim": 8, "states": 2}
    data = dm.generate(nodes=40, events=300, communities=4)
    with pytest.warns(DygWarning, match="dyg-mamba-counts"):
        (run,) = dm.train(data, "fading-mamba", device="cpu", out=tmp_path, **tiny)
    assert run.config["run"]["model"] == "dyg-mamba-counts" == run.path.parent.name
    assert run.config["model"]["channels"] == list(configs.DyGMambaCountsConfig().channels)


def test_a_former_name_works_on_the_command_line(fresh_warnings, monkeypatch, capsys):
    code, out, err = invoke(monkeypatch, capsys, "models", "fading-mamba", "--json")
    assert (code, json.loads(out)["name"]) == (0, "dyg-mamba-counts")
    assert err.count("is now called") == 1
