"""Small runs that a test session trains once, when a test first needs them; its worker processes share them.

Tests only read these runs. A test that writes into a run directory, or beside it, takes a copy.
"""

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

import dygmamba as dm
from letters import COLUMNS, SMALL, make_letters

TREES = {"trees": 6, "rounds": 3, "epochs": 2, "least": 5, "scales": 3, "neighbors": 4, "device": "cpu"}

folder: Path  # where the runs of this session are


@pytest.fixture(scope="session", autouse=True)
def set_folder(tmp_path_factory) -> None:
    """Use a folder of the test session, which is the parent of the folders of its worker processes."""
    global folder
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "trained"
    folder.mkdir(exist_ok=True)


def train_once(name: str, train: Callable[[Path], Sequence[dm.Run]]) -> dm.Runs:
    """Return the runs of this name; the first process that needs them trains them, others wait for it."""
    place, paths = folder / name, folder / f"{name}.txt"
    with FileLock(folder / f"{name}.lock"):
        if not paths.exists():
            shutil.rmtree(place, ignore_errors=True)  # of a training that failed
            paths.write_text("\n".join(str(run.path) for run in train(place)))
    return dm.Runs([dm.Run(Path(path), "cpu") for path in paths.read_text().splitlines()])


def copy_run(run: dm.Run, out: Path) -> dm.Run:
    """Copy a run together with its dataset into the folder `out`."""
    stored = run.path.parents[1]
    shutil.copytree(stored, out / stored.name, dirs_exist_ok=True)
    return dm.Run(out / run.path.relative_to(stored.parent), "cpu")


@functools.cache
def generate_stream() -> dm.Dataset:
    return dm.generate(nodes=30, events=300, communities=3)


@functools.cache
def read_letters() -> dm.Dataset:
    """The events of `letters` as a table that was never imported: names, dates, a feature and a label."""
    return dm.read(make_letters(), **COLUMNS, features="words", label="bad", name="letters")


@functools.cache
def load_trees_run() -> dm.Run:
    """Two boosted trees on the generated stream."""

    def train(out: Path) -> dm.Runs:
        return dm.train(generate_stream(), "trees", epochs=1, rounds=2, device="cpu", out=out)

    return train_once("trees", train)[0]


@pytest.fixture(scope="session")
def trees_run() -> dm.Run:
    return load_trees_run()


@pytest.fixture(scope="session")
def network_runs() -> dm.Runs:
    """A small DyG-Mamba on the letters, with two seeds."""
    return train_once("network", lambda out: dm.train(read_letters(), seeds=range(2), out=out, **SMALL))


@pytest.fixture(scope="session")
def network_run(network_runs) -> dm.Run:
    return network_runs[0]


@pytest.fixture(scope="session")
def letter_trees_runs() -> dm.Runs:
    """Six boosted trees on the letters, with two seeds."""
    settings = TREES | {"seeds": range(2)}
    return train_once("letter-trees", lambda out: dm.train(read_letters(), "trees", out=out, **settings))


@pytest.fixture(scope="session")
def letter_trees_run(letter_trees_runs) -> dm.Run:
    return letter_trees_runs[0]


@pytest.fixture(scope="session")
def memory_run() -> dm.Run:
    """A model with a node memory on the letters."""
    settings = {"epochs": 1, "neighbors": 4, "time_dim": 4, "device": "cpu"}
    return train_once("memory", lambda out: dm.train(read_letters(), "tgn", out=out, **settings))[0]


@pytest.fixture(scope="session")
def node_run(network_run) -> dm.Run:
    """A classifier of the sources of the letters on the weights of `network_run`."""
    settings = {"task": "node", "backbone": network_run.path, "epochs": 1, "device": "cpu"}
    return train_once("node", lambda out: dm.train(read_letters(), out=out, **settings))[0]
