"""What a job will take, before it runs: from what the same or a like training took on the same kind of device.

The measurements are those of `measured.json`: seconds of an epoch, epochs to the end and memory, on an NVIDIA H200
alone or on one core of a server (docs/log.md). A stream of another size is taken to cost in proportion to its events, a
history of another length by a power of it. Where a model was not measured on a kind of device there is no estimate, and
the plan says so.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log
from typing import Any

from dygmamba.studies.job import Job

EPOCHS = {"robustness": 2.0, "similarity": 0.1, "node": 3.0}  # of a training, that these take
TIMING = 60.0  # seconds that a cost is measured in, whatever the model, its preparation included
RULE = (1.0, 100.0)  # seconds and megabytes of a rule
POWER = 0.6  # of the length, that an epoch's time grows by between two lengths that were measured
UNKNOWN = 1.0  # relative cost of what was never measured, for the order of jobs


@dataclass(frozen=True, slots=True)
class Guess:
    """Seconds alone on the device and megabytes; None where nothing like it was measured."""

    seconds: float | None
    megabytes: float | None


def guess(job: Job, device: str) -> Guess:
    """By the measurement nearest in length, scaled to the job's events, length and epochs."""
    if job.work == "heuristic":
        return Guess(*RULE)
    like = [one for one in measured() if one["model"] == job.model and one["device"] == device]
    if not like:
        return Guess(None, None)
    length, patch = (float(job.size.get(name, 1)) for name in ("length", "patch"))

    def far(one: dict[str, Any]) -> tuple[bool, float, float]:
        apart = (abs(log(one.get(name, 1) / own)) for name, own in (("length", length), ("patch", patch)))
        return (one["data"] != job.data, *apart)

    near = min(like, key=far)
    longer = (length / near.get("length", 1)) ** POWER
    epoch = near["epoch_seconds"] * longer * job.size.get("events", near["events"]) / near["events"]
    epochs = EPOCHS.get(job.work, min(near["epochs"], job.size.get("epochs", near["epochs"])))
    memory = near["peak_mb"]
    return Guess(
        TIMING if job.work == "cost" else epoch * epochs,
        None if memory is None else memory * max(1.0, longer),
    )


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
