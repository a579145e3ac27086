"""A run goes on with the bits it would have had, or says that it does not."""

import warnings

import pytest
import torch

from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.engine.fit import Reporter
from dygmamba.runs import provenance
from dygmamba.runs.link_training import resume_link_run, start_link_run
from torture_cases import CPU, SECONDS, SETTINGS, state, tiny_dataset


class Stop(Exception):
    """Ends a training from inside."""


@pytest.fixture(autouse=True)
def as_before():
    """Threads and mode are the process's; leave them as they were."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def begun(tmp_path):
    """A function that trains with so many threads, to the end or until the first epoch is done."""
    dataset = tiny_dataset(tmp_path / "data")

    def begin(threads: int, stop: bool):
        torch.set_num_threads(threads)
        fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path / "runs")

        def epoch(_):
            if stop:
                raise Stop

        try:
            fit(Reporter(epoch=epoch))
        except Stop:
            fit.run.unlock()
        return fit.run

    return begin


def test_deterministic_mode_restores_the_threads(begun, tmp_path):
    """Begun with one thread (or two), stopped, resumed where another number is set: the end of the undisturbed run."""
    torch.use_deterministic_algorithms(True)
    for threads, others in (
        ((1, 2), (2, 1)) if SECONDS else ((1, 2),)
    ):  # two threads wait long on a busy machine
        whole, run = begun(threads, stop=False), begun(threads, stop=True)
        torch.set_num_threads(others)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resume_link_run(run.path, CPU, tmp_path / "data")()
        assert torch.get_num_threads() == threads
        same = state(run) == state(whole)  # compared apart: a difference would be printed byte by byte
        assert same, threads


def test_other_threads_are_one_sentence(begun, tmp_path):
    """Outside of that mode the user's threads hold, and the run says that its last bits will be others."""
    run = begun(1, stop=True)
    torch.set_num_threads(2)
    with pytest.warns(
        DygWarning, match=r"was begun with threads 1 and would go on with threads 2: .* OMP_NUM_THREADS=1"
    ):
        resume_link_run(run.path, CPU, tmp_path / "data")
    assert torch.get_num_threads() == 2


def test_another_processor_is_refused_or_said(begun, tmp_path, monkeypatch):
    """What cannot be restored is an error where every bit was asked for, and a warning elsewhere."""
    run = begun(1, stop=True)
    monkeypatch.setattr(provenance, "_describe_processor", lambda: "abacus")
    with pytest.warns(DygWarning, match="would go on with processor abacus"):
        resume_link_run(run.path, CPU, tmp_path / "data").run.unlock()
    torch.use_deterministic_algorithms(True)
    with pytest.raises(ConfigError, match="would go on with processor abacus, which gives other bits"):
        resume_link_run(run.path, CPU, tmp_path / "data")


def test_runs_of_earlier_versions_go_on(begun, monkeypatch):
    """What a run did not write down is not held against it."""
    run = begun(1, stop=True)
    about = {key: value for key, value in run.config()["made_with"].items() if key in ("torch", "python")}
    monkeypatch.setattr(type(run), "config", lambda _: {"made_with": about})
    torch.set_num_threads(2)
    provenance.check_environment(run, CPU)
