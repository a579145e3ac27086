"""A generated stream holds what was asked, in the same bytes every time."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dygmamba.cli.data import generate
from dygmamba.core.errors import ConfigError
from dygmamba.data.generate import stream as module
from dygmamba.data.generate.process import LAWS, compile_simulation
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream, simulate
from dygmamba.data.storage.dataset import load_dataset
from dygmamba.data.storage.library import generate_default_dataset

configs = st.builds(
    GeneratorConfig,
    seed=st.integers(0, 99),
    nodes=st.integers(8, 40),
    events=st.integers(1, 60),
    communities=st.integers(1, 4),
    law=st.sampled_from(sorted(LAWS)),
    half_life=st.floats(1e-3, 1e6),
    novelty=st.floats(1e-3, 10.0),
    noise=st.floats(0.0, 1.0),
    drift=st.sampled_from([0.0, 1e-4]),
    roam_share=st.sampled_from([0.0, 0.5]),
    activity=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
    popularity=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
    memory=st.integers(1, 8),
    pace=st.sampled_from([0.5, 7.0, 1e6]),
    ties=st.sampled_from([0.0, 0.5]),
    origin=st.sampled_from([-3.3, 0.0, 1.08e9]),
)


@settings(max_examples=40, deadline=None)
@given(config=configs)
def test_a_stream_has_the_counts_ids_and_order_that_were_asked(config):
    """For all configs: e events in time order, ids below n, no self-loop, labels 0 or 1."""
    store = generate_stream(config)
    assert len(store) == config.events
    assert store.num_nodes == config.nodes
    assert bool((store.src != store.dst).all())
    assert store.label is not None
    assert set(store.label.tolist()) <= {0.0, 1.0}
    assert abs(float(store.time[0]) - config.origin) <= config.grid
    if config.ties == 0.0:
        assert bool((store.time.diff() > 0).all())


@settings(max_examples=20, deadline=None)
@given(config=configs)
def test_the_compiled_loop_equals_the_plain_one(config):
    """For all configs: Numba's walk and Python's walk over the same draws give the same columns."""
    fast = simulate(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compile_simulation", lambda law: compile_simulation(law).py_func)
        slow = simulate(config)
    for left, right in zip(fast, slow, strict=True):
        assert left.tobytes() == right.tobytes()


def test_a_seed_is_a_stream():
    """The same seed gives the same bytes, another seed another stream."""
    first, again, other = (simulate(GeneratorConfig(seed=seed)) for seed in (7, 7, 8))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    assert all(a.tobytes() != b.tobytes() for a, b in zip(first, other, strict=True))


def test_the_embedded_dataset_is_the_default_config():
    store, same = generate_default_dataset().store, generate_stream(GeneratorConfig())
    assert torch.equal(store.dst, same.dst)
    assert torch.equal(store.time, same.time)


def test_edge_features_tell_the_community():
    """Averaged over a community's events, the features are its code: every entry is near +1 or -1."""
    config = GeneratorConfig(edge_dim=3)
    store, run = generate_stream(config), simulate(config)
    assert store.features.edge.shape == (config.events, 3)
    means = np.stack([store.features.edge.numpy()[run.home == c].mean(0) for c in range(config.communities)])
    assert np.abs(np.abs(means) - 1.0).max() < 0.15
    assert torch.equal(store.dst, generate_stream(replace(config, edge_dim=0)).dst)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("law", "linear"),
        ("nodes", 11),
        ("nodes", 240.0),
        ("events", 0),
        ("events", True),
        ("half_life", 0.0),
        ("half_life", float("nan")),
        ("novelty", 0.0),
        ("noise", 1.5),
        ("noise", "much"),
        ("drift", 1.0),
        ("tail", 1.0),
        ("ties", 1.0),
        ("origin", 1e15),
        ("seed", -1),
    ],
)
def test_a_bad_parameter_is_named(field, value):
    """A parameter out of range or of the wrong kind is a ConfigError that names it."""
    with pytest.raises((ConfigError, TypeError), match=field):  # TypeError where annotations are checked
        GeneratorConfig(**{field: value})


@pytest.fixture(scope="module")
def app():
    """The command alone, as `dygmamba data` registers it."""
    app = typer.Typer()
    app.command()(generate)
    return app


def test_the_command_saves_the_stream_of_its_options(app, tmp_path):
    """Options and --set together make the config; the file holds exactly its stream."""
    line = ["--out", "mine", "--nodes", "30", "--events", "200", "--law", "power", "--seed", "5"]
    answer = CliRunner().invoke(app, [*line, "--set", "ties=0.5", "--data-dir", str(tmp_path), "--json"])
    told = json.loads(answer.stdout)
    store = load_dataset(tmp_path / "mine.safetensors").store
    config = GeneratorConfig(**told["config"])
    assert (config.nodes, config.events, config.law, config.seed, config.ties) == (30, 200, "power", 5, 0.5)
    assert torch.equal(store.dst, generate_stream(config).dst)


@pytest.mark.parametrize("setting", ["memory", "colour=3", "memory=many"])
def test_the_command_refuses_a_setting_it_does_not_know(app, tmp_path, setting):
    """--set wants key=value with a known key and a value of its kind."""
    answer = CliRunner().invoke(app, ["--out", "mine", "--set", setting, "--data-dir", str(tmp_path)])
    assert isinstance(answer.exception, ConfigError)
    assert not list(tmp_path.iterdir())
