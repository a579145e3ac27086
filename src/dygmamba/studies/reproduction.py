"""Reproduction of a study: estimate the cost of its jobs, run those without a result, write its page."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from dygmamba.auditing.oracles import EventsByTime, evaluate_oracle
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.report.html import write_document
from dygmamba.report.result_records import COST_FIELDS, PATH_FIELDS, ResultRecord, StudyResults
from dygmamba.runs.opening import choose_device
from dygmamba.runs.training_cost import estimate_training
from dygmamba.studies.job import Job, ResultCache
from dygmamba.studies.pool import JobEvent, Pool, choose_worker_count
from dygmamba.studies.studies import GeneratedDataset, StudyRequest, find_study, plan_jobs
from dygmamba.studies.study_report import build_study_document
from dygmamba.tasks.link import build_link_set

# cost of an evaluation in training epochs
EPOCHS_BY_WORK = {"robustness": 2.0, "similarity": 0.1, "node": 3.0}
# a cost job times a bounded number of steps, so its duration hardly depends on the model
COST_JOB_SECONDS = 60.0
HEURISTIC_COST = (1.0, 100.0)  # seconds and megabytes
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


def sort_by_cost(jobs: list[Job], device: str) -> list[Job]:
    """Sort jobs by descending cost, so that all workers stay busy until the end."""

    def weight(job: Job) -> float:
        seconds = estimate_cost(job, device).seconds
        return UNKNOWN_COST * float(job.size.get("length", 1)) if seconds is None else seconds

    return sorted(jobs, key=lambda job: -weight(job))


def plan_seconds(jobs: list[Job], device: str, workers: int) -> dict[str, int]:
    """Return how much each job adds to the duration of a study with so many workers, by its key.

    A job without measurements takes as long as the others do on average. Empty if no job has any.
    """
    known = {job.key: seconds for job in jobs if (seconds := estimate_cost(job, device).seconds) is not None}
    if not known:
        return {}
    average, share = mean(known.values()), min(workers, len(jobs))
    return {job.key: max(1, round(known.get(job.key, average) / share)) for job in jobs}


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
            edge_oracle = evaluate_oracle(evaluation_set.pairs, events_by_time.is_event(evaluation_set.pairs))
            ceilings[f"{data} {setting} {negatives}"] = round(edge_oracle["ap"], 4)
    return ceilings


def write_study_page(results: StudyResults, folder: Path) -> list[Path]:
    """Write the page, its tables as CSV, Markdown and LaTeX, and the results they are built from."""
    results.write(folder / results.study / RESULTS_FILE)
    return [
        *write_document(build_study_document(results), folder / results.study, results.study),
        folder / results.study / RESULTS_FILE,
    ]
