"""Estimates of what a study costs, before it runs."""

import json
from itertools import pairwise

import pytest

from commands import invoke
from dygmamba.lab.job import Job
from dygmamba.lab.reproduction import estimate_cost
from dygmamba.lab.studies import list_trained_models

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
def test_time_is_proportional_to_events_and_epochs(model, device):
    """Up to the number of epochs after which the measured trainings stopped by themselves."""
    once = estimate_cost(job(model), device).seconds
    assert estimate_cost(job(model, events=20_000), device).seconds == pytest.approx(2 * once)
    assert estimate_cost(job(model, epochs=10), device).seconds == pytest.approx(2 * once)
    assert estimate_cost(job(model, epochs=10**6), device).seconds < 200 * once


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_longer_history_takes_longer(device):
    """Measured lengths and lengths between them."""
    found = [
        estimate_cost(job(length=length), device) for length in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    ]
    assert all(longer.seconds > shorter.seconds for shorter, longer in pairwise(found))


def test_a_model_without_measurements_has_no_estimate():
    assert estimate_cost(job("somebody-elses"), "cpu").seconds is None


def test_a_dry_run_shows_time_and_memory_of_every_run(monkeypatch, capsys, tmp_path):
    """As a table in readable units, as JSON in seconds and megabytes."""
    words = ("reproduce", "link", "--datasets", "generated", "--models", "recency,tcl", "--device", "cpu")
    words += ("--out", str(tmp_path), "--dry-run")
    code, out, err = invoke(monkeypatch, capsys, *words)
    assert code == 0
    assert "2 runs, 2 to do" in out
    assert "one after another" in err
    _, out, _ = invoke(monkeypatch, capsys, *words, "--json")
    for run in json.loads(out)["missing"]:
        assert run["seconds"] > 0
        assert run["megabytes"] > 0
