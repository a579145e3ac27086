"""The measured cost of an epoch, from some of its steps if it is long."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dygmamba.studies import job_runners

CPU = torch.device("cpu")


def slow(seconds, steps=40):
    """A trainer whose steps take this many seconds and do nothing."""

    def step(batch):
        time.sleep(seconds)
        return torch.zeros(())

    return SimpleNamespace(
        stream=SimpleNamespace(device=CPU),
        scorer=torch.nn.Linear(2, 3),
        executor=SimpleNamespace(step=step),
        steps_per_epoch=steps,
        epoch=lambda number: None,
        batch=lambda epoch, number: number,
    )


@pytest.mark.parametrize(("limit", "timed"), [(0.0, job_runners.MIN_STEPS), (60.0, job_runners.CPU_STEPS)])
def test_an_epoch_on_a_cpu_is_extrapolated_from_some_steps(monkeypatch, limit, timed):
    """The epoch takes the median step times its number of steps; if steps are long, fewer of them are timed."""
    monkeypatch.setattr(job_runners, "CPU_TIME_LIMIT", limit)
    found = job_runners.time_epoch(slow(0.01), epochs=2)
    assert (found["stepstimed"], found["steps"], found["parameters"]) == (timed, 40, 9)
    assert found["epoch_seconds"] >= 40 * 0.01


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a process's peak")
def test_the_peak_of_a_job_does_not_include_earlier_jobs_of_the_process():
    """Measured in a new process, whose memory no other test has used."""
    code = """
import torch
from test_costs import job_runners, slow
held = torch.ones(150_000_000)
before = job_runners.time_epoch(slow(0.0), epochs=2)["peak_mb"]
del held
assert job_runners.time_epoch(slow(0.0), epochs=2)["peak_mb"] < before - 400
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
