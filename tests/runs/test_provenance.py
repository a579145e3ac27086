"""A resumed run computes the same bits as an undisturbed one, or warns that it does not."""

import warnings

import pytest
import torch

from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.core.progress import EpochCallback
from dygmamba.runs import provenance
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import resume_training
from raising import raises
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
    """A function that trains with a number of threads, to the end or until the first epoch is done."""
    dataset = tiny_dataset(tmp_path / "data")

    def begin(threads: int, stop: bool):
        torch.set_num_threads(threads)
        fit = start_link_run(dataset, "dyg-mamba", 0, SETTINGS, CPU, tmp_path / "runs")

        def epoch(_):
            if stop:
                raise Stop

        try:
            fit(EpochCallback(epoch))
        except Stop:
            fit.run.unlock()
        return fit.run

    return begin


def test_deterministic_mode_restores_the_threads(begun, tmp_path):
    """Started with one thread (or two), stopped, resumed with another number: the same end as the undisturbed run."""
    torch.use_deterministic_algorithms(True)
    for threads, others in (
        ((1, 2), (2, 1)) if SECONDS else ((1, 2),)
    ):  # two threads wait long on a busy machine
        whole, run = begun(threads, stop=False), begun(threads, stop=True)
        torch.set_num_threads(others)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resume_training(run.path, CPU, tmp_path / "data")()
        assert torch.get_num_threads() == threads
        assert provenance.is_deterministic(run)  # `dygmamba.resume` restores the mode from it
        same = state(run) == state(whole)  # compared apart: a difference would be printed byte by byte
        assert same, threads


def test_another_number_of_threads_is_a_warning(begun, tmp_path):
    """Outside of deterministic mode, the user's threads are used, and a warning says that the last bits differ."""
    run = begun(1, stop=True)
    torch.set_num_threads(2)
    with pytest.warns(
        DygWarning, match=r"started with threads 1 and would continue with threads 2: .* OMP_NUM_THREADS=1"
    ):
        resume_training(run.path, CPU, tmp_path / "data")
    assert torch.get_num_threads() == 2


def test_another_processor_is_an_error_or_a_warning(begun, tmp_path, monkeypatch):
    """It cannot be restored: an error in deterministic mode, a warning otherwise."""
    run = begun(1, stop=True)
    monkeypatch.setattr(provenance, "_describe_processor", lambda: "abacus")
    with pytest.warns(DygWarning, match="would continue with processor abacus"):
        resume_training(run.path, CPU, tmp_path / "data").run.unlock()
    torch.use_deterministic_algorithms(True)
    with raises("environment-changed", ConfigError) as caught:
        resume_training(run.path, CPU, tmp_path / "data")
    assert "abacus" in str(caught.value)


def test_runs_of_earlier_versions_can_be_resumed(begun, monkeypatch):
    """Only what a run recorded is compared."""
    run = begun(1, stop=True)
    about = {key: value for key, value in run.config()["made_with"].items() if key in ("torch", "python")}
    monkeypatch.setattr(type(run), "config", lambda _: {"made_with": about})
    torch.set_num_threads(2)
    provenance.check_environment(run, CPU)
