"""What a job will take, before it runs: from what the same or a like training took on the same kind of device.

The measurements are those of `measured.json`: seconds of an epoch, epochs to the end and memory, on an NVIDIA H200
alone or on two cores of a server (docs/log.md). A stream of another size is taken to cost in proportion to its events,
a history of another length what lies between those that were measured. A model that was not measured has no estimate,
and the plan says so.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from dygmamba.studies.job import Job

EPOCHS = {"robustness": 2.0, "similarity": 0.1, "node": 3.0}  # of a training, that these take
TIMING = 60.0  # seconds that a cost is measured in, whatever the model, its preparation included
RULE = (1.0, 100.0)  # seconds and megabytes of a rule
POWER = 0.6  # of the length, by which costs grow beyond those that were measured
UNKNOWN = 1.0  # relative cost of what was never measured, for the order of jobs


@dataclass(frozen=True, slots=True)
class Guess:
    """Seconds alone on the device and megabytes; None where nothing like it was measured."""

    seconds: float | None
    megabytes: float | None


def guess(job: Job, device: str) -> Guess:
    """By measurements of the same model, scaled to the job's events, length and epochs."""
    if job.work == "heuristic":
        return Guess(*RULE)
    like = [one for one in measured() if one["model"] == job.model]
    if not like:
        return Guess(None, None)
    patched = job.size.get("patch", 1) > 1
    # the nearer, where there is any: trees are grown by cores wherever they are, and most were measured on one stream
    like = [one for one in like if one["device"] == device] or like
    like = [one for one in like if one["data"] == job.data] or like
    like = [one for one in like if (one.get("patch", 1) > 1) == patched] or like
    length = float(job.size.get("length", 1))
    memory = _at(length, [(one.get("length", 1), one["peak_mb"]) for one in like])
    if job.work == "cost":
        return Guess(TIMING, memory)
    event = _at(length, [(one.get("length", 1), one["epoch_seconds"] / one["events"]) for one in like])
    most = float(max(one["epochs"] for one in like))
    epochs = EPOCHS[job.work] if job.work in EPOCHS else min(most, job.size.get("epochs", most))
    return Guess(event * job.size.get("events", float(like[0]["events"])) * epochs, memory)


def _at(length: float, points: Iterable[tuple[float, float]]) -> float:
    """A cost at a length: between two that were measured by the power that joins them, beyond them by POWER."""
    points = sorted(points)
    lengths, costs = zip(*points, strict=True)
    near = float(np.clip(length, lengths[0], lengths[-1]))
    cost = float(np.exp(np.interp(np.log(near), np.log(lengths), np.log(costs))))
    return cost * (length / near) ** POWER


def costliest_first(jobs: list[Job], device: str) -> list[Job]:
    """The order in which workers are kept busy to the end."""

    def weight(job: Job) -> float:
        found = guess(job, device).seconds
        return UNKNOWN * float(job.size.get("length", 1)) if found is None else found

    return sorted(jobs, key=lambda job: -weight(job))


@cache
def measured() -> list[dict[str, Any]]:
    """Every measurement."""
    return json.loads(files("dygmamba.studies").joinpath("measured.json").read_text("utf-8"))
