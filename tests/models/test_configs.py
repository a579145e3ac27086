"""The registry and the settings of every model: complete, readable without torch, and equal to what is implemented."""

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from dygmamba.core import choices
from dygmamba.core.setting_descriptions import describe_allowed, describe_settings
from dygmamba.data.generate.process import LAWS
from dygmamba.data.readers.options import FORMATS
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig
from dygmamba.history.negatives import SAMPLERS
from dygmamba.models import COMPOSED, MODELS, configs
from dygmamba.nn.encodings import CHANNELS, PAIR_CHANNELS
from dygmamba.nn.history_features import HISTORY_CHANNELS
from dygmamba.nn.mixers import PAIR_MIXERS, POOLS
from dygmamba.nn.pair_history import PAIR_FEATURES
from dygmamba.nn.selection import SELECTIONS
from dygmamba.nn.ssm import DIRECTIONS, SKIPS
from dygmamba.nn.steps import STEPS
from dygmamba.nn.tokens import QUERIES, SPAN_KINDS
from dygmamba.ops.projections import MOST_ROWS
from dygmamba.ops.scan.reference import RULES
from dygmamba.studies import STUDY_NAMES
from dygmamba.studies.studies import STUDIES
from dygmamba.tasks.losses import LOSSES
from dygmamba.tasks.training_negatives import TRAINING_NEGATIVES

LIGHT = """
import sys
import dygmamba.models as models
from dygmamba.api.requests import data, evaluation, prediction, training
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
        (configs.PAIR_FEATURES, [*PAIR_FEATURES, "node-features", "columns"]),
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
        (get_args(choices.LawName), LAWS),
        (choices.FORMATS, FORMATS),
        (get_args(choices.LossName), LOSSES),
        (get_args(choices.StoredNegativesName)[:-2], TRAINING_NEGATIVES),
        (STUDY_NAMES, STUDIES),
    ]
    for listed, implemented in pairs:
        assert sorted(listed) == sorted(implemented)
    assert configs.MAX_STATES == MOST_ROWS
