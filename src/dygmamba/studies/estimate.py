"""What a job will take, before it runs: from what the same or a like training took on the same kind of device.

The measurements are those of `measured.json`: seconds of an epoch, epochs to the end and memory, on an NVIDIA H200
alone or on one or two cores of a server (docs/log.md). Where a model was not measured on a kind of device there is no
estimate, and the plan says so; nothing is scaled from one stream to another of another size but by its length.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dygmamba.studies.job import Job

WEIGHT = {
    "heuristic": 0.0,
    "robustness": 0.05,
    "similarity": 0.02,
    "node": 0.1,
    "cost": 0.05,
}  # of a training
UNKNOWN = 1.0  # relative cost of what was never measured, for the order of jobs


@dataclass(frozen=True, slots=True)
class Guess:
    """Seconds alone on the device and megabytes; None where nothing like it was measured."""

    seconds: float | None
    megabytes: float | None


def guess(job: Job, device: str) -> Guess:
    """By the measurement nearest in length, scaled to the job's events, length and epochs."""
    like = [one for one in measured() if one["model"] == job.model and one["device"] == device]
    weight = WEIGHT.get(job.work, 1.0)
    if weight == 0.0:
        return Guess(1.0, 100.0)
    if not like:
        return Guess(None, None)
    length = float(job.settings.get("length", 1))
    same = [one for one in like if one["data"] == job.data] or like
    near = min(same, key=lambda one: abs(one.get("length", 1) - length))
    scale = (length / near.get("length", 1)) ** near.get("power", 0.6)
    epochs = min(near["epochs"], float(job.settings.get("epochs", near["epochs"])))
    memory = near["peak_mb"]
    return Guess(
        near["epoch_seconds"] * scale * epochs * weight, None if memory is None else memory * max(1.0, scale)
    )


def costliest_first(jobs: list[Job], device: str) -> list[Job]:
    """The order in which workers are kept busy to the end."""

    def weight(job: Job) -> float:
        found = guess(job, device).seconds
        return UNKNOWN * float(job.settings.get("length", 1)) if found is None else found

    return sorted(jobs, key=lambda job: -weight(job))


@cache
def measured() -> list[dict[str, Any]]:
    """Every measurement."""
    return json.loads(files("dygmamba.studies").joinpath("measured.json").read_text("utf-8"))
