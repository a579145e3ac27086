"""A full or failing disk at any call of the writer: one sentence, and the run ends as if nothing had been."""

import random
import warnings

import pytest

from dygmamba.core.errors import DygWarning, FileError
from dygmamba.core.files import writing
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import resume_training
from torture_cases import CPU, ERRORS, SETTINGS, CountingDisk, run_in, seeds, state


@pytest.fixture(scope="module")
def calls(dataset, tmp_path_factory):
    """How many calls an undisturbed run makes."""
    disk, real = CountingDisk(), writing.disk
    writing.disk = disk
    try:
        start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path_factory.mktemp("counted"))()
    finally:
        writing.disk = real
    return disk.calls


def test_a_run_survives_an_error_at_any_call(dataset, data, expected, calls, tmp_path, monkeypatch):
    """For all calls k and errors e, once or from then on: FileError; on a good disk it ends bit for bit the same."""
    real = writing.disk
    for seed in seeds("failing disk, training", 3):
        rng = random.Random(seed)
        failing = CountingDisk(rng.randint(1, calls), rng.choice(ERRORS), rng.random() < 0.5)
        root = tmp_path / str(seed)
        monkeypatch.setattr(writing, "disk", failing)
        with pytest.raises(FileError, match=r"cannot write .*; \w+") as caught:
            start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, root)()
        assert "\n" not in str(caught.value)
        monkeypatch.setattr(writing, "disk", real)
        run = run_in(root)
        if run is None:
            assert failing.fail < 20
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DygWarning)
            resume_training(run.path, CPU, data)()
        assert state(run) == expected, f"seed {seed}, call {failing.fail}"
        assert failing.lasting or not list(root.rglob("*.part"))
