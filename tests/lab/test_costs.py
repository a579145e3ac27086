"""What an epoch costs, measured in part where it is long."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dygmamba.lab import job_runners

CPU = torch.device("cpu")


def slow(seconds, steps=40):
    """A fit whose step takes so long and does nothing."""

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
def test_an_epoch_on_a_cpu_is_told_from_some_steps_and_from_few_where_they_are_long(
    monkeypatch, limit, timed
):
    """However long a step is, so many are timed, and the epoch is as many times their median as it has steps."""
    monkeypatch.setattr(job_runners, "CPU_TIME_LIMIT", limit)
    found = job_runners.time_epoch(slow(0.01), epochs=2)
    assert (found["stepstimed"], found["steps"], found["parameters"]) == (timed, 40, 9)
    assert found["epoch_seconds"] >= 40 * 0.01


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a process's peak")
def test_what_an_earlier_job_of_the_process_held_is_not_in_a_later_ones_peak():
    """In a process of its own, whose memory is nobody else's."""
    code = """
import torch
from test_costs import costs, slow
held = torch.ones(150_000_000)
before = costs.timed(slow(0.0), epochs=2)["peak_mb"]
del held
assert costs.timed(slow(0.0), epochs=2)["peak_mb"] < before - 400
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
