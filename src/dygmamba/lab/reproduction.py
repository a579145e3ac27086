"""Reproduction of a study: estimate the cost of its jobs, run those without a result, write its page.

Costs are estimated from the measurements in `measured.json`: seconds per epoch, epochs and memory of trainings on an
NVIDIA H200 alone or on two cores of a server (docs/research/log.md). Time is taken to be proportional to the number of
events and is interpolated between the measured lengths. Entries with `evaluation_seconds` are processor time of one
core; they are scaled by the speed of this machine. A model without measurements has no estimate.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.auditing.oracles import EventsByTime, compute_ceiling
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.lab.job import Job, ResultCache
from dygmamba.lab.machine_speed import measure_slowness
from dygmamba.lab.pool import JobEvent, Pool, choose_worker_count
from dygmamba.lab.studies import GeneratedDataset, StudyRequest, find_study, plan_jobs
from dygmamba.lab.study_report import build_study_sheet
from dygmamba.report.html import write_document
from dygmamba.report.result_records import COST_FIELDS, PATH_FIELDS, ResultRecord, StudyResults
from dygmamba.runs.opening import choose_device
from dygmamba.tasks.link import build_link_set

EPOCHS_BY_WORK = {
    "robustness": 2.0,
    "similarity": 0.1,
    "node": 3.0,
}  # cost of an evaluation in training epochs
COST_JOB_SECONDS = (
    60.0  # a cost job times a bounded number of steps, so its duration hardly depends on the model
)
HEURISTIC_COST = (1.0, 100.0)  # seconds and megabytes
LENGTH_EXPONENT = 0.6  # cost grows with length to this power outside the measured lengths
UNKNOWN_COST = 1.0  # weight per token of a model without measurements, to sort jobs
DIGITS = 6  # of metrics in saved results
LOSS_DIGITS = 4

DEFAULT_OUT = Path("studies")
RESULTS_FILE = "results.json"


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Estimated cost of a job that has the device for itself; None where nothing comparable was measured."""

    seconds: float | None
    megabytes: float | None


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Estimated cost of a training that has the device for itself."""

    epoch_seconds: float
    epochs: float  # that were trained until validation stopped improving
    megabytes: float
    evaluation_seconds: float = 0.0  # of the evaluation on the test split, where it was measured apart


def estimate_training(model: str, data: str, device: str, size: dict[str, float]) -> TrainingCost | None:
    """Estimate the cost of a training on a kind of device ("cpu" or "cuda"); None if nothing comparable was measured.

    Args:
        model: Name of the model.
        data: Name of the dataset.
        device: Kind of device.
        size: Events, length and patch.
    """
    measurements = [entry for entry in load_measurements() if entry["model"] == model]
    if not measurements:
        return None
    is_patched = size.get("patch", 1) > 1
    # Prefer measurements on this device, on this dataset and with patches like the job's, in this order. There is not
    # always one: trees run on CPU cores on any machine, and most models were measured on one dataset.
    for matches in (
        lambda entry: entry["device"] == device,
        lambda entry: entry["data"] == data,
        lambda entry: (entry.get("patch", 1) > 1) == is_patched,
    ):
        measurements = [entry for entry in measurements if matches(entry)] or measurements
    length = float(size.get("length", 1))
    memory = _interpolate_cost(length, [(entry.get("length", 1), entry["peak_mb"]) for entry in measurements])
    seconds_per_event = _interpolate_cost(
        length,
        [(entry.get("length", 1), entry["epoch_seconds"] / entry["events"]) for entry in measurements],
    )
    events = size.get("events", float(measurements[0]["events"]))
    # When early stopping ends a training depends on the stream: of several measured ones the geometric mean.
    measured_epochs = _geometric_mean([entry["epochs"] for entry in measurements])
    evaluations = [
        entry["evaluation_seconds"] / entry["events"] for entry in measurements if _is_processor_time(entry)
    ]
    slowness, evaluation = 1.0, 0.0
    if len(evaluations) == len(measurements):
        slowness, evaluation = measure_slowness(), _geometric_mean(evaluations) * events
    return TrainingCost(seconds_per_event * events * slowness, measured_epochs, memory, evaluation * slowness)


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def _is_processor_time(measurement: dict[str, Any]) -> bool:
    return "evaluation_seconds" in measurement


def estimate_cost(job: Job, device: str) -> CostEstimate:
    """Estimate the cost of a job on a kind of device ("cpu" or "cuda")."""
    if job.work == "heuristic":
        return CostEstimate(*HEURISTIC_COST)
    cost = estimate_training(job.model, job.data, device, job.size)
    if cost is None:
        return CostEstimate(None, None)
    if job.work == "cost":
        return CostEstimate(COST_JOB_SECONDS, cost.megabytes)
    epochs = EPOCHS_BY_WORK.get(job.work, min(cost.epochs, job.size.get("epochs", cost.epochs)))
    evaluation = cost.evaluation_seconds if job.work == "link" else 0.0
    return CostEstimate(cost.epoch_seconds * epochs + evaluation, cost.megabytes)


def _interpolate_cost(length: float, points: Iterable[tuple[float, float]]) -> float:
    """Return the cost at a length: log-log interpolation between (length, cost) points, LENGTH_EXPONENT outside.

    Several costs of one length, of different datasets, count as their geometric mean.
    """
    by_length: dict[float, list[float]] = {}
    for measured_length, measured_cost in points:
        by_length.setdefault(measured_length, []).append(measured_cost)
    lengths = sorted(by_length)
    costs = [float(np.log(by_length[own]).mean()) for own in lengths]
    nearest = float(np.clip(length, lengths[0], lengths[-1]))
    cost = float(np.exp(np.interp(np.log(nearest), np.log(lengths), costs)))
    return cost * (length / nearest) ** LENGTH_EXPONENT


def sort_by_cost(jobs: list[Job], device: str) -> list[Job]:
    """Sort jobs by descending cost, so that all workers stay busy until the end."""

    def weight(job: Job) -> float:
        seconds = estimate_cost(job, device).seconds
        return UNKNOWN_COST * float(job.size.get("length", 1)) if seconds is None else seconds

    return sorted(jobs, key=lambda job: -weight(job))


@cache
def load_measurements() -> list[dict[str, Any]]:
    return json.loads(files("dygmamba.lab").joinpath("measured.json").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Output folder, device and number of workers of a study (None: a default for the device)."""

    out: Path = DEFAULT_OUT
    device: str = "auto"
    workers: int | None = None


