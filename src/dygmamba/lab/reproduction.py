"""What a job will take, before it runs: from what the same or a like training took on the same kind of device.

The measurements are those of `measured.json`: seconds of an epoch, epochs to the end and memory, on an NVIDIA H200
alone or on two cores of a server (docs/log.md). A stream of another size is taken to cost in proportion to its events,
a history of another length what lies between those that were measured. A model that was not measured has no estimate,
and the plan says so.

A study from plan to page: what is missing is computed, everything is kept, the page is written.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.errors import ConfigError
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.lab.job import Job, Results
from dygmamba.lab.oracles import EventsByTime, ceiling
from dygmamba.lab.pool import JobEvent, Pool, choose_worker_count
from dygmamba.lab.studies import GeneratedDataset, StudyRequest, find_study, plan
from dygmamba.lab.study_report import build_study_sheet
from dygmamba.report.html import write_document
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.runs.opening import choose_device
from dygmamba.tasks.link import build_link_set

EPOCHS_BY_WORK = {"robustness": 2.0, "similarity": 0.1, "node": 3.0}  # of a training, that these take
COST_JOB_SECONDS = 60.0  # seconds that a cost is measured in, whatever the model, its preparation included
HEURISTIC_COST = (1.0, 100.0)  # seconds and megabytes of a rule
LENGTH_EXPONENT = 0.6  # of the length, by which costs grow beyond those that were measured
UNKNOWN_COST = 1.0  # relative cost of what was never measured, for the order of jobs


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Seconds alone on the device and megabytes; None where nothing like it was measured."""

    seconds: float | None
    megabytes: float | None


def estimate_cost(job: Job, device: str) -> CostEstimate:
    """By measurements of the same model, scaled to the job's events, length and epochs."""
    if job.work == "heuristic":
        return CostEstimate(*HEURISTIC_COST)
    like = [one for one in load_measurements() if one["model"] == job.model]
    if not like:
        return CostEstimate(None, None)
    patched = job.size.get("patch", 1) > 1
    # the nearer, where there is any: trees are grown by cores wherever they are, and most were measured on one stream
    like = [one for one in like if one["device"] == device] or like
    like = [one for one in like if one["data"] == job.data] or like
    like = [one for one in like if (one.get("patch", 1) > 1) == patched] or like
    length = float(job.size.get("length", 1))
    memory = _interpolate_cost(length, [(one.get("length", 1), one["peak_mb"]) for one in like])
    if job.work == "cost":
        return CostEstimate(COST_JOB_SECONDS, memory)
    event = _interpolate_cost(
        length, [(one.get("length", 1), one["epoch_seconds"] / one["events"]) for one in like]
    )
    most = float(max(one["epochs"] for one in like))
    epochs = (
        EPOCHS_BY_WORK[job.work] if job.work in EPOCHS_BY_WORK else min(most, job.size.get("epochs", most))
    )
    return CostEstimate(event * job.size.get("events", float(like[0]["events"])) * epochs, memory)


def _interpolate_cost(length: float, points: Iterable[tuple[float, float]]) -> float:
    """A cost at a length: between two that were measured by the power that joins them, beyond them by POWER."""
    points = sorted(points)
    lengths, costs = zip(*points, strict=True)
    near = float(np.clip(length, lengths[0], lengths[-1]))
    cost = float(np.exp(np.interp(np.log(near), np.log(lengths), np.log(costs))))
    return cost * (length / near) ** LENGTH_EXPONENT


def sort_by_cost(jobs: list[Job], device: str) -> list[Job]:
    """The order in which workers are kept busy to the end."""

    def weight(job: Job) -> float:
        found = estimate_cost(job, device).seconds
        return UNKNOWN_COST * float(job.size.get("length", 1)) if found is None else found

    return sorted(jobs, key=lambda job: -weight(job))


@cache
def load_measurements() -> list[dict[str, Any]]:
    """Every measurement."""
    return json.loads(files("dygmamba.lab").joinpath("measured.json").read_text("utf-8"))


DEFAULT_OUT = Path("studies")
RESULTS_FILE = "results.json"


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Where a study runs and writes."""

    out: Path = DEFAULT_OUT
    device: str = "auto"
    workers: int | None = None


def find_missing_dataset(study: str, ask: StudyRequest) -> GeneratedDataset | None:
    """The stream that the study would have to make first."""
    made = find_study(study).made
    return None if made is None or ask.datasets or made.there(ask.data_dir) else made


def prepare_jobs(study: str, ask: StudyRequest, place: ExecutionOptions) -> tuple[list[Job], list[Job]]:
    """All jobs of the study, and those that are still to be done, the costliest first."""
    jobs = plan(study, ask)
    device = choose_device(place.device).type
    return jobs, sort_by_cost(Results(place.out).missing(jobs), device)


def run(
    study: str,
    ask: StudyRequest,
    place: ExecutionOptions,
    command: str,
    watch: Callable[[JobEvent], None] = lambda event: None,
) -> tuple[StudyResults, dict[str, str]]:
    """Do what is missing; the book of all that is done, and what failed."""
    if place.workers is not None and place.workers < 1:
        raise ConfigError(f"`workers` must be at least 1, got {place.workers}")
    jobs, missing = prepare_jobs(study, ask, place)
    device = choose_device(place.device).type
    workers = choose_worker_count(device, place.workers, find_study(study).alone)
    failed: dict[str, str] = {}
    if missing:
        failed = Pool(Results(place.out), device, workers, ask.data_dir)(missing, watch)
    book = gather_results(study, jobs, Results(place.out), command)
    return replace(book, ceilings=ceilings(book, ask)), failed


def gather_results(study: str, jobs: list[Job], results: Results, command: str) -> StudyResults:
    """What is done so far."""
    records = []
    for job in jobs:
        if (found := results.find(job.key)) is not None:
            records.append(ResultRecord.of(job, found))
    return StudyResults(study, command, tuple(records))


def ceilings(book: StudyResults, ask: StudyRequest) -> dict[str, float]:
    """AP of the edge oracle of every exam whose rows are in the book."""
    found = {}
    for data in dict.fromkeys(record.data for record in book.records):
        store = open_dataset(data, ask.data_dir).store
        split, moments = chronological_split(store), EventsByTime(store)
        own = [row for record in book.records if record.data == data for row in record.rows]
        asked = {
            (row["setting"], row["negatives"])
            for row in own
            if "setting" in row and row.get("split") == "test"
        }
        for setting, negatives in sorted(asked):
            evaluation_set = build_link_set(store, split, "test", setting, negatives)
            found[f"{data} {setting} {negatives}"] = round(ceiling(moments, evaluation_set).edge_oracle_ap, 4)
    return found


def write_study_page(book: StudyResults, folder: Path) -> list[Path]:
    """The page, its tables in three forms, and the results they are made of."""
    book.write(folder / book.study / RESULTS_FILE)
    return [
        *write_document(build_study_sheet(book), folder / book.study, book.study),
        folder / book.study / RESULTS_FILE,
    ]
