"""Estimates of what a study costs, before it runs."""

import json
from itertools import pairwise
from time import process_time

import pytest

import dygmamba as dm
from commands import invoke
from dygmamba.runs import training_cost
from dygmamba.studies.job import Job, ResultCache
from dygmamba.studies.job_runners import JOB_RUNNERS, JobContext
from dygmamba.studies.reproduction import estimate_cost
from dygmamba.studies.studies import StudyRequest, list_trained_models, plan_jobs

SIZE = {"events": 10_000, "length": 32, "patch": 1, "epochs": 5}


def job(model="dyg-mamba", work="link", **size):
    return Job(work, "somewhere", "", model, 0, {}, size=SIZE | size)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", list_trained_models())
def test_every_model_has_an_estimate_on_cpu_and_gpu(model, device):
    found = estimate_cost(job(model), device)
    assert found.seconds > 0
    assert found.megabytes > 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", list_trained_models())
def test_time_is_proportional_to_events_and_grows_with_epochs(model, device):
    """Up to the number of epochs after which the measured trainings stopped by themselves; the evaluation is once."""
    once = estimate_cost(job(model), device).seconds
    assert estimate_cost(job(model, events=20_000), device).seconds == pytest.approx(2 * once)
    three, six, nine = (estimate_cost(job(model, epochs=epochs), device).seconds for epochs in (3, 6, 9))
    assert nine - six == pytest.approx(six - three)
    assert three < nine < 3.001 * three
    assert estimate_cost(job(model, epochs=10**6), device).seconds < 200 * once


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_longer_history_takes_longer(device):
    """Measured lengths and lengths between them."""
    found = [
        estimate_cost(job(length=length), device) for length in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    ]
    assert all(longer.seconds > shorter.seconds for shorter, longer in pairwise(found))


def test_a_slower_machine_takes_longer(monkeypatch):
    """For trees, which were measured in processor time: twice as slow, twice as long."""
    monkeypatch.setattr(training_cost, "measure_slowness", lambda: 1.0)
    once = estimate_cost(job("trees"), "cpu").seconds
    monkeypatch.setattr(training_cost, "measure_slowness", lambda: 2.0)
    assert estimate_cost(job("trees"), "cpu").seconds == pytest.approx(2 * once)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["trees", "walk-trees"])
def test_an_estimate_is_within_a_factor_of_two(model, tmp_path):
    """For a stream that was not measured: training and evaluation, in processor time, so that load hardly matters."""
    seconds, expected = {}, {}
    for events in (1_000, 12_000):  # the first one loads the kernels
        dm.save(
            dm.generate(nodes=300, events=events, communities=6, name=f"stream{events}"), data_dir=tmp_path
        )
        (planned,) = plan_jobs("link", StudyRequest([f"stream{events}"], [model], data_dir=tmp_path))
        expected[events] = estimate_cost(planned, "cpu").seconds
        start = process_time()
        JOB_RUNNERS["link"](planned, JobContext(ResultCache(tmp_path / "results"), "cpu", tmp_path))
        seconds[events] = process_time() - start
    ratio = seconds[12_000] / expected[12_000]
    assert 0.5 < ratio < 2, f"{seconds[12_000]:.2f} s instead of {expected[12_000]:.2f} s"


def test_a_model_without_measurements_has_no_estimate():
    assert estimate_cost(job("somebody-elses"), "cpu").seconds is None


def test_a_dry_run_shows_time_and_memory_of_every_run(monkeypatch, capsys, tmp_path):
    """As a table in readable units, as JSON in seconds and megabytes; the last line is their sum."""
    words = ("reproduce", "link", "--datasets", "generated", "--models", "recency,tcl", "--device", "cpu")
    words += ("--out", str(tmp_path), "--dry-run")
    code, out, _ = invoke(monkeypatch, capsys, *words)
    assert code == 0
    assert "2 runs, 0 done, 2 to do" in out
    assert "on the CPU, one after another" in out.splitlines()[-1]
    _, out, _ = invoke(monkeypatch, capsys, *words, "--json")
    for run in json.loads(out)["missing"]:
        assert run["seconds"] > 0
        assert run["megabytes"] > 0