def find_missing_dataset(study: str, request: StudyRequest) -> GeneratedDataset | None:
    """Return the synthetic dataset that must be generated before the study, or None."""
    dataset = find_study(study).dataset
    return None if dataset is None or request.datasets or dataset.exists(request.data_dir) else dataset


def prepare_jobs(study: str, request: StudyRequest, options: ExecutionOptions) -> tuple[list[Job], list[Job]]:
    """Return all jobs of the study, and those without a result, in the order in which they should start."""
    jobs = plan_jobs(study, request)
    missing = ResultCache(options.out).select_missing(jobs)
    if not find_study(study).in_order:
        missing = sort_by_cost(missing, choose_device(options.device).type)
    return jobs, missing


def run_study(
    study: str,
    request: StudyRequest,
    options: ExecutionOptions,
    command: str,
    callback: Callable[[JobEvent], None] = lambda event: None,
) -> tuple[StudyResults, dict[str, str]]:
    """Run the jobs without a result.

    Returns:
        The results of all finished jobs, and the reason of every failure by job key.
    """
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"`workers` must be at least 1, got {options.workers}", code="workers-not-positive")
    jobs, missing = prepare_jobs(study, request, options)
    device = choose_device(options.device).type
    workers = choose_worker_count(device, options.workers, find_study(study).exclusive)
    result_cache = ResultCache(options.out)
    failed: dict[str, str] = {}
    if missing:
        failed = Pool(result_cache, device, workers, request.data_dir)(missing, callback)
    results = gather_results(study, jobs, result_cache, command)
    return replace(results, ceilings=compute_ceilings(results, request)), failed


def gather_results(study: str, jobs: list[Job], result_cache: ResultCache, command: str) -> StudyResults:
    """Collect the records of all finished jobs; an evaluation of a run has the settings of its training."""
    trained, records = {job.key: job.settings for job in jobs}, []
    for job in jobs:
        if (result := result_cache.load(job.key)) is not None:
            record = summarize_result(job, result)
            records.append(replace(record, settings=record.settings or trained.get(job.needs or "", {})))
    return StudyResults(study, command, tuple(records))


def summarize_result(job: Job, result: dict[str, Any]) -> ResultRecord:
    """Reduce the result of a job to what tables and charts need: no paths, rounded numbers."""
    losses = result.get("epochs", [])
    return ResultRecord(
        job.work,
        job.data,
        job.model,
        job.seed,
        job.about,
        [
            {
                name: round(value, DIGITS) if isinstance(value, float) else value
                for name, value in row.items()
                if name not in PATH_FIELDS
            }
            for row in result["rows"]
        ],
        job.settings,
        {name: result[name] for name in COST_FIELDS if name in result}
        | ({"epochs": len(losses)} if losses else {}),
        [round(loss, LOSS_DIGITS) for loss in losses],
        result.get("made_with", {}).get("device", ""),
        result.get("code", ""),
        job.changed,
    )


def compute_ceilings(results: StudyResults, request: StudyRequest) -> dict[str, float]:
    """Return the AP of the edge oracle for every "<dataset> <setting> <negatives>" that the results contain."""
    ceilings = {}
    for data in dict.fromkeys(record.data for record in results.records):
        dataset = open_dataset(data, request.data_dir)
        store = dataset.store
        split, events_by_time = get_default_split(dataset, request.protocol).split(store), EventsByTime(store)
        rows = [row for record in results.records if record.data == data for row in record.rows]
        evaluations = {
            (row["setting"], row["negatives"])
            for row in rows
            if "setting" in row and row.get("split") == "test"
        }
        for setting, negatives in sorted(evaluations):
            evaluation_set = build_link_set(store, split, "test", setting, negatives)
            ceiling = compute_ceiling(events_by_time, evaluation_set)
            ceilings[f"{data} {setting} {negatives}"] = round(ceiling.edge_oracle_ap, 4)
    return ceilings


def write_study_page(results: StudyResults, folder: Path) -> list[Path]:
    """Write the page, its tables as CSV, Markdown and LaTeX, and the results they are built from."""
    results.write(folder / results.study / RESULTS_FILE)
    return [
        *write_document(build_study_sheet(results), folder / results.study, results.study),
        folder / results.study / RESULTS_FILE,
    ]
